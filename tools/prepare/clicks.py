"""Generated click logs in Criteo's layout, for tools.prepare_data criteo, with the AUC that no model can beat on average."""

import json
import time
from pathlib import Path

import numpy as np

from models import clicks
from tools.progress import Progress

CEILING = "ceiling.json"
MEANING = (
    "expected_auc and expected_loss are those of the true probabilities, over the labels that might have been drawn for the "
    "lines of validation.tsv: no model beats them on average. empirical_auc is that of the true probabilities on the labels "
    "that were drawn; a model may beat either by chance."
)


def add_arguments(parser):
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="for train.tsv, validation.tsv, ceiling.json")
    parser.add_argument("--examples", type=int, required=True, metavar="N", help="lines for training")
    parser.add_argument("--validation-examples", type=int, required=True, metavar="N", help="lines for validation")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of everything; default: %(default)s")
    largest = "categories of the column that has most, the smallest has 4; default: %(default)s"
    parser.add_argument("--largest-vocabulary", type=int, default=20_000, metavar="N", help=largest)


def prepare(args):
    started = time.monotonic()
    # For an AUC there have to be two.
    for name, least in (("examples", 1), ("validation_examples", 2), ("seed", 0)):
        if getattr(args, name) < least:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: expected {least} or more")
    distribution = clicks.Clicks(args.seed, args.largest_vocabulary)
    args.output.mkdir(parents=True, exist_ok=True)
    # The last one to be written: where it is, the rest is whole.
    (args.output / CEILING).unlink(missing_ok=True)
    with Progress("generating", args.examples + args.validation_examples, "lines") as progress:
        for split, examples in (("train", args.examples), ("validation", args.validation_examples)):
            # The seeds of the splits differ by their first number.
            seed = [args.seed, 2 + (split == "validation")]
            probabilities, labels = write(distribution, seed, examples, args.output / f"{split}.tsv", progress)
    found = ceiling(probabilities, labels)
    settings = {"seed": args.seed, "vocabularies": list(distribution.vocabularies)}
    (args.output / CEILING).write_text(json.dumps({"meaning": MEANING, **found, **settings}, indent=2) + "\n")
    print(
        f"{args.output}: {args.examples:,} lines for training, {args.validation_examples:,} for validation, of which "
        f"{found['clicks'] / found['examples']:.1%} are clicks; no model's AUC is above {found['expected_auc']:.5f} on "
        f"average; {time.monotonic() - started:.0f} s"
    )


def write(distribution, seed, examples, path, progress):
    """Writes the lines of a split, and returns the probabilities and the labels of them all."""
    probabilities, labels = [], []
    with open(path, "wb") as file:
        for drawn in distribution.batches(seed, examples):
            file.write(distribution.lines(drawn))
            probabilities.append(drawn.probabilities)
            labels.append(drawn.labels)
            progress.add(len(drawn.labels))
    return np.concatenate(probabilities), np.concatenate(labels)


def ceiling(probabilities, labels):
    """What `MEANING` tells; the empirical AUC is None where the labels are all the same."""
    from sklearn.metrics import roc_auc_score

    both = 0 < labels.sum() < len(labels)
    return {
        "examples": len(labels),
        "clicks": int(labels.sum()),
        "empirical_auc": float(roc_auc_score(labels, probabilities)) if both else None,
        "expected_auc": clicks.expected_auc(probabilities),
        "expected_loss": clicks.expected_loss(probabilities),
    }
