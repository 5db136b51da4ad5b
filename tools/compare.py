"""An adaptive training beside one with the fixed batch of its mean size: python -m tools.compare CONFIG; see --help.

Both see the same examples as often. With --grid instead one training for each combination of settings.
"""

import argparse
import itertools
import subprocess

from tools import trainings
from tools.command_line import Parser
from tools.overrides import apply_overrides
from tools.train import load_config

HEADER = ("run", "", "best", "updates", "mean batch", "largest", "off bounds", "changes", "seconds")


def cells(name, summary, headline):
    share = summary["updates_off_bounds"]
    return (
        name,
        f"{summary[headline]:.4g}",
        f"{summary[f'best_{headline}']:.4g}",
        f"{summary['updates']:,}",
        f"{summary['mean_batch_size']:,.0f}",
        f"{summary['max_batch_size']:,}",
        "-" if share is None else f"{100 * share:.0f} %",
        f"{summary['batch_changes']:,}",
        f"{summary['seconds']:,.0f}",
    )


def aligned(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def beside_fixed(options):
    """The adaptive training, the one with the batch of its mean size, and those with the sizes that are asked for."""
    adaptive = trainings.train("adaptive", [], options)
    found = [("adaptive", adaptive)]
    # What is set of the adaptive policy, a fixed batch does not have.
    of_all = argparse.Namespace(**{**vars(options), "set": [text for text in options.set if not text.startswith("policy")]})
    for size in [round(adaptive["mean_batch_size"]), *options.fixed]:
        found.append((f"fixed {size:,}", trainings.train(f"fixed_{size}", fixed(size), of_all)))
    return found


def fixed(size):
    return [f"policy=FixedBatch(batch_size={size})"]


def over_grid(grid):
    """Every combination of the settings of a grid: its name, and what is set."""
    choices = []
    for axis in grid:
        name, equals, values = axis.partition("=")
        if not equals or not values:
            raise ValueError(f"--grid {axis}: expected name=value,value,...")
        choices.append([f"{name}={value}" for value in values.split(",")])
    combinations = [list(settings) for settings in itertools.product(*choices)]
    return [("_".join(setting.removeprefix("policy.") for setting in settings), settings) for settings in combinations]


def parse_arguments(arguments):
    parser = Parser(prog="tools.compare", description=__doc__.splitlines()[0])
    trainings.add_arguments(parser)
    parser.add_argument("--fixed", type=int, nargs="*", default=[], metavar="N", help="further fixed batch sizes")
    parser.add_argument("--grid", action="append", default=[], metavar="NAME=V,V", help="a setting and its values; repeatable")
    return parser, parser.parse_args(arguments)


def check(grid, options):
    """The measure by which the trainings are compared.

    Raises:
        ValueError: If one of them could not begin, or if they are not all judged by the same.
    """
    if grid and options.fixed:
        raise ValueError("--fixed is beside an adaptive training: leave it out, or --grid")
    config = load_config(options.config)
    experiments = [apply_overrides(config, [*options.set, *settings]) for _, settings in grid or [("adaptive", [])]]
    for size in options.fixed:
        apply_overrides(experiments[0], fixed(size))
    headlines = sorted({experiment.task.headline for experiment in experiments})
    if len(headlines) > 1:
        raise ValueError(f"--grid: some trainings are judged by {', others by '.join(headlines)}: compare one kind of task")
    return headlines[0]


def main(arguments=None):
    parser, options = parse_arguments(arguments)
    try:
        grid = over_grid(options.grid) if options.grid else []
        headline = check(grid, options)
        found = [(name, trainings.train(name, settings, options)) for name, settings in grid] or beside_fixed(options)
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        parser.error(str(error))
    rows = [(HEADER[0], headline, *HEADER[2:]), *(cells(name, summary, headline) for name, summary in found)]
    trainings.write_table(aligned(rows), options)


if __name__ == "__main__":
    main()
