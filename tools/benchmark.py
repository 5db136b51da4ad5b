"""What the callback costs beside plain fit: python -m tools.benchmark wire|overhead [options]; see --help.

wire: bytes that one replica sends per update, counted in the traced graph of the update, over those that a ring all-reduce of
the gradient sends; with --workers, what as many real processes send by the counters of the loopback interface, over what they
send in plain fit. overhead: time per example of fit with the callback at a fixed batch size, over that of fit without it.
Each prints one JSON object whose key "ratio" is the result; what happens meanwhile is said on the standard error stream.
"""

import contextlib
import json
import sys

from tools.command_line import Parser
from tools.train import choose_keras

MIN_REPLICAS = {"wire": 2, "overhead": 1}


def parse_arguments(arguments):
    parser = Parser(prog="tools.benchmark", description="What the callback costs beside plain fit, as one JSON object.")
    commands = parser.add_subparsers(dest="command", required=True)
    wire = commands.add_parser("wire", help="bytes per update that one replica sends, over those of a ring all-reduce")
    wire.add_argument("--elements", type=int, default=2**22, metavar="N", help="of the gradient, at least (default: 16 MiB)")
    choices = ("none", "replicas", "micro_steps")
    wire.add_argument("--vrgd", choices=choices, default="none", help="with VRGD over these groups (default: none)")
    wire.add_argument("--workers", action="store_true", help="real processes, counted by the loopback interface (Linux)")
    wire.add_argument("--updates", type=int, default=20, metavar="N", help="counted with --workers (default: 20)")
    overhead = commands.add_parser("overhead", help="time per example, over that of plain fit")
    overhead.add_argument("--blocks", type=int, default=20, metavar="N", help="of each kind, in pairs (default: 20)")
    overhead.add_argument("--steps", type=int, default=20, metavar="N", help="timed per block (default: 20)")
    overhead.add_argument("--examples", type=int, default=192, metavar="N", help="per dataset element (default: 192)")
    overhead.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of the blocks and the resampling")
    for name, command in (("wire", wire), ("overhead", overhead)):
        least = MIN_REPLICAS[name]
        command.add_argument("--replicas", type=int, default=least, metavar="N", help=f"logical CPU devices (default: {least})")
        command.add_argument("--keras", choices=("tf_keras", "keras3"), help="default: as TF_USE_LEGACY_KERAS says")
    return parser, parser.parse_args(arguments)


def micro_steps(replicas):
    """Dataset elements per update: one replica needs two of them to form two groups."""
    return 2 if replicas == 1 else 1


def check(args):
    least = {"elements": 1, "updates": 1, "blocks": 2, "steps": 1, "examples": 1, "seed": 0}
    least["replicas"] = MIN_REPLICAS[args.command]
    for name, value in vars(args).items():
        if name in least and value < least[name]:
            raise ValueError(f"--{name} {value}: expected {least[name]} or more")
    if args.command == "wire" and args.workers and args.vrgd != "none":
        raise ValueError(f"--vrgd {args.vrgd}: counted in the traced graph only; leave out --workers")
    if args.command == "overhead":
        if args.examples % args.replicas:
            raise ValueError(f"--examples {args.examples}: expected a multiple of --replicas {args.replicas}")
        if args.steps % micro_steps(args.replicas):
            raise ValueError(f"--steps {args.steps}: expected an even number: with one replica an update takes two")


def make_strategy(replicas):
    """The default strategy for one replica, MirroredStrategy over logical CPU devices for more, GPUs or not."""
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    if replicas == 1:
        return tf.distribute.get_strategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def measure(args):
    # Only now is TensorFlow imported.
    from tools.strategies import versions

    if args.command == "wire" and args.workers:
        from tools import benchmark_wire_workers

        return {**benchmark_wire_workers.measure(args.replicas, args.elements, args.updates), **versions()}
    strategy = make_strategy(args.replicas)
    if args.command == "wire":
        from tools import benchmark_wire

        result = benchmark_wire.measure(strategy, args.elements, args.vrgd)
    else:
        from tools import benchmark_overhead

        result = benchmark_overhead.measure(
            strategy, micro_steps(args.replicas), args.blocks, args.steps, args.examples, args.seed
        )
    return {**result, "replicas": args.replicas, **versions()}


def main(arguments=None):
    parser, args = parse_arguments(arguments)
    try:
        check(args)
        choose_keras(args.keras)
        # Nothing but the result may reach the standard output.
        with contextlib.redirect_stdout(sys.stderr):
            result = measure(args)
    except (ValueError, ImportError) as error:
        parser.error(str(error))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
