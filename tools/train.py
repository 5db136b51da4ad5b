"""Trains an experiment: python -m tools.train CONFIG [--set name=value ...]; see --help."""

import importlib.util
import json
import os
import shutil
from pathlib import Path

from configs.experiment import Experiment
from tools import initial_weights, runs
from tools.command_line import Parser
from tools.overrides import apply_overrides, suggest

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
OUTPUTS = ("config.json", "history.csv", "epochs.csv", "summary.json", "training.png", "evaluation.json")
OUTPUT_FOLDERS = ("saved_model", "checkpoints", "weights")
# A resumed run may be longer than it was meant to be; everything else would make it another run.
MAY_CHANGE = ("epochs", "max_updates")


def parse_arguments(arguments):
    parser = Parser(prog="tools.train", description="Trains an experiment and writes its results to a folder.")
    parser.add_argument("config", metavar="CONFIG", help="a name in configs/, or a path to a .py file with get_config()")
    parser.add_argument("--output", type=Path, metavar="DIR", help="results (default: run/NAME); a run found there is replaced")
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR",
        help="holds CIFAR-10 (default: Keras downloads it), or what tools.prepare_data has made for the task"
    )  # fmt: skip
    parser.add_argument(
        "--initial-weights", type=Path, metavar="DIR",
        help="a run to start from, or what tools.prepare_data bert-weights has made"
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="build and trace without data; count parameters and FLOPs")
    parser.add_argument("--strategy", choices=("default", "mirrored", "multiworker", "tpu"), default="default")
    parser.add_argument("--tpu", metavar="NAME", help="of --strategy tpu (default: local, this TPU VM's own)")
    parser.add_argument("--devices", type=int, metavar="N", help="replicas of --strategy mirrored (default: every GPU)")
    parser.add_argument("--keras", choices=("tf_keras", "keras3"), help="default: as TF_USE_LEGACY_KERAS says")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="replaces a field of the experiment")
    parser.add_argument("--resume", action="store_true", help="continue after the last finished epoch of the run in --output")
    return parser, parser.parse_args(arguments)


def load_module(path):
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_config(config):
    names = sorted(path.stem for path in CONFIGS.glob("*.py") if path.stem not in ("__init__", "experiment"))
    path = Path(config) if config.endswith(".py") else CONFIGS / f"{config}.py"
    if not path.is_file() or (not config.endswith(".py") and config not in names):
        raise ValueError(f"no experiment {config}; {suggest(config, names)}")
    module = load_module(path)
    experiment = module.get_config() if hasattr(module, "get_config") else None
    if not isinstance(experiment, Experiment):
        raise ValueError(f"{path} has no get_config() that returns a configs.experiment.Experiment")
    return experiment


def check_devices(strategy, devices, tpu=None):
    if tpu is not None and strategy != "tpu":
        raise ValueError(f"--tpu {tpu}: --strategy {strategy} has none; pass --strategy tpu")
    if strategy == "multiworker" and "TF_CONFIG" not in os.environ:
        raise ValueError(
            "--strategy multiworker: TF_CONFIG is not set. On one machine: python -m tools.launch --workers 2 -- python -m "
            "tools.train ...; on several see the README"
        )
    if devices is not None and devices < 1:
        raise ValueError(f"--devices {devices}: expected 1 or more")
    if strategy == "default" and devices not in (None, 1):
        raise ValueError(f"--devices {devices}: --strategy default has one; pass --strategy mirrored")
    if strategy == "tpu" and devices is not None:
        raise ValueError(f"--devices {devices}: a TPU is used whole; leave it out")
    if strategy == "multiworker" and devices is not None:
        raise ValueError(f"--devices {devices}: a worker takes every GPU it sees; set CUDA_VISIBLE_DEVICES instead")


def choose_keras(keras, strategy="default", only=None):
    # TensorFlow reads these when it is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if strategy == "tpu" or only == "tf_keras":
        if keras == "keras3":
            what = "TPUs are" if strategy == "tpu" else "the models of this task are"
            raise ValueError(f"--keras keras3: {what} supported under tf_keras only; leave it out")
        keras = "tf_keras"
    if keras:
        os.environ["TF_USE_LEGACY_KERAS"] = "1" if keras == "tf_keras" else "0"
    if keras == "tf_keras" and importlib.util.find_spec("tf_keras") is None:
        raise ValueError("--keras tf_keras: not installed; pip install tf-keras")


def changes(config, output):
    """What differs in the configuration of a run from that of the run in the folder, each as a sentence."""
    path = output / runs.CONFIG
    if not path.is_file():
        return {}
    before, now = json.loads(path.read_text()), json.loads(json.dumps(config))
    compared = [name for name in now if name != "data_dir"]
    return {name: f"{name} was {before.get(name)}, is {now[name]}" for name in compared if before.get(name) != now[name]}


def check_resume(config, output):
    """Raises where the folder holds a run of other settings."""
    if refused := [text for name, text in changes(config, output).items() if name not in MAY_CHANGE]:
        raise ValueError(
            f"--resume: {output} holds another run: {'; '.join(refused)}. Only {' and '.join(MAY_CHANGE)} may change"
        )
    if (done := runs.epochs_done(output)) > config["epochs"]:
        raise ValueError(f"--resume: {output} holds a run of {done} epochs, more than epochs={config['epochs']}")


def prepare_output(config, output, resume):
    """Makes the folder. A fresh run removes what an earlier one left, or its checkpoints could be taken for our own."""
    path = output / runs.CONFIG
    if resume and path.is_file():
        if changes(config, output):
            # What was complete no longer is: its weights are older than those of the next checkpoint.
            (output / "summary.json").unlink(missing_ok=True)
            shutil.rmtree(output / runs.WEIGHTS, ignore_errors=True)
    else:
        if resume:
            print(f"nothing to resume in {output}: starting anew", flush=True)
        for name in OUTPUTS:
            (output / name).unlink(missing_ok=True)
        for name in OUTPUT_FOLDERS:
            shutil.rmtree(output / name, ignore_errors=True)
    output.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config, indent=2) + "\n")


def check_paths(task, args):
    task.check_data(args.data_dir)
    if args.initial_weights is not None:
        initial_weights.check(args.initial_weights)


def start(experiment, args, output):
    """Everything before the first step; returns what `run` needs, or None where the run is complete."""
    # Only now is TensorFlow imported.
    from tools import experiment as runner
    from tools import strategies

    config = runs.config_of(experiment, args.data_dir, args.initial_weights)
    strategy = strategies.make_strategy(args.strategy, args.devices, args.tpu or "local")
    training = runner.build(experiment, strategy, experiment.task.load(args.data_dir))
    if args.initial_weights is not None:
        initial_weights.take(training.model, experiment.task, args.initial_weights)
    training.workers.meet("the checks")
    if training.is_chief:
        prepare_output(config, output, args.resume)
    training.workers.meet("the output folder")
    if (output / "summary.json").is_file():
        return None
    return training, output, *runner.restore(training, output, args.resume)


def main(arguments=None):
    parser, args = parse_arguments(arguments)
    try:
        experiment = apply_overrides(load_config(args.config), args.set)
        check_devices(args.strategy, args.devices, args.tpu)
        if args.dry_run:
            from tools import dry_run

            if args.keras == "keras3":
                raise ValueError("--keras keras3: --dry-run describes replicas, which is supported under tf_keras only")
            dry_run.run(experiment)
            return
        output = args.output or Path("run") / experiment.name
        if args.resume:
            args.data_dir = args.data_dir or runs.recorded(output, "data_dir")
            args.initial_weights = args.initial_weights or runs.recorded(output, "initial_weights")
        check_paths(experiment.task, args)
        choose_keras(args.keras, args.strategy, experiment.task.only_keras)
        if args.resume:
            check_resume(runs.config_of(experiment, args.data_dir, args.initial_weights), output)
        ready = start(experiment, args, output)
    except (ValueError, ImportError, OSError) as error:
        parser.error(str(error))
    if ready is None:
        print(f"{output}: already complete")
        return
    from tools import experiment as runner

    runner.run(*ready, data_dir=args.data_dir)


if __name__ == "__main__":
    main()
