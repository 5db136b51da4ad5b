"""The programs of an update compile for every kind of TPU, among all cores, and send and hold no more than they should."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

import tf_simigrad as sg
from models import cifar_resnet
from tests.tpu.libtpu import CORES, TOPOLOGIES, needs_libtpu
from tf_simigrad.compat import keras_private, tpu_description
from tools.tpu import measurement, optimised
from tools.tpu.programs import LoweringError, Training, size_of
from tools.tpu_check import get_training

pytestmark = [
    pytest.mark.usefixtures("tf"),
    needs_libtpu,
    pytest.mark.skipif(keras_private.KERAS_3, reason="TPUStrategy is supported under tf_keras only"),
]

BERT = Path(__file__).resolve().parents[2] / "tools" / "tpu_programs" / "bert_tiny.py"


def resnet(pair, width, micro_batch_size):
    strategy = tpu_description.described_strategy(CORES)
    with strategy.scope():
        model = cifar_resnet.build("resnet8", width=width)
        optimizer, transform = pair
        model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    policy = sg.SimiGrad(target_similarity=0.2, min_batch_size=64, max_batch_size=4096)
    element = tf.TensorSpec([micro_batch_size, 32, 32, 3]), tf.TensorSpec([micro_batch_size], tf.int32)
    return Training(strategy, model, sg.AdaptiveBatch(policy, transform=transform), element)


def bert():
    strategy = tpu_description.described_strategy(CORES)
    with strategy.scope():
        model, adaptive, spec = get_training(str(BERT))()
    return Training(strategy, model, adaptive, spec(8))


def stays(program):
    """Bytes that are no temporaries."""
    return program["arguments"] + program["outputs"]


def lowered(training):
    """The two programs of an update, lowered once. The plain step is left out: it takes as long as both to compile."""

    def left_out():
        raise LoweringError("left out")

    micro_step, update = training.micro_step(), training.update()
    return SimpleNamespace(
        micro_step=lambda: micro_step, update=lambda: update, plain_step=left_out, gradient_bytes=training.gradient_bytes
    )


def checked(training, topology, optimise=False):
    """What is measured, after what holds on every TPU."""
    result = measurement.measure(training, topology, CORES, optimise)
    assert result["compiles"], result["programs"]
    for name in ("micro_step", "update"):
        for collective in result["programs"][name]["collectives"]:
            assert optimised.is_partition(collective["groups"], CORES) and len(collective["groups"]) == 1
    assert result["sent"]["micro_step"] < 100  # some metrics
    assert 1 <= result["sent"]["ratio"] <= 1.05
    return result


@pytest.fixture(scope="module")
def small_resnet():
    return lowered(resnet(sg.vr_lars(0.1, groups="replicas"), width=8, micro_batch_size=8))


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_vr_lars_on_a_resnet(small_resnet, topology):
    update = checked(small_resnet, topology)["programs"]["update"]
    assert {c["operation"] for c in update["collectives"]} == {"all-to-all", "all-gather", "all-reduce"}


@pytest.fixture
def float32_afterwards():
    policy = tf.keras.mixed_precision.global_policy()
    yield
    tf.keras.mixed_precision.set_global_policy(policy)


@pytest.mark.usefixtures("float32_afterwards")
def test_vr_lamb_on_bert_in_bfloat16():
    checked(lowered(bert()), "v5e:2x4")


def test_an_update_holds_one_more_gradient_than_plain_training():
    """Optimised, with gradients of 19 MB, so that one gradient more would be seen.

    The slack is for temporaries. With VRGD the update has 18 MB of them, and 10 MB where gradients have 0.08 MB (without VRGD
    none); plain training has 9 MB.
    """
    training = resnet(sg.vr_lamb(0.01, groups="replicas"), width=128, micro_batch_size=1)
    result = checked(training, "v5e:2x4", optimise=True)
    memory, programs, gradient = result["memory"], result["programs"], result["gradient_bytes"]
    state = sum(size_of(variable) for variable in training.parts.state)
    assert gradient > 18e6 and state == pytest.approx(gradient / CORES, rel=0.001), "in shards"
    assert memory["fits"]
    assert stays(programs["update"]) <= stays(programs["plain_step"]) + gradient + state
    assert memory["data"] <= memory["plain"]["data"] + gradient + state + 10e6
