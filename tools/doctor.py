"""Says whether training works in this environment, and what to mend where it does not: python -m tools.doctor; see --help.

Versions and settings are compared with combinations known to be bad before TensorFlow is imported. The import, the search for
a strategy and three updates of a tiny model follow in a child process, because each of them can abort a process or hang.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from subprocess import DEVNULL, TimeoutExpired, run

import numpy as np

import tf_simigrad as sg
from tools.command_line import Parser
from tools.train import choose_keras

TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu")
OTHERS = ("keras", "tf-keras", "libtpu", "numpy", "tf-models-official", "tensorflow-text", "tensorflow-addons", "setuptools")
CHILD = [sys.executable, "-m", "tools.doctor"]
TIMEOUT_SECONDS = 180
UPDATES, FEATURES, MICRO_BATCH_SIZE, TOLERANCE = 3, 4, 4, 1e-5


def release(version):
    """(major, minor), or () of None."""
    return tuple(int(part) for part in re.findall(r"\d+", version or "")[:2])


def tensorflows(found):
    return [release(found[name]) for name in TENSORFLOWS if found[name]]


def tf_keras(found):
    """The distribution that tf.keras will be, and its version."""
    name = "tf-keras" if found.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True") else "keras"
    return name, found[name]


# Name, severity, where it applies, and what to do. What an error names does not work; a note changes nothing here.
# fmt: off
COMBINATIONS = (
    ("Python other than 3.11", "error", lambda f: release(f["python"]) != (3, 11),
     "Make an environment with Python 3.11, the only one that all pinned versions share."),
    ("no TensorFlow", "error", lambda f: not tensorflows(f),
     "pip install 'tf_simigrad[cpu]' (or [gpu], [tpu]): TensorFlow is an extra, as there are three distributions of it."),
    ("several TensorFlows, unpacked over each other", "error", lambda f: len(tensorflows(f)) > 1,
     "pip uninstall all of them and install one; with tensorflow-cpu or -tpu, install what wants `tensorflow` by --no-deps."),
    ("tensorflow-tpu 2.20.0 with a libtpu other than 0.0.20", "error",
     lambda f: f["tensorflow-tpu"] == "2.20.0" and f["libtpu"] not in (None, "0.0.20"),
     "pip install libtpu==0.0.20: with 0.0.52, which pip picks, `import tensorflow` aborts the process."),
    ("tensorflow-tpu without libtpu", "error", lambda f: f["tensorflow-tpu"] and not f["libtpu"],
     "pip install libtpu==0.0.20, the one that tensorflow-tpu 2.20.0 can load."),
    ("Keras 3 on a TPU", "error", lambda f: f["strategy"] == "tpu" and release(tf_keras(f)[1]) >= (3,),
     "Pass --keras tf_keras (in programs of your own set TF_USE_LEGACY_KERAS=1): TPUStrategy is supported under it only."),
    ("TF_USE_LEGACY_KERAS without tf-keras", "error", lambda f: tf_keras(f) == ("tf-keras", None),
     "pip install tf-keras of TensorFlow's minor version (2.20.1 for 2.20; --no-deps beside tensorflow-tpu), or unset it."),
    ("tf-keras for another TensorFlow", "error",
     lambda f: f["tf-keras"] and tensorflows(f) and release(f["tf-keras"]) not in tensorflows(f),
     "pip install tf-keras of TensorFlow's minor version: 2.20.1 for 2.20."),
    ("KERAS_BACKEND other than tensorflow", "error",
     lambda f: f.get("KERAS_BACKEND") not in (None, "", "tensorflow") and release(tf_keras(f)[1]) >= (3,),
     "Unset KERAS_BACKEND: the callback needs Keras on TensorFlow."),
    ("tf-models-official with setuptools 82+", "error", lambda f: f["tf-models-official"] and release(f["setuptools"]) >= (82,),
     "pip install 'setuptools<81': tensorflow-hub imports pkg_resources, which 82 has no longer."),
    ("tensorflow-addons on a newer TensorFlow", "note", lambda f: f["tensorflow-addons"] and tensorflows(f) >= [(2, 16)],
     "To use it set TF_USE_LEGACY_KERAS=1, and call tf_simigrad.enable_tensorflow_addons() before you import it."),
    ("tensorflow-tpu, and no TPU in use", "note", lambda f: f["tensorflow-tpu"] and f["strategy"] in ("default", "mirrored"),
     "If there should be one, --strategy tpu says what hinders it."),
    ("TF_CONFIG is set", "note", lambda f: f.get("TF_CONFIG"),
     "Several workers are not tried here; python -m tools.launch tries them, with tools.train --strategy multiworker."),
)
ADVICE = {
    "importing TensorFlow": "Make the environment anew, from tools/requirements.lock: bash tools/quickstart.sh does it.",
    "choosing the strategy": "Try --strategy default. A TPU needs tensorflow-tpu and no other process on it.",
    "training": "Try --strategy default and the other --keras; --in-child /dev/null beside them shows all that is printed.",
    "ending": "The updates were made; what went wrong came after them. Try --strategy default.",
    "comparing": "Trust no training here. Try --strategy default, the other --keras, the versions of tools/requirements.lock.",
}
# fmt: on
NOT_RUN = {"strategy": None, "replicas": None, "self_test": {"passed": False, "updates": 0, "failures": ["not finished"]}}


def known_problems(found):
    return [(name, severity, advice) for name, severity, applies, advice in COMBINATIONS if applies(found)]


def installed(name):
    return next((distribution.version for distribution in metadata.distributions(name=name)), None)


def parse_arguments(arguments):
    parser = Parser(prog="tools.doctor", description="Says whether training works here, and what to mend where it does not.")
    of_auto = "auto (the default): a TPU if there is one, else mirrored over the GPUs if there are any, else default"
    parser.add_argument("--strategy", choices=("auto", "default", "mirrored", "tpu"), default="auto", help=of_auto)
    parser.add_argument("--devices", type=int, metavar="N", help="replicas of --strategy mirrored (default: every GPU)")
    parser.add_argument("--keras", choices=("tf_keras", "keras3"), help="default: as TF_USE_LEGACY_KERAS says")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--in-child", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.devices is not None and (args.devices < 1 or args.strategy != "mirrored"):
        parser.error(f"--devices {args.devices}: expected 1 or more, and --strategy mirrored")
    return args


def run_child(arguments):
    """What the child has found, and the problem with it, if there is one."""
    # As one worker of several it would wait for the others.
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    # A TPU compiles every operation and every program when it first meets it.
    seconds = TIMEOUT_SECONDS * (4 if "tpu" in arguments else 1)
    with tempfile.TemporaryDirectory() as folder:
        written, errors = Path(folder) / "result.json", Path(folder) / "errors.txt"
        written.write_text("{}")
        command = [*CHILD, *arguments, "--in-child", written]
        with errors.open("w") as file:
            try:
                code = run(command, env=environment, stdout=DEVNULL, stderr=file, timeout=seconds).returncode
                end = f"ended with exit code {code}" + (f" ({signal.Signals(-code).name})" if code < 0 else "")
            except TimeoutExpired:
                code, end = None, f"had not ended after {seconds} s"
        result = NOT_RUN | json.loads(written.read_text())
        last = [line for line in errors.read_text(errors="replace").splitlines() if line.strip()][-1:]
    stage = result.pop("stage", "importing TensorFlow")
    if code != 0:
        name = f"the self-test {end} while {stage}; last line of its errors: {''.join(last)[:500] or 'none'}"
        return result, [(name, "error", ADVICE[stage])]
    failures = "; ".join(result["self_test"]["failures"])
    return result, [(f"the self-test failed: {failures}", "error", ADVICE["comparing"])] if failures else []


def choose_strategy(name, devices):
    import tensorflow as tf

    from tools import strategies

    if name == "auto" and installed("tensorflow-tpu"):
        with contextlib.suppress(ValueError):
            return strategies.make_strategy("tpu", None)
    if name == "auto":
        name = "mirrored" if tf.config.list_physical_devices("GPU") else "default"
    return strategies.make_strategy(name, devices)


def sgd(weights, x, y, updates):
    """Kernel [features, 1] and bias [1] of a linear model after plain SGD on mse; updates are (batch size, rate)."""
    kernel, bias = (np.array(w, np.float64) for w in weights)
    for size, rate in updates:
        error = x[:size] @ kernel + bias - y[:size]
        kernel, bias = kernel - rate * 2 / size * x[:size].T @ error, bias - rate * 2 / size * error.sum(axis=0)
        x, y = x[size:], y[size:]
    return [kernel, bias]


def judge(history, traces, loss, weights, expected):
    """What the updates were, and what is wrong with them."""
    sizes, similarities = [r.batch_size for r in history], [r.similarity for r in history]
    difference = float(np.max([np.abs(w - e).max() for w, e in zip(weights, expected, strict=True)]))
    checks = {
        f"{len(history)} updates instead of {UPDATES}": len(history) == UPDATES,
        f"the batch size stayed at {sizes}": len(set(sizes)) > 1,
        f"the similarities are {similarities}": all(s is not None and -1 <= s <= 1 for s in similarities),
        f"{traces} traces instead of 1": traces == 1,
        f"the loss is {loss}": np.isfinite(loss),
        f"the weights are {difference:.1e} away from those of plain SGD": difference <= TOLERANCE,
    }
    failures = [failure for failure, is_right in checks.items() if not is_right]
    # JSON has no NaN.
    loss, difference = (value if np.isfinite(value) else None for value in (loss, difference))
    measured = {"similarities": similarities, "traces": traces, "loss": loss, "weight_difference": difference}
    return {"passed": not failures, "failures": failures, "updates": len(history), "batch_sizes": sizes, **measured}


def self_test(strategy):
    import tensorflow as tf

    from tools.callbacks import StopAtUpdate

    # By default GPUs multiply in TensorFloat-32 and TPUs in bfloat16, further from plain SGD than the tolerance.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.keras.utils.set_random_seed(0)
    element = MICRO_BATCH_SIZE * strategy.num_replicas_in_sync
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8 * UPDATES * element, FEATURES)).astype("float32")
    y = (x.sum(axis=1, keepdims=True) + rng.normal(size=(len(x), 1))).astype("float32")
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((FEATURES,)), tf.keras.layers.Dense(1)])
        model.compile(optimizer=tf.keras.optimizers.SGD(0.05), loss="mse")
    start = model.get_weights()
    # A tenth more or less than 6 micro-steps is 7 or 5 of them: whatever is measured, the batch size changes.
    policy = sg.SimiGrad(0.3, min_batch_size=2 * element, max_batch_size=8 * element, initial_batch_size=6 * element)
    adaptive = sg.AdaptiveBatch(policy)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(element, drop_remainder=True)
    fitted = model.fit(dataset, verbose=0, shuffle=False, callbacks=[adaptive, StopAtUpdate(adaptive, UPDATES)])
    expected = sgd(start, x, y, [(r.batch_size, r.effective_learning_rate) for r in adaptive.history])
    return judge(adaptive.history, adaptive.traces, fitted.history["loss"][-1], model.get_weights(), expected)


def in_child(args, result):
    def enter(stage, **new):
        result.update(new, stage=stage)
        args.in_child.write_text(json.dumps(result))

    try:
        enter("importing TensorFlow")
        from tools import strategies

        enter("choosing the strategy")
        strategy = choose_strategy(args.strategy, args.devices)
        enter("training", strategy=strategies.strategy_name(strategy), replicas=strategy.num_replicas_in_sync)
        enter("ending", self_test=self_test(strategy))
    except Exception as error:
        # The last line is what the parent shows, and a message of TensorFlow has many.
        error.add_note(f"{type(error).__name__}: {' '.join(str(error).split())}")
        raise


def main(arguments):
    args = parse_arguments(arguments)
    if args.strategy == "tpu":
        # As tools.train does.
        args.keras = args.keras or "tf_keras"
    # That tf-keras is missing is one of the combinations.
    with contextlib.suppress(ValueError):
        choose_keras(args.keras)
    if args.in_child:
        return in_child(args, {})
    text = sys.stderr if args.json else sys.stdout
    versions = {"python": "{}.{}.{}".format(*sys.version_info), **{name: installed(name) for name in TENSORFLOWS + OTHERS}}
    found = {**os.environ, **versions, "strategy": args.strategy}
    versions |= {"tf_simigrad": sg.__version__, "tf.keras": " ".join(filter(None, tf_keras(found)))}
    for name, version in versions.items():
        print(f"{name:<20} {version or 'not installed'}", file=text, flush=True)
    result, failed = run_child(arguments) if tensorflows(found) else (NOT_RUN, [])
    print(f"{'strategy':<20} {result['strategy']}, replicas: {result['replicas']}", file=text)
    print(f"{'self-test':<20} {', '.join(f'{name}: {value}' for name, value in result['self_test'].items())}", file=text)
    problems = known_problems(found | {"strategy": result["strategy"] or args.strategy}) + failed
    for name, severity, advice in problems:
        print(f"{severity:<20} {name.rstrip('.')}. {advice}", file=text)
    errors = [advice for _, severity, advice in problems if severity == "error"]
    advice = errors[0] if errors else f"All is well: the callback's {UPDATES} updates are those of plain SGD."
    problems = [dict(zip(("name", "severity", "advice"), entry, strict=True)) for entry in problems]
    print(json.dumps({"versions": versions, "problems": problems, **result, "advice": advice}) if args.json else advice)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
