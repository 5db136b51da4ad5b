"""Full-size experiments are built, traced and counted without data, and without memory for their weights."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from models.criteo import TERABYTE_TABLES
from tools import train

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.one_keras


def dry_run(*arguments):
    command = [sys.executable, "-m", "tools.train", *arguments, "--dry-run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    parameters, trained = re.search(r"parameters: ([\d,]+), ([\d,]+) of them trained", done.stdout).groups()
    flop = re.search(r"an example: ([\d.]+) (\w+), forward and backward", done.stdout).groups()
    return int(parameters.replace(",", "")), int(trained.replace(",", "")), float(flop[0]), flop[1]


@pytest.mark.slow
def test_bert_large():
    """Against the formulas of the transformer: a forward pass and twice as much backward."""
    parameters, trained, flop, unit = dry_run("bert_large_pretrain")
    hidden, inner, layers, vocabulary, length, predictions = 1024, 4096, 24, 30_522, 128, 20
    embeddings = (vocabulary + 512 + 2) * hidden + 2 * hidden
    layer = 4 * (hidden**2 + hidden) + 2 * hidden * inner + inner + hidden + 4 * hidden
    pooler = hidden**2 + hidden
    words = hidden**2 + hidden + 2 * hidden + vocabulary
    sentences = hidden**2 + hidden + 2 * hidden + 2
    assert parameters == trained == embeddings + layers * layer + pooler + words + sentences
    products = layers * (length * (4 * hidden**2 + 2 * hidden * inner) + 2 * length**2 * hidden)
    heads = predictions * (hidden**2 + vocabulary * hidden) + hidden**2 + 2 * hidden
    # Types of tokens are looked up by a product too: less than a thousandth.
    assert unit == "GFLOP"
    assert flop == pytest.approx(6 * (products + heads) / 1e9, rel=2e-3)


def test_dlrm():
    """3.46 billion parameters, nearly all of them rows of tables, which no memory of this machine would hold trained."""
    parameters, trained, flop, unit = dry_run("dlrm_criteo")
    rows, vector = sum(TERABYTE_TABLES), 64
    bottom, top = (13, 512, 256, vector), (vector + 27**2, 1024, 1024, 512, 256, 1)
    layers = [*pairwise(bottom), *pairwise(top)]
    assert parameters == trained == rows * vector + sum(before * after + after for before, after in layers)
    # Of the 13 dense features, which are data, no gradient is needed.
    products = 3 * sum(before * after for before, after in layers) - 13 * 512
    interactions = 3 * 27**2 * vector
    assert unit == "MFLOP"
    assert flop == pytest.approx(2 * (products + interactions) / 1e6, rel=5e-3)


@pytest.mark.slow
def test_resnet50():
    """As many parameters as the literature counts; 4.09 billion products in the forward pass, and twice as many backward."""
    parameters, trained, flop, unit = dry_run("imagenet_resnet50")
    assert trained == 25_557_032
    assert parameters == trained + 2 * 26_560  # moving statistics of as many channels
    first = 112**2 * 7**2 * 3 * 64  # whose input, the image, needs no gradient
    assert unit == "GFLOP"
    assert flop == pytest.approx(2 * (3 * 4.089 - first / 1e9), rel=5e-3)


@pytest.mark.parametrize(
    ("config", "network"),
    [
        ("bert_large_pretrain_vrgd", "task.encoder=tiny"),
        ("bert_squad", "task.encoder=tiny"),
        ("cifar10_simigrad", "task.network=resnet18"),
        ("imagenet_resnet50_vrgd", "task.depth=10"),
    ],
)
def test_others_are_traced(config, network):
    parameters, trained, flop, _ = dry_run(config, "--set", network)
    assert parameters >= trained > 10_000 and flop > 0


@pytest.mark.slow
@pytest.mark.parametrize("config", ["bert_large_pretrain_phase2", "bert_large_pretrain_vrgd", "bert_squad", "cifar10_vrgd",
                                    "imagenet_resnet50_vrgd"])  # fmt: skip
def test_the_others_at_full_size(config):
    assert dry_run(config)[0] > (300_000_000 if config.startswith("bert") else 800_000)


def test_keras3_is_refused(capsys):
    with pytest.raises(SystemExit):
        train.main(["cifar10_simigrad", "--dry-run", "--keras", "keras3"])
    assert "--keras keras3: --dry-run" in capsys.readouterr().err
