"""VRGD beside its baselines, as one table: python -m tools.vrgd_table cifar10_vrgd_small --data-dir DIR; see --help.

For each optimizer and batch size three trainings: without VRGD, with it, and without it at the rate times VRGD's mean
multiplier, as VRGD shortens steps beside choosing among them. What is shown is the headline of the task after the last epoch,
and beside it, where the task knows it, what the best possible model reaches.
"""

import subprocess

from configs.experiment import DECAYS_BY_ITSELF
from tools import trainings
from tools.command_line import Parser
from tools.overrides import apply_overrides
from tools.train import load_config

# At a batch of the config's reference size; of the optimizer that the config names, its own rate is taken. Those of LARS and
# momentum are measured choices, those of SGD and Adam are Keras's defaults, LAMB's is ten times Adam's: nobody has tuned them.
LEARNING_RATES = {"sgd": 1e-2, "momentum": 0.1, "adam": 1e-3, "lamb": 1e-2, "lars": 5.0}
GAMMA = 0.1
TRAININGS = ("plain", "VRGD", "shorter")
SET_BY_THE_TABLE = ("policy", "optimizer", "learning_rate", "vrgd_gamma")


def common(optimizer, batch_size, options):
    """What is set in the three trainings of a line. The decay goes to where the optimizer has it."""
    experiment = apply_overrides(load_config(options.config), options.set)
    # One of them is 0.
    decay, by_itself = experiment.l2 + experiment.weight_decay, optimizer in DECAYS_BY_ITSELF
    return [
        f"optimizer={optimizer}",
        f"policy=FixedBatch(batch_size={batch_size})",
        f"l2={0.0 if by_itself else decay}",
        f"weight_decay={decay if by_itself else 0.0}",
        "vrgd_gamma=0.0",
    ]


def row(optimizer, batch_size, options):
    """Three trainings as one line of the table."""
    rate, settings, name = options.rates[optimizer], common(optimizer, batch_size, options), f"{optimizer}_{batch_size}"
    plain = trainings.train(f"{name}_plain", [*settings, f"learning_rate={rate}"], options)
    vrgd = trainings.train(f"{name}_vrgd", [*settings, f"learning_rate={rate}", f"vrgd_gamma={GAMMA}"], options)
    multiplier = vrgd["vrgd_multiplier"]
    if multiplier is None:
        folder = trainings.output_of(options) / f"{name}_vrgd"
        raise ValueError(f"{folder} has measured no multiplier, as it was resumed: remove it, and repeat")
    shorter = trainings.train(f"{name}_shorter", [*settings, f"learning_rate={rate * multiplier:.6g}"], options)
    reached = [shown(summary[options.headline], options.headline) for summary in (plain, vrgd, shorter)]
    seconds = "  ".join(f"{summary['seconds']:5.0f}" for summary in (plain, vrgd, shorter))
    measures = "  ".join(map(str.ljust, [*reached, *ceiling_of(options)], widths(options)))
    return f"{optimizer:9} {batch_size:6,} {vrgd['updates']:8,}  {measures}  {multiplier:10.2f}  {seconds}"


def ceiling_of(options):
    return [] if options.ceiling is None else [shown(options.ceiling, options.headline)]


def shown(value, headline):
    return f"{100 * value:5.1f} %" if headline == "accuracy" else f"{value:.4f}"


def columns(options):
    """The names of the columns of measures: what is in per cent is an accuracy, anything else is named."""
    of_trainings = [name if options.headline == "accuracy" else f"{name} {options.headline}" for name in TRAININGS]
    return of_trainings if options.ceiling is None else [*of_trainings, "ceiling"]


def widths(options):
    return [max(len(name), len("100.0 %")) for name in columns(options)]


def header(options):
    return f"optimizer  batch  updates  {'  '.join(map(str.ljust, columns(options), widths(options)))}  multiplier  seconds"


def parse_rates(text, config):
    """Learning rates by optimizer, as --rates gives them; else the config's own, and LEARNING_RATES for other optimizers."""
    rates = dict(LEARNING_RATES)
    if config.optimizer in rates:
        rates[config.optimizer] = config.learning_rate
    for pair in filter(None, text.split(",")):
        name, _, rate = pair.partition("=")
        if name not in LEARNING_RATES or not is_number(rate, float):
            raise ValueError(f"--rates {pair}: expected {', '.join(LEARNING_RATES)}, each with =RATE")
        rates[name] = float(rate)
    return rates


def parse_sizes(text):
    sizes = text.split(",")
    if wrong := [size for size in sizes if not is_number(size, int)]:
        raise ValueError(f"--batch-sizes {', '.join(wrong)}: expected whole numbers, such as 256,1024")
    return [int(size) for size in sizes]


def is_number(text, kind):
    try:
        kind(text)
    except ValueError:
        return False
    return True


def check(optimizers, sizes, options):
    """The task of the trainings.

    Raises:
        ValueError: If one of them could not begin, or its headline could not be shown.
    """
    if unknown := [name for name in optimizers if name not in LEARNING_RATES]:
        raise ValueError(f"--optimizers {', '.join(unknown)}: expected some of {', '.join(LEARNING_RATES)}")
    if taken := [text for text in options.set if text.partition("=")[0].partition(".")[0] in SET_BY_THE_TABLE]:
        raise ValueError(
            f"--set {', '.join(taken)}: the table sets {', '.join(SET_BY_THE_TABLE)} itself; see --optimizers, --batch-sizes, "
            "--rates"
        )
    experiment = load_config(options.config)
    task = apply_overrides(experiment, options.set).task
    if not task.higher_is_better:
        raise ValueError(f"{options.config} is judged by {task.headline}: expected a measure of which more is better")
    task.check_data(options.data_dir)
    for optimizer in optimizers:
        for size in sizes:
            rate = f"learning_rate={options.rates[optimizer]}"
            apply_overrides(experiment, [*options.set, *common(optimizer, size, options), rate, f"vrgd_gamma={GAMMA}"])
    return task


def parse_arguments(arguments):
    parser = Parser(prog="tools.vrgd_table", description=__doc__.splitlines()[0])
    trainings.add_arguments(parser)
    parser.add_argument("--optimizers", default="momentum,lars", metavar="NAMES", help=f"of {', '.join(LEARNING_RATES)}")
    parser.add_argument("--batch-sizes", default="256,1024,4096", metavar="NUMBERS", help="default: 256,1024,4096")
    said = ",".join(f"{name}={rate:g}" for name, rate in LEARNING_RATES.items())
    said = f"at the reference batch size (default: CONFIG's for its own optimizer; {said})"
    parser.add_argument("--rates", default="", metavar="NAME=RATE,...", help=said)
    return parser, parser.parse_args(arguments)


def main(arguments=None):
    parser, options = parse_arguments(arguments)
    try:
        optimizers, sizes = options.optimizers.split(","), parse_sizes(options.batch_sizes)
        options.rates = parse_rates(options.rates, load_config(options.config))
        task = check(optimizers, sizes, options)
        options.headline, options.ceiling = task.headline, task.ceiling(options.data_dir)
        rows = [row(optimizer, size, options) for optimizer in optimizers for size in sizes]
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        parser.error(str(error))
    trainings.write_table([header(options), *rows], options)


if __name__ == "__main__":
    main()
