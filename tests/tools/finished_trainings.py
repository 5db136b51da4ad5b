"""Stands in for the process of `tools.train`: the commands that were started, and results as a training leaves them."""

import json
from pathlib import Path

from tools import runs, train

SUMMARY = {
    "accuracy": 0.5, "best_accuracy": 0.625, "updates": 1234, "mean_batch_size": 100.6, "max_batch_size": 2048,
    "updates_off_bounds": 0.255, "batch_changes": 17, "seconds": 61.5, "vrgd_multiplier": None,
}  # fmt: skip


class Trainings:
    """Called as `subprocess.run`.

    Args:
        summaries: By the name of a training what differs from `SUMMARY`, for all where a name is missing.
    """

    def __init__(self, summaries=None):
        self.summaries, self.commands = summaries or {}, []

    def __call__(self, command, check):
        assert check
        self.commands.append(command)
        parser, args = train.parse_arguments(command[3:])
        experiment = train.apply_overrides(train.load_config(args.config), args.set)
        args.output.mkdir(parents=True, exist_ok=True)
        config = runs.config_of(experiment, args.data_dir, args.initial_weights)
        (args.output / "config.json").write_text(json.dumps(config))
        (args.output / "summary.json").write_text(json.dumps({**SUMMARY, **self.summaries.get(args.output.name, {})}))

    @property
    def settings(self):
        """(name, what is set) of each training, in order."""
        parsed = [train.parse_arguments(command[3:])[1] for command in self.commands]
        return [(Path(args.output).name, args.set) for args in parsed]
