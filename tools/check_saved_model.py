"""Checks that a SavedModel serves without tf_simigrad and Keras: python -m tools.check_saved_model MODEL.

A fresh process, in which neither can be imported, loads the SavedModel (or RUN/saved_model), calls each of its signatures on
the inputs of its assets.extra/serving_check.npz and compares with the answers that the trained model gave.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# In the folder of a SavedModel that TensorFlow leaves to its users.
CHECK = Path("assets.extra") / "serving_check.npz"
TOLERANCE = 1e-5
FRESH = "--in-fresh-process"
NOT_THERE = ("tf_simigrad", "keras", "tf_keras", "official", "tensorflow_text", "models", "tools")


def check(directory):
    for module in NOT_THERE:
        sys.modules[module] = None
    import numpy as np
    import tensorflow as tf

    signatures = tf.saved_model.load(str(directory)).signatures
    with np.load(directory / CHECK) as arrays:
        tried = dict(arrays)
    largest, examples = 0.0, 0
    for name in sorted({key.split("/")[0] for key in tried}):
        inputs = {key.split("/")[2]: tf.constant(tried[key]) for key in tried if key.startswith(f"{name}/input/")}
        answers = signatures[name](**inputs)
        expected = {key.split("/")[2]: tried[key] for key in tried if key.startswith(f"{name}/output/")}
        if set(answers) != set(expected):
            print(f"{directory}: signature {name} gives {', '.join(sorted(answers))}, not {', '.join(sorted(expected))}")
            return 1
        differences = [np.max(np.abs(answers[key].numpy() - expected[key])) for key in expected]
        largest, examples = max(largest, *map(float, differences)), len(next(iter(inputs.values())))
    verdict = "equal" if largest <= TOLERANCE else "NOT EQUAL"
    names = ", ".join(sorted(signatures))
    print(f"{directory}: {examples} examples by TensorFlow alone ({names}): {verdict}, largest difference {largest:.2g}")
    return 0 if largest <= TOLERANCE else 1


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="tools.check_saved_model", description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, metavar="MODEL", help="what tools.export wrote, or the folder of a run")
    parser.add_argument(FRESH, action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    run = args.model / "saved_model"
    directory = run if run.is_dir() else args.model
    missing = [str(name) for name in ("saved_model.pb", CHECK) if not (directory / name).is_file()]
    if missing:
        print(f"tools.check_saved_model: error: {args.model} holds no export: {', '.join(missing)} missing", file=sys.stderr)
        return 2
    if args.in_fresh_process:
        return check(directory)
    command = [sys.executable, "-m", "tools.check_saved_model", FRESH, str(directory.resolve())]
    return subprocess.run(command, cwd=ROOT, env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}).returncode


if __name__ == "__main__":
    sys.exit(main())
