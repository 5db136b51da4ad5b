"""Gradient sums and counters of the micro-steps since the last update, one set per replica."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_simigrad.core.rows import Gradient
from tf_simigrad.distribute.reduction_records import COUNTERS, Totals
from tf_simigrad.distribute.replicas import Replicas
from tf_simigrad.train.row_sums import RowSums


class Accumulator:
    """Weighted sums of micro-gradients, float32 and unscaled, in one or two slots.

    Args:
        replicas: Where the variables live.
        variables: The trainable variables whose gradients are summed.
        is_rows: For each of them, whether its gradient is kept as rows.
        slots: Sums kept apart: 2 where one replica must form both groups, 1 otherwise.
        with_squares: Whether the squares of the micro-gradients are summed too.
    """

    def __init__(
        self,
        replicas: Replicas,
        variables: Sequence[Any],
        is_rows: Sequence[bool],
        slots: int,
        with_squares: bool = False,
    ) -> None:
        self._replicas = replicas
        self._slots = slots
        self._rows = {
            i: RowSums(replicas, tf.TensorShape(v.shape), slots + with_squares) for i, v in enumerate(variables) if is_rows[i]
        }
        self._places = [i for i in range(len(variables)) if i not in self._rows]
        dense = [variables[i] for i in self._places]
        self._sums = [[replicas.per_replica_variable(v.shape, f"gradient_sum_{slot}") for v in dense] for slot in range(slots)]
        squared = dense if with_squares else []
        self._squares = [replicas.per_replica_variable(v.shape, "gradient_square_sum") for v in squared]
        self._with_squares = with_squares
        self._counters = replicas.per_replica_variable([slots, len(COUNTERS)], "counters")

    def add(self, weighted: Sequence[Gradient | None], counters: tf.Tensor, slot: tf.Tensor) -> None:
        """Adds one micro-gradient. Replica context.

        Args:
            weighted: Micro-gradient (a mean) times its weight, float32, unscaled; None where a variable has none; rows of
                distinct indices where it is kept as rows.
            counters: Float32 [5], the columns of ``COUNTERS``.
            slot: Int32 scalar, the group that this micro-step belongs to where there are slots for groups.
        """
        slot %= self._slots
        dense = [weighted[i] for i in self._places]

        def squared(gradient: tf.Tensor) -> tf.Tensor:
            # weight * g^2 from weight * g; nothing is added by a replica without examples
            return tf.math.divide_no_nan(tf.square(gradient), counters[1])

        def into(index: int) -> None:
            for total, gradient in zip(self._sums[index], dense, strict=True):
                if gradient is not None:
                    total.assign_add(gradient)

        if self._squares:
            for total, gradient in zip(self._squares, dense, strict=True):
                if gradient is not None:
                    total.assign_add(squared(gradient))
        if self._slots == 1:
            into(0)
        else:
            tf.cond(tf.equal(slot, 0), lambda: into(0), lambda: into(1))
        for place, sums in self._rows.items():
            gradient = weighted[place]
            if gradient is not None:
                columns = [tf.where(tf.equal(slot, i), gradient.values, 0.0) for i in range(self._slots)]
                columns += [squared(gradient.values)] if self._with_squares else []
                sums.add(gradient.indices, tf.stack(columns, axis=1))
        self._counters.assign_add(tf.one_hot(slot, self._slots)[:, None] * counters[None])

    def read(self) -> Totals:
        """What this replica has summed. Replica context."""
        columns = {place: sums.read() for place, sums in self._rows.items()}

        def listed(variables: Sequence[Any], column: int) -> list[Gradient]:
            found: dict[int, Gradient] = {i: tf.convert_to_tensor(v) for i, v in zip(self._places, variables, strict=True)}
            found |= {place: of_table[column] for place, of_table in columns.items()}
            return [found[i] for i in sorted(found)]

        sums = [listed(of_slot, slot) for slot, of_slot in enumerate(self._sums)]
        squares = listed(self._squares, self._slots) if self._with_squares else []
        return Totals(sums, tf.convert_to_tensor(self._counters), squares)

    def clear(self) -> None:
        """Sets everything to zero. Replica context."""
        for variable in self._dense_variables:
            variable.assign(tf.zeros(variable.shape))
        for sums in self._rows.values():
            sums.clear()

    def reset(self) -> None:
        """Sets everything to zero, from the host."""
        for variable in self._dense_variables:
            for part in self._replicas.local(variable):
                part.assign(tf.zeros(part.shape))
        for sums in self._rows.values():
            sums.reset()

    def examples(self) -> int:
        """Examples in the sums, over the replicas of this worker. On the host."""
        return int(sum(float(tf.reduce_sum(part[:, 0])) for part in self._replicas.local(self._counters)))

    @property
    def _dense_variables(self) -> list[tf.Variable]:
        return [*(v for sums in self._sums for v in sums), *self._squares, self._counters]

    @property
    def variables(self) -> list[tf.Variable]:
        """Every variable, of which each replica has its own."""
        return [*self._dense_variables, *(v for sums in self._rows.values() for v in sums.variables)]
