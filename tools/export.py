"""Writes the newest weights of a run as a SavedModel: python -m tools.export RUN OUT; see --help."""

from pathlib import Path

from tools import runs
from tools.command_line import Parser
from tools.progress import Progress
from tools.train import choose_keras


def parse_arguments(arguments):
    parser = Parser(prog="tools.export", description="Writes the newest weights of a run as a SavedModel.")
    parser.add_argument("run", type=Path, metavar="RUN", help="a folder that tools.train wrote")
    parser.add_argument("output", type=Path, metavar="OUT", help="the folder of the SavedModel; one found there is replaced")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="default: where the run had its data")
    parser.add_argument("--keras", choices=("tf_keras", "keras3"), help="default: that of the run")
    return parser, parser.parse_args(arguments)


def check_output(output):
    if output.exists() and not (output / "saved_model.pb").is_file() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} exists and is no SavedModel: remove it, or name another folder")


def main(arguments=None):
    parser, args = parse_arguments(arguments)
    try:
        run = runs.read(args.run)
        check_output(args.output)
        task, data_dir = run.experiment.task, args.data_dir or run.data_dir
        task.check_data(data_dir)
        choose_keras(args.keras or run.keras, only=task.only_keras)
        from tools import saved_models

        with Progress("exporting", 2, "steps") as progress:
            model = run.model()
            progress.add()
            saved_models.write(task, model, task.load(data_dir), args.output, task.assets(data_dir))
            progress.add()
    except (ValueError, ImportError, OSError) as error:
        parser.error(str(error))
    print(f"{args.output}: a SavedModel of {run.weights.parent}; python -m tools.check_saved_model {args.output} tries it")


if __name__ == "__main__":
    main()
