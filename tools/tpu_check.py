"""Compiles a training for a TPU that is not there: python -m tools.tpu_check CONFIG --topology v5e:2x4; see --help.

Says whether the programs of an update compile, what memory a core needs, which collectives they run among which cores, and what
that sends, beside plain training. Nothing is run: neither numbers nor speed are looked at.
"""

import contextlib
import json
import sys
from pathlib import Path

from tools.command_line import Parser
from tools.overrides import apply_overrides
from tools.tpu import compiler
from tools.train import choose_keras, load_config, load_module

LIMITS = (
    "A program that compiles here compiles there, with these collectives and in this memory. Nothing is said about speed or "
    "numbers; the input pipeline and TensorFlow's own distribution of programs over a TPU are not in it."
)
UNOPTIMISED = "Compiled without optimisation: nothing is said about memory, and collectives may differ."
DEFAULT_MICRO_BATCH_SIZE = 8


def parse_arguments(arguments):
    parser = Parser(prog="tools.tpu_check", description="Compiles the training of CONFIG for a TPU that is not there.")
    parser.add_argument(
        "config", metavar="CONFIG",
        help="a name in configs/, or a .py file with get_config(), or one with get_training() as those in tools/tpu_programs/"
    )  # fmt: skip
    parser.add_argument("--topology", required=True, metavar="NAME", help="v2:2x2, v3:2x2, v4:2x2x1, v5e:2x4, v6e:2x4, ...")
    parser.add_argument(
        "--micro-batch-size", type=int, metavar="N",
        help=f"examples per core in a micro-step (default: the config's own; {DEFAULT_MICRO_BATCH_SIZE} with get_training)"
    )  # fmt: skip
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="replaces a field of the experiment")
    parser.add_argument("--find-max", action="store_true", help="also look for the largest micro-batch that fits")
    parser.add_argument("--fast", action="store_true", help="compile without optimisation: seconds, but no word on memory")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser, parser.parse_args(arguments)


def check(args):
    if not args.topology:
        raise ValueError("--topology is empty: expected a name such as v5e:2x4")
    if args.micro_batch_size is not None and args.micro_batch_size < 1:
        raise ValueError(f"--micro-batch-size {args.micro_batch_size}: expected 1 or more")
    if args.fast and args.find_max:
        raise ValueError("--find-max needs the memory of optimised programs: leave out --fast")
    compiler.library()


def say(line):
    print(line, file=sys.stderr, flush=True)


def get_training(path):
    """The function of that name in a file, or None."""
    if not path.endswith(".py") or not Path(path).is_file():
        return None
    return getattr(load_module(Path(path)), "get_training", None)


def made_training(args, strategy):
    """(model, callback, spec of a micro-batch, its size) in the scope of the strategy."""
    from tools import building

    function = get_training(args.config)
    if function is not None:
        if args.set:
            raise ValueError(f"--set {args.set[0]}: {args.config} is no experiment; change the file")
        with strategy.scope():
            model, adaptive, spec = function()
        return model, adaptive, spec, args.micro_batch_size or DEFAULT_MICRO_BATCH_SIZE
    experiment = apply_overrides(load_config(args.config), args.set)
    with strategy.scope():
        model = building.model(experiment, building.EXAMPLES_WITHOUT_DATA)
    size = args.micro_batch_size or experiment.micro_batch_size
    return model, building.callback(experiment), experiment.task.element_spec, size


def measure(args):
    # Only now is TensorFlow imported, with the one Keras that TPUs are supported under.
    choose_keras("tf_keras")
    from tf_simigrad.compat import tpu_description
    from tools.strategies import versions
    from tools.tpu import largest, measurement
    from tools.tpu.programs import Training

    cores = compiler.cores(args.topology)
    strategy = tpu_description.described_strategy(cores, large="memory")
    model, adaptive, spec, size = made_training(args, strategy)

    def training(size):
        return Training(strategy, model, adaptive, spec(size))

    first = training(size)
    say(f"{args.config}: {model.count_params():,} parameters, {cores} cores, {size} examples per core and micro-step")
    result = {"config": args.config, "topology": args.topology, "micro_batch_size": size, "optimised": not args.fast}
    result |= measurement.measure(first, args.topology, cores, not args.fast, say)
    if args.find_max and "error" not in result["programs"]["update"]:
        fits = measurement.fits_beside(result, size, training, args.topology, say)
        result["largest_micro_batch_size"] = largest.largest(fits, size)
    return {**result, **versions(), "libtpu": compiler.version()}


def main(arguments=None):
    parser, args = parse_arguments(arguments)
    try:
        check(args)
        # Nothing but the result may reach the standard output.
        with contextlib.redirect_stdout(sys.stderr):
            result = measure(args)
    except (ValueError, ImportError, OSError) as error:
        parser.error(str(error))
    if args.json:
        print(json.dumps(result))
    else:
        from tools.tpu import report

        print(report.text(result))
        if args.fast:
            print(UNOPTIMISED)
        print(LIMITS)
    if not result["compiles"] or not result.get("memory", {}).get("fits", True):
        sys.exit(1)


if __name__ == "__main__":
    main()
