"""Several trainings, one after the other, for tables. What is complete in their folder is kept."""

import json
import subprocess
import sys
from pathlib import Path

from tools import runs
from tools.overrides import apply_overrides
from tools.train import changes, load_config


def add_arguments(parser):
    parser.add_argument("config", metavar="CONFIG", help="as for tools.train")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="as for tools.train")
    parser.add_argument("--initial-weights", type=Path, metavar="DIR", help="as for tools.train, in all trainings")
    parser.add_argument("--output", type=Path, metavar="DIR", help="one folder per training (default: run/CONFIG_table)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="as for tools.train, in all trainings")


def output_of(options):
    output = options.output or Path("run") / f"{Path(options.config).stem}_table"
    output.mkdir(parents=True, exist_ok=True)
    return output


def is_complete(output, settings, options):
    """Whether the folder holds a finished training with these settings. Others `tools.train --resume` continues or refuses."""
    experiment = apply_overrides(load_config(options.config), [*options.set, *settings])
    config = runs.config_of(experiment, options.data_dir, options.initial_weights)
    return (output / "summary.json").is_file() and not changes(config, output)


def train(name, settings, options):
    """The summary of the training of that name, which is run if it is not complete, and says itself how far it is."""
    output = output_of(options) / name
    if not is_complete(output, settings, options):
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", "tools.train", options.config, "--output", str(output), "--resume"]
        for option in ("data_dir", "initial_weights"):
            if (value := getattr(options, option)) is not None:
                command += [f"--{option.replace('_', '-')}", str(value)]
        # Those for all come first: those of one training are what it is about.
        for setting in [*options.set, *settings]:
            command += ["--set", setting]
        subprocess.run(command, check=True)
    return json.loads((output / "summary.json").read_text())


def write_table(lines, options):
    """Writes and prints a table."""
    text = "\n".join(lines)
    (output_of(options) / "table.txt").write_text(text + "\n")
    print(text)
