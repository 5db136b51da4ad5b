"""Accumulated and replicated training takes the steps of plain training on the large batch."""

import numpy as np
import pytest

import tf_simigrad as sg
from tests.policies import Cycle

MICRO_BATCH = 4
MICRO_STEPS = (1, 3, 2, 5)  # in turn, five rounds: 20 updates
BASE_RATE = 0.05

OPTIMIZERS = {
    "sgd": (lambda k: k.optimizers.SGD(BASE_RATE), 1e-6),
    "momentum": (lambda k: k.optimizers.SGD(BASE_RATE, momentum=0.9), 1e-6),
    "nesterov_clipped": (lambda k: k.optimizers.SGD(BASE_RATE, momentum=0.9, nesterov=True, global_clipnorm=0.3), 1e-6),
    "adam": (lambda k: k.optimizers.Adam(BASE_RATE / 10), 1e-5),
    "adamw": (lambda k: k.optimizers.AdamW(BASE_RATE / 10, weight_decay=0.1), 1e-5),
}


def build(keras):
    keras.utils.set_random_seed(7)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])


def compiled(keras, optimizer):
    model = build(keras)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def examples(count):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(count, 6)).astype("float32")
    return x, rng.integers(0, 3, size=count)


def weights_of_plain_training(keras, optimizer, x, y, batch_sizes):
    """Keras's own step on each large batch, its learning rate scaled by hand."""
    model = compiled(keras, optimizer)
    base, start = float(np.array(optimizer.learning_rate)), 0
    for size in batch_sizes:
        optimizer.learning_rate = base * (size / batch_sizes[0]) ** 0.5
        model.train_on_batch(x[start : start + size], y[start : start + size])
        start += size
    return model.get_weights()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_changing_batch_equals_plain_large_batches(tf, strategies, replicas, name):
    make, tolerance = OPTIMIZERS[name]
    unit = replicas * MICRO_BATCH
    batch_sizes = [unit * k for k in MICRO_STEPS] * 5
    x, y = examples(sum(batch_sizes))
    expected = weights_of_plain_training(tf.keras, make(tf.keras), x, y, batch_sizes)

    with strategies(replicas).scope():
        model = compiled(tf.keras, make(tf.keras))
    adaptive = sg.AdaptiveBatch(Cycle(tuple(batch_sizes[:4])), learning_rate_rule="sqrt")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(unit, drop_remainder=True)
    model.fit(dataset, epochs=1, verbose=0, callbacks=[adaptive])

    assert [r.batch_size for r in adaptive.history] == batch_sizes
    assert [r.micro_steps for r in adaptive.history] == list(MICRO_STEPS) * 5
    assert adaptive.traces == 1
    for ours, plain in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=0, atol=tolerance)
