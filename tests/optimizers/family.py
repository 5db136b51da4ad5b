"""The optimizers that the shared tests run on, each with the arguments it is given and its oracle."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import tf_simigrad as sg
from tests import oracles


def lars(*args, **kwargs):
    return sg.LARS(*args, **kwargs)


def lamb(*args, **kwargs):
    return sg.LAMB(*args, **kwargs)


def adam(*args, **kwargs):
    from tf_simigrad.optimizers.adam import Adam

    return Adam(*args, **kwargs)


@dataclass(frozen=True)
class Member:
    """An optimizer, its arguments, and the oracle with the arguments as it calls them; decay is left out of those."""

    kind: Callable[..., Any]
    rate: float
    oracle: Callable[..., np.ndarray]
    decay: float
    arguments: dict = field(default_factory=dict)
    oracle_arguments: dict = field(default_factory=dict)

    def make(self, rate=None, **kwargs):
        """The optimizer; ``kwargs`` win over the member's own arguments."""
        rate = self.rate if rate is None else rate
        return self.kind(rate, **{"weight_decay": self.decay, **self.arguments, **kwargs})

    def expected(self, start, gradients, rates, decays=True, adapts=True, **kwargs):
        """The oracle's weights of one layer."""
        adapted = adapts and self.kind is not adam
        arguments = {**self.oracle_arguments, **kwargs}
        return self.oracle(start, gradients, rates, decay=self.decay * decays, adapted=adapted, **arguments)


_LARS = Member(lars, 0.1, oracles.lars_weights, 0.05, {"trust_coefficient": 0.02}, {"trust": 0.02})
_LAMB = Member(lamb, 5e-3, oracles.lamb_weights, 0.1)

FAMILY = {
    "lars": _LARS,
    "lars_nesterov": replace(
        _LARS,
        arguments={
            "trust_coefficient": 0.02, "nesterov": True, "momentum": 0.8, "epsilon": 0.01, "trust_ratio_bounds": (0.01, 0.03),
        },
        oracle_arguments={"trust": 0.02, "nesterov": True, "momentum": 0.8, "epsilon": 0.01, "bounds": (0.01, 0.03)},
    ),
    "lamb": _LAMB,
    "lamb_bounds": replace(
        _LAMB,
        arguments={"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4, "trust_ratio_bounds": (0.05, 0.5)},
        oracle_arguments={"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4, "bounds": (0.05, 0.5)},
    ),
    "adam": Member(adam, 5e-3, oracles.lamb_weights, 0.1, oracle_arguments={"epsilon": 1e-8}),
}  # fmt: skip
ONE_EACH = ["lars", "lamb", "adam"]


def layers(tf, dtype="float32"):
    """A model of three layers: kernels, biases of ones, a normalisation, and a kernel that is 0."""
    tf.keras.utils.set_random_seed(5)
    k = tf.keras.layers
    return tf.keras.Sequential([
        tf.keras.Input((4,)),
        k.Dense(3, name="first", bias_initializer="ones", dtype=dtype),
        k.BatchNormalization(name="norm", dtype=dtype),
        k.Dense(2, name="second", kernel_initializer="zeros", dtype=dtype),
    ])  # fmt: skip


LAYERS = ["first/kernel", "first/bias", "norm/gamma", "norm/beta", "second/kernel", "second/bias"]
KERNELS = [True, False, False, False, True, False]


def random_gradients(variables, steps, scale=0.1):
    """For each step one gradient of each variable, float32; some of them 0, one of them always."""
    rng = np.random.default_rng(8)
    gradients = [[(scale * rng.normal(size=v.shape)).astype("float32") for v in variables] for _ in range(steps)]
    for step, row in enumerate(gradients):
        for index in range(len(row)):
            if index == 5 or (index in (0, 2) and step % 7 == 0):
                row[index] = np.zeros_like(row[index])
    return gradients


def apply_all(tf, optimizer, variables, gradients):
    """A step of the optimizer for each row of gradients, in one traced function."""
    optimizer.build(variables)

    @tf.function
    def step(row):
        optimizer.apply_gradients(zip(row, variables, strict=True))

    for row in gradients:
        step([tf.constant(g) for g in row])


def arrays(variables):
    return [np.array(v) for v in variables]
