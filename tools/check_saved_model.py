"""Checks that a run's SavedModel serves without tf_simigrad: python -m tools.check_saved_model RUN.

A fresh process, in which tf_simigrad cannot be imported, loads RUN/saved_model, calls its serving signature on the inputs
of RUN/serving_check.npz and compares with the predictions that the trained model made of them.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-5
FRESH = "--in-fresh-process"


def check(run):
    sys.modules["tf_simigrad"] = None
    import numpy as np
    import tensorflow as tf

    with np.load(run / "serving_check.npz") as arrays:
        inputs, predictions = arrays["inputs"], arrays["predictions"]
    serve = tf.saved_model.load(str(run / "saved_model")).signatures["serving_default"]
    (input_name,) = serve.structured_input_signature[1]
    (served,) = serve(**{input_name: tf.constant(inputs)}).values()
    difference = float(np.max(np.abs(served.numpy() - predictions)))
    verdict = "equal" if difference <= TOLERANCE else "NOT EQUAL"
    print(f"{run}: {len(inputs)} predictions without tf_simigrad: {verdict}, largest difference {difference:.2g}")
    return 0 if difference <= TOLERANCE else 1


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="tools.check_saved_model", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder that tools.train wrote")
    parser.add_argument(FRESH, action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    missing = [name for name in ("saved_model", "serving_check.npz") if not (args.run / name).exists()]
    if missing:
        print(
            f"tools.check_saved_model: error: {args.run} holds no finished run: {', '.join(missing)} missing", file=sys.stderr
        )
        return 2
    if args.in_fresh_process:
        return check(args.run)
    command = [sys.executable, "-m", "tools.check_saved_model", FRESH, str(args.run.resolve())]
    return subprocess.run(command, cwd=ROOT, env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}).returncode


if __name__ == "__main__":
    sys.exit(main())
