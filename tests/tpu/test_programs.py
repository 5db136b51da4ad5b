"""The programs that TPU cores would run, run on CPU devices, take the steps of MirroredStrategy."""

import numpy as np
import pytest
import tensorflow as tf

import tf_simigrad as sg
from tests.fit.cases import CLASSES, FEATURES, arrays, cross_entropy
from tests.policies import Cycle
from tests.tpu.cores import Cores
from tf_simigrad.compat import keras_private, tpu_description
from tf_simigrad.train.update import INPUT_SPECS, REPORT

pytest.importorskip("jax", reason="needs jax, which runs on CPU devices what is compiled for TPU cores")
pytestmark = pytest.mark.skipif(keras_private.KERAS_3, reason="TPUStrategy is supported under tf_keras only")

MICRO_BATCH, MICRO_STEPS = 4, (2, 3, 2)


@pytest.fixture(scope="session", autouse=True)
def devices(tf):
    import jax

    jax.config.update("jax_num_cpu_devices", 8)


def network(keras):
    return keras.Sequential([
        keras.Input((FEATURES,)), keras.layers.Dense(8, use_bias=False), keras.layers.BatchNormalization(momentum=0.5),
        keras.layers.Activation("tanh"), keras.layers.Dense(CLASSES),
    ])  # fmt: skip


CASES = {
    "momentum": lambda k: (k.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.5), None),
    "adam_l2": lambda k: (k.optimizers.Adam(0.005), sg.L2(1e-3)),
    "vr_lars": lambda k: sg.vr_lars(0.5, weight_decay=1e-4),
    "vr_lamb": lambda k: sg.vr_lamb(0.01, groups="replicas"),
    "vr_adam": lambda k: sg.vr_adam(0.005),
}


def compiled(strategy, case):
    with strategy.scope():
        tf.keras.utils.set_random_seed(5)
        model = network(tf.keras)
        optimizer, transform = CASES[case](tf.keras)
        model.compile(optimizer, cross_entropy(tf.keras), metrics=["accuracy"])
    return model, transform


class TrainingOnCores:
    """A model whose programs are run by hand: what the host does otherwise is not under test."""

    def __init__(self, replicas, case, statistic="two_groups"):
        strategy = tpu_description.described_strategy(replicas)
        self.replicas, self.cores = replicas, Cores(strategy)
        self.model, transform = compiled(strategy, case)
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(8), statistic=statistic, transform=transform)
        element = (tf.TensorSpec([MICRO_BATCH, FEATURES]), tf.TensorSpec([MICRO_BATCH], tf.int32))
        self.parts = adaptive.train_parts(self.model, element)
        self.micro_step_program = self.cores.program(self.parts.step.accumulate, element, tf.TensorSpec([], tf.int32))
        self.update_program = self.cores.program(self.parts.step.update_program(), *INPUT_SPECS)

    def micro_step(self, x, y, slot):
        data = [a.reshape(self.replicas, MICRO_BATCH, *a.shape[1:]) for a in (x, y)]
        self.micro_step_program(*data, [np.int32(slot % 2)] * self.replicas)

    def update(self, multiplier, micro_steps):
        """What each core reports."""
        values = np.float32(multiplier), np.int64(0), np.int32(micro_steps)
        (vectors,) = self.update_program(*([value] * self.replicas for value in values))
        return vectors

    def values(self, variables):
        return [self.cores.value(v) for v in variables]


def train_on_cores(replicas, case, statistic, x, y):
    """The model's variables on each core, and what each update reports."""
    training, unit = TrainingOnCores(replicas, case, statistic), replicas * MICRO_BATCH
    reports, start = [], 0
    for count in MICRO_STEPS:
        for slot in range(count):
            training.micro_step(x[start : start + unit], y[start : start + unit], slot)
            start += unit
        reports.append(training.update((count / MICRO_STEPS[0]) ** 0.5, count))
    return training.values(training.model.variables), reports


@pytest.mark.parametrize(
    ("replicas", "case", "statistic"),
    [
        (4, "momentum", "two_groups"),
        (2, "momentum", "all_pairs"),
        (2, "adam_l2", "two_groups"),
        (3, "vr_lars", "two_groups_by_variable"),
        (4, "vr_lamb", "two_groups"),
        (2, "vr_adam", "two_groups"),
    ],
)
def test_cores_take_the_steps_of_mirrored_replicas(strategies, replicas, case, statistic):
    x, y = arrays(replicas * MICRO_BATCH * sum(MICRO_STEPS))
    found, reports = train_on_cores(replicas, case, statistic, x, y)

    model, transform = compiled(strategies(replicas), case)
    unit = replicas * MICRO_BATCH
    adaptive = sg.AdaptiveBatch(Cycle(tuple(unit * k for k in MICRO_STEPS)), statistic=statistic, transform=transform)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(unit, drop_remainder=True)
    model.fit(dataset, verbose=0, callbacks=[adaptive])

    for on_cores, expected in zip(found, model.get_weights(), strict=True):
        for on_core in on_cores:
            np.testing.assert_allclose(on_core, expected, rtol=0, atol=2e-6)
    assert [record.micro_steps for record in adaptive.history] == list(MICRO_STEPS)
    for record, vectors in zip(adaptive.history, reports, strict=True):
        for vector in vectors[1:]:
            np.testing.assert_array_equal(vector, vectors[0])
        said = dict(zip(REPORT, vectors[0], strict=False))
        assert said["examples"] == record.batch_size and said["finite"] == 1
        np.testing.assert_allclose(said["similarity"], record.similarity, atol=1e-5)
        np.testing.assert_allclose(said["effective_learning_rate"], record.effective_learning_rate, rtol=1e-6)


def test_a_gradient_that_is_not_finite_leaves_weights_optimizer_and_vrgd_alone():
    """The condition stands inside the program, around optimizer and VRGD."""
    replicas = 4
    training = TrainingOnCores(replicas, "vr_lamb")
    kept = [*training.model.trainable_variables, *training.model.optimizer.variables, *training.parts.state]
    x, y = arrays(2 * replicas * MICRO_BATCH)
    good, bad = np.split(x, 2)
    labels = y[: replicas * MICRO_BATCH]
    training.micro_step(good, labels, 0)
    training.update(1.0, 1)
    before = training.values(kept)
    bad[3 * MICRO_BATCH, 0] = np.inf  # on the last core alone
    training.micro_step(bad, labels, 0)
    vectors = training.update(1.0, 1)
    assert [vector[REPORT.index("finite")] for vector in vectors] == [0.0] * replicas
    for old, new in zip(before, training.values(kept), strict=True):
        np.testing.assert_array_equal(new, old)
    for pending in training.values(training.parts.accumulator.variables):
        np.testing.assert_array_equal(pending, np.zeros_like(pending))
