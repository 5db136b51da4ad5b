"""Judges the newest weights of a run: python -m tools.evaluate RUN; see --help."""

import json
from pathlib import Path

from tools import runs
from tools.command_line import Parser
from tools.progress import Progress
from tools.train import choose_keras


def parse_arguments(arguments):
    parser = Parser(prog="tools.evaluate", description="Judges the newest weights of a run; writes RUN/evaluation.json.")
    parser.add_argument("run", type=Path, metavar="RUN", help="a folder that tools.train wrote")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="default: where the run had its data")
    parser.add_argument("--keras", choices=("tf_keras", "keras3"), help="default: that of the run")
    parser.add_argument("--batch-size", type=int, metavar="N", help="default: the run's own for validation")
    parser.add_argument("--all", action="store_true", help="use all validation examples, where the run used some")
    return parser, parser.parse_args(arguments)


def evaluate(run, data_dir, batch_size, uses_all):
    import tensorflow as tf

    task, experiment = run.experiment.task, run.experiment
    data = task.load(data_dir)
    examples = data.validation_examples if uses_all else experiment.validation_examples or data.validation_examples
    model = run.model()
    model.compile(**task.compile_arguments())
    with Progress(f"evaluating {experiment.name}", examples, "examples") as progress:
        judged = task.judge(model, tf.distribute.get_strategy())
        measures = judged(data, batch_size or experiment.validation_batch_size, examples, progress.add)
    return {**measures, "examples": examples}


def main(arguments=None):
    parser, args = parse_arguments(arguments)
    try:
        if args.batch_size is not None and args.batch_size < 1:
            raise ValueError(f"--batch-size {args.batch_size}: expected 1 or more")
        run = runs.read(args.run)
        data_dir = args.data_dir or run.data_dir
        run.experiment.task.check_data(data_dir)
        choose_keras(args.keras or run.keras, only=run.experiment.task.only_keras)
        measures = evaluate(run, data_dir, args.batch_size, args.all)
    except (ValueError, ImportError, OSError) as error:
        parser.error(str(error))
    (args.run / "evaluation.json").write_text(json.dumps(measures, indent=2) + "\n")
    print(f"{args.run}: " + ", ".join(f"{name} {value:.6g}" for name, value in measures.items()))


if __name__ == "__main__":
    main()
