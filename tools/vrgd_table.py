"""VRGD beside its baselines, as one table: python -m tools.vrgd_table --data-dir DIR; see --help.

For each optimizer and batch size three trainings of configs/cifar10_vrgd.py: without VRGD, with it, and without it at the rate
times VRGD's mean multiplier, as VRGD shortens steps beside choosing among them. What is complete in the output folder is kept.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

LEARNING_RATES = {"momentum": 0.1, "lars": 5.0}
BATCH_SIZES = (256, 1024, 4096)
GAMMA = 0.1


def train(name, settings, options):
    """The summary of the training of that name, which is run if it is not there."""
    output = options.output / name
    if not (output / "summary.json").is_file():
        print(name, flush=True)
        command = [sys.executable, "-m", "tools.train", "cifar10_vrgd", "--output", str(output)]
        command += ["--data-dir", str(options.data_dir)] if options.data_dir else []
        for setting in [*settings, *options.set]:
            command += ["--set", setting]
        with (options.output / f"{name}.log").open("w") as log:
            subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    return json.loads((output / "summary.json").read_text())


def row(optimizer, batch_size, options):
    """Three trainings as one line of the table."""
    rate = LEARNING_RATES[optimizer]
    common = [f"optimizer={optimizer}", f"policy=FixedBatch(batch_size={batch_size})"]
    name = f"{optimizer}_{batch_size}"
    plain = train(f"{name}_plain", [*common, f"learning_rate={rate}"], options)
    vrgd = train(f"{name}_vrgd", [*common, f"learning_rate={rate}", f"vrgd_gamma={GAMMA}"], options)
    multiplier = vrgd["vrgd_multiplier"]
    shorter = train(f"{name}_shorter", [*common, f"learning_rate={rate * multiplier:.6g}"], options)
    accuracies = "  ".join(f"{100 * found['accuracy']:5.1f} %" for found in (plain, vrgd, shorter))
    seconds = "  ".join(f"{found['seconds']:5.0f}" for found in (plain, vrgd, shorter))
    return f"{optimizer:9} {batch_size:6,} {vrgd['updates']:8,}  {accuracies}  {multiplier:10.2f}  {seconds}"


def main():
    parser = argparse.ArgumentParser(prog="tools.vrgd_table", description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="holds CIFAR-10 (default: Keras downloads it)")
    parser.add_argument("--output", type=Path, default=Path("run/cifar10_vrgd"), metavar="DIR", help="one folder per training")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="as for tools.train, in all trainings")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    rows = [row(optimizer, size, options) for optimizer in LEARNING_RATES for size in BATCH_SIZES]
    header = "optimizer  batch  updates  plain    VRGD     shorter  multiplier  seconds"
    table = "\n".join([header, *rows])
    (options.output / "table.txt").write_text(table + "\n")
    print(table)


if __name__ == "__main__":
    main()
