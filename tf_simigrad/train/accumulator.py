"""Gradient sums and counters of the micro-steps since the last update, one set per replica."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_simigrad.distribute.reduction import COUNTERS
from tf_simigrad.distribute.replicas import Replicas


class Accumulator:
    """Weighted sums of micro-gradients, float32 and unscaled, in one or two slots.

    Args:
        replicas: Where the variables live.
        variables: The trainable variables whose gradients are summed.
        slots: Sums kept apart: 2 where one replica must form both groups, 1 otherwise.
    """

    def __init__(self, replicas: Replicas, variables: Sequence[Any], slots: int) -> None:
        self._replicas = replicas
        self._slots = slots
        self._sums = [
            [replicas.per_replica_variable(v.shape, f"gradient_sum_{slot}") for v in variables] for slot in range(slots)
        ]
        self._counters = replicas.per_replica_variable([slots, len(COUNTERS)], "counters")

    def add(self, weighted: Sequence[tf.Tensor | None], counters: tf.Tensor, slot: tf.Tensor) -> None:
        """Adds one micro-gradient. Replica context.

        Args:
            weighted: Micro-gradient (a mean) times its weight, float32, unscaled; None where a variable has none.
            counters: Float32 [5], the columns of ``COUNTERS``.
            slot: Int32 scalar, the group that this micro-step belongs to where there are slots for groups.
        """
        slot %= self._slots

        def into(index: int) -> None:
            for total, gradient in zip(self._sums[index], weighted, strict=True):
                if gradient is not None:
                    total.assign_add(gradient)

        if self._slots == 1:
            into(0)
        else:
            tf.cond(tf.equal(slot, 0), lambda: into(0), lambda: into(1))
        self._counters.assign_add(tf.one_hot(slot, self._slots)[:, None] * counters[None])

    def read(self) -> tuple[list[list[tf.Tensor]], tf.Tensor]:
        """The sums of each slot, and the counters [slots, 5]. Replica context."""
        return [[tf.convert_to_tensor(v) for v in sums] for sums in self._sums], tf.convert_to_tensor(self._counters)

    def clear(self) -> None:
        """Sets everything to zero. Replica context."""
        for variable in self._all():
            variable.assign(tf.zeros(variable.shape))

    def reset(self) -> None:
        """Sets everything to zero, from the host."""
        for variable in self._all():
            for part in self._replicas.local(variable):
                part.assign(tf.zeros(part.shape))

    def examples(self) -> int:
        """Examples in the sums, over the replicas of this worker. On the host."""
        return int(sum(float(tf.reduce_sum(part[:, 0])) for part in self._replicas.local(self._counters)))

    def to_arrays(self) -> list[np.ndarray]:
        """Every variable's values, stacked over the local replicas. Outside of any trace."""
        return [np.stack([part.numpy() for part in self._replicas.local(v)]) for v in self._all()]

    def from_arrays(self, arrays: Sequence[np.ndarray]) -> None:
        """Takes back what ``to_arrays`` gave.

        Raises:
            ValueError: If the arrays are of another model, another number of replicas or another statistic.
        """
        expected = [(len(self._replicas.local(v)), *v.shape) for v in self._all()]
        given = [tuple(a.shape) for a in arrays]
        if expected != given:
            raise ValueError(
                f"The pending gradient sums were saved with shapes {given[:3]}..., this model under this strategy needs "
                f"{expected[:3]}.... Resume with the same model, statistic and number of replicas."
            )
        for variable, array in zip(self._all(), arrays, strict=True):
            for part, value in zip(self._replicas.local(variable), array, strict=True):
                part.assign(value)

    def _all(self) -> list[tf.Variable]:
        return [v for sums in self._sums for v in sums] + [self._counters]
