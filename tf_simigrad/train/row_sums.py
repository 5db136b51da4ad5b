"""Sums of the rows of one large table that micro-steps have touched, one set per replica."""

import tensorflow as tf

from tf_simigrad.core import rows
from tf_simigrad.distribute.replicas import Replicas


class RowSums:
    """Rows in several columns: sums that are kept apart, and squares. Memory follows the rows that are touched, not the table.

    New rows are appended. When the room is used up, those that share an index are added up, and where that frees less than half
    of it the room grows: so each row is copied a few times, however many micro-steps there are. There is room for up to twice
    the distinct rows of the largest update so far, and for several times that while they are added up; it is not given back.

    Args:
        replicas: Where the variables live.
        shape: Of the table.
        columns: How many sums each row has.
    """

    def __init__(self, replicas: Replicas, shape: tf.TensorShape, columns: int) -> None:
        self._replicas = replicas
        self._shape = tf.constant(shape.as_list(), tf.int64)
        self._indices = replicas.per_replica_variable([None], "row_indices", tf.int64)
        self._rows = replicas.per_replica_variable([None, columns, *shape[1:]], "row_sums")
        self._used = replicas.per_replica_variable([], "rows_used", tf.int64)

    def add(self, indices: tf.Tensor, values: tf.Tensor) -> None:
        """Adds rows. Replica context.

        Args:
            indices: Int64 [rows].
            values: Float32 [rows, columns, ...].
        """
        used = tf.convert_to_tensor(self._used)
        after = used + tf.size(indices, tf.int64)
        # Not the size of its value, which would be copied for it.
        room = tf.raw_ops.VariableShape(input=self._indices.handle, out_type=tf.int64)[0]
        tf.cond(after <= room, lambda: self._append(used, after, indices, values), lambda: self._merge(indices, values, room))

    def _append(self, used: tf.Tensor, after: tf.Tensor, indices: tf.Tensor, values: tf.Tensor) -> None:
        for variable, new in ((self._indices, indices), (self._rows, values)):
            tf.raw_ops.ResourceStridedSliceAssign(
                ref=variable.handle, begin=used[None], end=after[None], strides=tf.ones([1], tf.int64), value=new
            )
        self._used.assign(after)

    def _merge(self, indices: tf.Tensor, values: tf.Tensor, room: tf.Tensor) -> None:
        old_indices, old_values = self._appended()
        distinct, sums = rows.summed(tf.concat([old_indices, indices], axis=0), tf.concat([old_values, values], axis=0))
        used = tf.size(distinct, tf.int64)
        free = tf.maximum(room, 2 * used) - used
        # Not by tf.pad, which GPUs do not have for int64.
        self._indices.assign(tf.concat([distinct, tf.zeros([free], tf.int64)], axis=0))
        self._rows.assign(tf.pad(sums, [[0, free]] + [[0, 0]] * (len(sums.shape) - 1)))
        self._used.assign(used)

    def _appended(self) -> tuple[tf.Tensor, tf.Tensor]:
        used = tf.convert_to_tensor(self._used)
        return tf.convert_to_tensor(self._indices)[:used], tf.convert_to_tensor(self._rows)[:used]

    def read(self) -> tuple[tf.IndexedSlices, ...]:
        """The sums, a column each; all have the same distinct indices. Replica context."""
        indices, values = rows.summed(*self._appended())
        return tuple(tf.IndexedSlices(column, indices, self._shape) for column in tf.unstack(values, axis=1))

    def clear(self) -> None:
        """Forgets all rows; the room stays. Replica context."""
        self._used.assign(0)

    def reset(self) -> None:
        """Forgets all rows, from the host."""
        for part in self._replicas.local(self._used):
            part.assign(0)

    @property
    def variables(self) -> list[tf.Variable]:
        """Every variable, of which each replica has its own."""
        return [self._indices, self._rows, self._used]
