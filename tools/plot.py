"""Draws runs over each other: python -m tools.plot RUN [RUN ...] --output PNG."""

import argparse
import json
from pathlib import Path

from models.tasks import TASKS
from tf_simigrad.report import history, plot


def read_run(folder):
    missing = [name for name in ("config.json", "history.csv", "epochs.csv") if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} holds no run: {', '.join(missing)} missing")
    config = json.loads((folder / "config.json").read_text())
    records, epochs = history.read_history(folder / "history.csv"), history.read_epochs(folder / "epochs.csv")
    measure = {task.__name__: task.headline for task in TASKS}[config["task"]["type"]]
    return plot.Run(folder.resolve().name, records, epochs, config["policy"].get("target_similarity"), measure)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="tools.plot", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a folder that tools.train wrote")
    parser.add_argument("--output", type=Path, required=True, metavar="PNG")
    parser.add_argument("--title", help="default: the names of the runs")
    args = parser.parse_args(arguments)
    try:
        runs = [read_run(folder) for folder in args.runs]
        plot.plot_runs(runs, args.output, args.title or ", ".join(run.label for run in runs))
    except (ValueError, ImportError, OSError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")


if __name__ == "__main__":
    main()
