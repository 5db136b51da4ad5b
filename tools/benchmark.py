"""What the callback costs, and whether the data keeps up: python -m tools.benchmark wire|overhead|rows|pipeline; see --help.

wire: bytes that one replica sends per update, counted in the traced graph of the update, over those that a ring all-reduce of
the gradient sends; with --workers, what as many real processes send by the counters of the loopback interface, over what they
send in plain fit. overhead: time per example of fit with the callback at a fixed batch size, over that of fit without it.
rows: time per example where the gradient of an embedding table stays rows, over that of the dense gradient.
pipeline: examples per second of an experiment's training data over those of its training step, and what fit makes of both.
Each prints one JSON object whose key "ratio" is the result; what happens meanwhile is said on the standard error stream.
"""

import contextlib
import json
import math
import sys
from pathlib import Path

from tools.command_line import Parser
from tools.overrides import apply_overrides
from tools.train import choose_keras, load_config

MIN_REPLICAS = {"wire": 2, "overhead": 1, "rows": 1, "pipeline": 1}


def parse_arguments(arguments):
    what = "What the callback costs, and whether the data keeps up, as one JSON object."
    parser = Parser(prog="tools.benchmark", description=what)
    commands = parser.add_subparsers(dest="command", required=True)
    wire = commands.add_parser("wire", help="bytes per update that one replica sends, over those of a ring all-reduce")
    wire.add_argument("--elements", type=int, default=2**22, metavar="N", help="of the gradient, at least (default: 16 MiB)")
    choices = ("none", "replicas", "micro_steps")
    wire.add_argument("--vrgd", choices=choices, default="none", help="with VRGD over these groups (default: none)")
    wire.add_argument("--workers", action="store_true", help="real processes, counted by the loopback interface (Linux)")
    wire.add_argument("--updates", type=int, default=20, metavar="N", help="counted with --workers (default: 20)")
    overhead = commands.add_parser("overhead", help="time per example, over that of plain fit")
    rows = commands.add_parser("rows", help="time per example with a table's gradient as rows, over the dense gradient")
    rows.add_argument("--table-rows", type=int, default=1_000_000, metavar="N", help="of the table (default: a million)")
    for paired, examples in ((overhead, 192), (rows, 2048)):
        paired.add_argument("--blocks", type=int, default=20, metavar="N", help="of each kind, in pairs (default: 20)")
        paired.add_argument("--steps", type=int, default=20, metavar="N", help="timed per block (default: 20)")
        said = f"per dataset element (default: {examples:,})"
        paired.add_argument("--examples", type=int, default=examples, metavar="N", help=said)
        paired.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of the blocks and the resampling")
    pipeline = commands.add_parser("pipeline", help="examples per second of the training data, over those of the step")
    pipeline.add_argument("config", metavar="CONFIG", help="as for tools.train")
    pipeline.add_argument("--data-dir", type=Path, metavar="DIR", help="as for tools.train")
    pipeline.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="as for tools.train")
    pipeline.add_argument("--blocks", type=int, default=10, metavar="N", help="of each of three kinds (default: 10)")
    timed = "of a block, after half as long a warm-up (default: 3)"
    pipeline.add_argument("--seconds", type=float, default=3.0, metavar="S", help=timed)
    for name, command in commands.choices.items():
        least, devices = MIN_REPLICAS[name], "logical CPU devices, or GPUs" if name == "pipeline" else "logical CPU devices"
        command.add_argument("--replicas", type=int, default=least, metavar="N", help=f"{devices} (default: {least})")
        command.add_argument("--keras", choices=("tf_keras", "keras3"), help="default: as TF_USE_LEGACY_KERAS says")
    return parser, parser.parse_args(arguments)


def micro_steps(replicas):
    """Dataset elements per update: one replica needs two of them to form two groups."""
    return 2 if replicas == 1 else 1


def check(args):
    least = {"elements": 1, "updates": 1, "blocks": 2, "steps": 1, "examples": 1, "seed": 0, "table_rows": 2}
    least["replicas"] = MIN_REPLICAS[args.command]
    for name, value in vars(args).items():
        if name in least and value < least[name]:
            raise ValueError(f"--{name.replace('_', '-')} {value}: expected {least[name]} or more")
    if args.command == "pipeline" and not (args.seconds > 0 and math.isfinite(args.seconds)):
        raise ValueError(f"--seconds {args.seconds}: expected a time, more than 0")
    if args.command == "wire" and args.workers and args.vrgd != "none":
        raise ValueError(f"--vrgd {args.vrgd}: counted in the traced graph only; leave out --workers")
    if args.command in ("overhead", "rows"):
        if args.examples % args.replicas:
            raise ValueError(f"--examples {args.examples}: expected a multiple of --replicas {args.replicas}")
        if args.steps % micro_steps(args.replicas):
            raise ValueError(f"--steps {args.steps}: expected an even number: with one replica an update takes two")


def experiment_of(args):
    """What is timed by "pipeline", its data found; None for the others, which have models of their own."""
    if args.command != "pipeline":
        return None
    experiment = apply_overrides(load_config(args.config), args.set)
    experiment.task.check_data(args.data_dir)
    return experiment


def make_strategy(replicas):
    """The default strategy for one replica, MirroredStrategy over logical CPU devices for more, GPUs or not."""
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    if replicas == 1:
        return tf.distribute.get_strategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def measure(args, experiment):
    # Only now is TensorFlow imported.
    from tools.strategies import versions

    if args.command == "pipeline":
        return {**measure_pipeline(args, experiment), "replicas": args.replicas, **versions()}
    if args.command == "wire" and args.workers:
        from tools import benchmark_wire_workers

        return {**benchmark_wire_workers.measure(args.replicas, args.elements, args.updates), **versions()}
    strategy = make_strategy(args.replicas)
    if args.command == "wire":
        from tools import benchmark_wire

        result = benchmark_wire.measure(strategy, args.elements, args.vrgd)
    else:
        from tools import benchmark_overhead, benchmark_rows

        common = (strategy, micro_steps(args.replicas), args.blocks, args.steps, args.examples, args.seed)
        rows = args.command == "rows"
        result = benchmark_rows.measure(*common, args.table_rows) if rows else benchmark_overhead.measure(*common)
    return {**result, "replicas": args.replicas, **versions()}


def measure_pipeline(args, experiment):
    from tools import benchmark_pipeline, strategies

    # Unlike the others on what a training would run on.
    strategy = strategies.make_strategy("default" if args.replicas == 1 else "mirrored", args.replicas)
    return benchmark_pipeline.measure(strategy, experiment, experiment.task.load(args.data_dir), args.blocks, args.seconds)


def main(arguments=None):
    parser, args = parse_arguments(arguments)
    try:
        check(args)
        experiment = experiment_of(args)
        choose_keras(args.keras, only=experiment and experiment.task.only_keras)
        # Nothing but the result may reach the standard output.
        with contextlib.redirect_stdout(sys.stderr):
            result = measure(args, experiment)
    except (ValueError, ImportError, OSError) as error:
        parser.error(str(error))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
