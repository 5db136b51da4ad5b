"""Gradient sums and counters of the micro-steps since the last update, one set per replica."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_simigrad.distribute.reduction_records import COUNTERS, Totals
from tf_simigrad.distribute.replicas import Replicas


class Accumulator:
    """Weighted sums of micro-gradients, float32 and unscaled, in one or two slots.

    Args:
        replicas: Where the variables live.
        variables: The trainable variables whose gradients are summed.
        slots: Sums kept apart: 2 where one replica must form both groups, 1 otherwise.
        with_squares: Whether the squares of the micro-gradients are summed too.
    """

    def __init__(self, replicas: Replicas, variables: Sequence[Any], slots: int, with_squares: bool = False) -> None:
        self._replicas = replicas
        self._slots = slots
        self._sums = [
            [replicas.per_replica_variable(v.shape, f"gradient_sum_{slot}") for v in variables] for slot in range(slots)
        ]
        squared = variables if with_squares else []
        self._squares = [replicas.per_replica_variable(v.shape, "gradient_square_sum") for v in squared]
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

        if self._squares:
            for total, gradient in zip(self._squares, weighted, strict=True):
                if gradient is not None:
                    # weight * g^2 from weight * g; nothing is added by a replica without examples
                    total.assign_add(tf.math.divide_no_nan(tf.square(gradient), counters[1]))
        if self._slots == 1:
            into(0)
        else:
            tf.cond(tf.equal(slot, 0), lambda: into(0), lambda: into(1))
        self._counters.assign_add(tf.one_hot(slot, self._slots)[:, None] * counters[None])

    def read(self) -> Totals:
        """What this replica has summed. Replica context."""
        sums = [[tf.convert_to_tensor(v) for v in of_slot] for of_slot in self._sums]
        return Totals(sums, tf.convert_to_tensor(self._counters), [tf.convert_to_tensor(v) for v in self._squares])

    def clear(self) -> None:
        """Sets everything to zero. Replica context."""
        for variable in self.variables:
            variable.assign(tf.zeros(variable.shape))

    def reset(self) -> None:
        """Sets everything to zero, from the host."""
        for variable in self.variables:
            for part in self._replicas.local(variable):
                part.assign(tf.zeros(part.shape))

    def examples(self) -> int:
        """Examples in the sums, over the replicas of this worker. On the host."""
        return int(sum(float(tf.reduce_sum(part[:, 0])) for part in self._replicas.local(self._counters)))

    @property
    def variables(self) -> list[tf.Variable]:
        """Every variable, of which each replica has its own."""
        return [*(v for sums in self._sums for v in sums), *self._squares, self._counters]
