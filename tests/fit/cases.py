"""Tiny models of every kind that ``fit`` takes, each with its data and compile arguments."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

FEATURES, CLASSES = 6, 3


def arrays(count, seed=3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, FEATURES)).astype("float32")
    return x, rng.integers(0, CLASSES, size=count).astype("int32")


def cross_entropy(keras):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sequential(keras):
    return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(CLASSES)])


def deferred(keras):
    """Has no variables before its first batch."""
    return keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(CLASSES)])


def subclassed(keras):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.head = keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(CLASSES)

        def call(self, inputs, training=False):
            return self.head(self.hidden(inputs))

    return Net()


def dict_inputs(keras):
    left, right = keras.Input((FEATURES,), name="left"), keras.Input((FEATURES,), name="right")
    joined = keras.layers.Concatenate()([left, right])
    return keras.Model({"left": left, "right": right}, keras.layers.Dense(CLASSES)(joined))


def with_dropout(keras):
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(8, activation="tanh"), layers.Dropout(0.5), layers.Dense(CLASSES)]
    )


def two_outputs(keras):
    inputs = keras.Input((FEATURES,))
    hidden = keras.layers.Dense(8, activation="tanh")(inputs)
    return keras.Model(inputs, [keras.layers.Dense(CLASSES, name="a")(hidden), keras.layers.Dense(1, name="b")(hidden)])


def with_add_loss(keras):
    class Penalty(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(0.1 * tf.reduce_mean(inputs**2))
            return inputs

    return keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(8, activation="tanh"), Penalty(), keras.layers.Dense(CLASSES)]
    )


def with_compute_loss(keras):
    class Net(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True))
            return 0.5 * loss / tf.distribute.get_strategy().num_replicas_in_sync

    inputs = keras.Input((FEATURES,))
    return Net(inputs, keras.layers.Dense(CLASSES)(inputs))


def embedded(keras):
    """Sparse gradients, in an integer input."""
    return keras.Sequential(
        [keras.Input((4,), dtype="int32"), keras.layers.Embedding(11, 5), keras.layers.Flatten(), keras.layers.Dense(CLASSES)]
    )


def unused_variable(keras):
    """A variable whose gradient is None."""

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.head, self.idle = keras.layers.Dense(CLASSES), keras.layers.Dense(2)

        def call(self, inputs, training=False):
            self.idle(inputs)
            return self.head(inputs)

    return Net()


@dataclass(frozen=True)
class Case:
    """A model, its data, and what ``compile`` and ``fit`` are given beside the optimizer."""

    build: Callable[[Any], Any]
    data: Callable[[int], tuple] = arrays
    loss: Callable[[Any], Any] = cross_entropy
    fit: dict = field(default_factory=dict)


def _dicts(count):
    x, y = arrays(count)
    return {"left": x, "right": x[:, ::-1].copy()}, y


def _two_targets(count):
    x, y = arrays(count)
    return x, (y, x[:, :1].copy())


def _targets_by_name(count):
    x, (a, b) = _two_targets(count)
    return x, {"a": a, "b": b}


def _integers(count):
    rng = np.random.default_rng(5)
    return rng.integers(0, 11, size=(count, 4)).astype("int32"), rng.integers(0, CLASSES, size=count).astype("int32")


def _weighted(count):
    return (*arrays(count), np.random.default_rng(9).uniform(0.1, 3.0, size=count).astype("float32"))


CASES = {
    "sequential": Case(sequential),
    "deferred": Case(deferred),
    "subclassed": Case(subclassed),
    "dict_inputs": Case(dict_inputs, _dicts),
    "two_outputs": Case(two_outputs, _two_targets, lambda k: [cross_entropy(k), "mse"]),
    "targets_by_name": Case(two_outputs, _targets_by_name, lambda k: {"a": cross_entropy(k), "b": "mse"}),
    "sample_weight": Case(sequential, _weighted),
    "class_weight": Case(sequential, fit={"class_weight": {0: 0.3, 1: 1.0, 2: 2.5}}),
    "add_loss": Case(with_add_loss),
    "compute_loss": Case(with_compute_loss),
    "embedding": Case(embedded, _integers),
    "unused_variable": Case(unused_variable),
}


def compiled(keras, case, optimizer, seed=7, **kwargs):
    keras.utils.set_random_seed(seed)
    model = case.build(keras)
    model.compile(optimizer, case.loss(keras), **kwargs)
    return model


def fit(model, data, **kwargs):
    """``fit`` on arrays, in order."""
    x, y, *rest = data
    weight = {"sample_weight": rest[0]} if rest else {}
    return model.fit(x, y, shuffle=False, verbose=0, **weight, **kwargs)


def assert_same_weights(left, right, tolerance=1e-6):
    for a, b in zip(left.get_weights(), right.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)
