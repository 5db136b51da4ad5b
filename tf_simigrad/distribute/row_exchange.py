"""How the rows of large tables travel: each to the replica that owns its index, and from there to all."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_simigrad.distribute.collectives import Collectives

EXCHANGE_KEY, GATHER_KEY = 2_000_000, 3_000_000
"""Of the first rung of ``LADDER``; TensorFlow remembers the shape of a key's message, so each length has a key of its own."""

LADDER = tuple(math.ceil(256 * 2 ** (rung / 4)) for rung in range(128))
"""Lengths of messages, in elements: a message is filled up to the next one, 19 % at most beyond the first."""

_DIGIT = 4096  # float32 holds counts up to 2^24 exactly: they travel as two digits
_NOBODY = -1


class Received(NamedTuple):
    """The rows of one table that this replica owns, as the replicas have sent them.

    Attributes:
        indices: Distinct indices, int64 [distinct rows].
        places: Which of them a received row is of, int32 [rows].
        senders: Whose it is, int32 [rows].
        values: Float32 [rows, ...]: weighted gradient sums.
        squares: The same of squared micro-gradients; None where they do not travel.
    """

    indices: tf.Tensor
    places: tf.Tensor
    senders: tf.Tensor
    values: tf.Tensor
    squares: tf.Tensor | None

    def summed(self, values: tf.Tensor) -> tf.Tensor:
        """Rows of the same index added up: [distinct rows, ...]."""
        return tf.math.unsorted_segment_sum(values, self.places, tf.size(self.indices))

    def summed_of(self, is_counted: tf.Tensor) -> tf.Tensor:
        """The same of the gradient sums of some senders.

        Args:
            is_counted: Boolean [rows].
        """
        outside = [-1] + [1] * (len(self.values.shape) - 1)
        return self.summed(tf.where(tf.reshape(is_counted, outside), self.values, 0.0))


class RowExchange:
    """Sends and collects the rows of several tables, all of them in one message. Replica context.

    A hash of its index says which replica owns a row: indices may have a stride. A row travels with its index, whose bits stand
    in a float32 column.

    Args:
        collectives: Messages among the replicas.
        replicas: Their number.
        replica: This one's, int32 scalar.
        total: The sum over all replicas of a float32 vector.
    """

    def __init__(
        self, collectives: Collectives, replicas: int, replica: tf.Tensor, total: Callable[[tf.Tensor], tf.Tensor]
    ) -> None:
        self._collectives = collectives
        self._replicas = replicas
        self._replica = replica
        self._total = total

    def exchange(self, sums: Sequence[tf.IndexedSlices], squares: Sequence[tf.IndexedSlices]) -> list[Received]:
        """What all replicas know of the rows that this one owns.

        Args:
            sums: Of each table, of distinct indices.
            squares: Of the same rows; empty where they do not travel.
        """
        tables = [[s.values for s in of_table] for of_table in zip(sums, *([squares] if squares else []), strict=True)]
        by_owner = [tf.dynamic_partition(tf.range(tf.size(s.indices)), _owner(s, self._replicas), self._replicas) for s in sums]
        counts = [tf.stack([tf.size(part) for part in parts]) for parts in by_owner]
        largest = self._largest([tf.reduce_max(c) for c in counts])
        packed = [
            _padded(_matrix(s.indices, of_table), parts, count, most)
            for s, of_table, parts, count, most in zip(sums, tables, by_owner, counts, largest, strict=True)
        ]
        rung, message = _message(packed)
        arrived = self._collectives.exchange(message, EXCHANGE_KEY + rung)
        pieces = _pieces(arrived, largest, [t.shape[2] for t in packed])
        return [self._received(piece, of_table) for piece, of_table in zip(pieces, tables, strict=True)]

    def _received(self, piece: tf.Tensor, like: Sequence[tf.Tensor]) -> Received:
        """The rows of a table in [replicas, most, columns], without what fills up."""
        owner = tf.repeat(tf.range(self._replicas), tf.shape(piece)[1])
        indices, columns = _split(tf.reshape(piece, [-1, piece.shape[2]]), like)
        is_row = indices != _NOBODY
        distinct, places = tf.unique(indices[is_row])
        values, *squares = [column[is_row] for column in columns]
        return Received(tf.cast(distinct, tf.int64), places, owner[is_row], values, squares[0] if squares else None)

    def gather(self, received: Sequence[Received], owned: Sequence[tf.Tensor]) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """The rows of all owners, in the same order on every replica.

        Args:
            received: As ``exchange`` gave them.
            owned: For each table, what this replica says of its ``indices``: float32 [distinct rows, ...].

        Returns:
            For each table indices, int64 [rows], and values [rows, ...].
        """
        counts = [tf.size(r.indices) for r in received]
        largest = self._largest(counts)
        packed = [
            _padded(_matrix(r.indices, [values]), [tf.range(count)], count[None], most)
            for r, values, count, most in zip(received, owned, counts, largest, strict=True)
        ]
        rung, message = _message(packed)
        arrived = self._collectives.gather(message[0], GATHER_KEY + rung)
        gathered = []
        for piece, values in zip(_pieces(arrived, largest, [t.shape[2] for t in packed]), owned, strict=True):
            indices, (column,) = _split(tf.reshape(piece, [-1, piece.shape[2]]), [values])
            is_row = indices != _NOBODY
            gathered.append((tf.cast(indices[is_row], tf.int64), column[is_row]))
        return gathered

    def _largest(self, counts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """For each table the largest count over the replicas; every replica is told the same."""
        stacked = tf.stack(counts)
        own = tf.cast(tf.concat([stacked // _DIGIT, stacked % _DIGIT], axis=0), tf.float32)
        said = tf.one_hot(self._replica, self._replicas)[:, None] * own[None]
        digits = tf.cast(tf.reshape(self._total(tf.reshape(said, [-1])), [self._replicas, 2, len(counts)]), tf.int32)
        return tf.unstack(tf.reduce_max(digits[:, 0] * _DIGIT + digits[:, 1], axis=0))


def _owner(slices: tf.IndexedSlices, replicas: int) -> tf.Tensor:
    # Knuth's multiplicative hash: below 2^63 for indices below 2^31.
    return tf.cast(tf.bitwise.right_shift(slices.indices * 2_654_435_761, 16) % replicas, tf.int32)


def _matrix(indices: tf.Tensor, columns: Sequence[tf.Tensor]) -> tf.Tensor:
    """Each row's index and values in float32 columns [rows, 1 + elements of its values]."""
    bits = tf.bitcast(tf.cast(indices, tf.int32), tf.float32)
    flat = [tf.reshape(c, [-1, math.prod(c.shape[1:])]) for c in columns]
    return tf.concat([bits[:, None], *flat], axis=1)


def _split(matrix: tf.Tensor, like: Sequence[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The indices, int32, and values of the shapes of ``like`` that ``_matrix`` put together."""
    bits, *flat = tf.split(matrix, [1, *(math.prod(c.shape[1:]) for c in like)], axis=1)
    return tf.bitcast(bits[:, 0], tf.int32), [tf.reshape(f, [-1, *c.shape[1:]]) for f, c in zip(flat, like, strict=True)]


def _padded(matrix: tf.Tensor, parts: Sequence[tf.Tensor], counts: tf.Tensor, most: tf.Tensor) -> tf.Tensor:
    """Rows of a matrix dealt to the parts, each filled up with rows of nobody: [parts, most, columns]."""
    # By gathering, which copies: what adds to zeros would not leave the bits of an index alone.
    rows_with_nobody = tf.concat([matrix, _matrix(tf.constant([_NOBODY]), [tf.zeros([1, matrix.shape[1] - 1])])], axis=0)
    place = tf.range(most)[None]
    start = tf.cumsum(counts, exclusive=True)
    order = tf.concat([*parts, [tf.shape(matrix)[0]]], axis=0)
    source = tf.where(place < counts[:, None], start[:, None] + place, tf.size(order) - 1)
    return tf.gather(rows_with_nobody, tf.gather(order, source))


def _message(packed: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """The tables side by side, a row per replica, filled up to a length of ``LADDER``, and which length that is."""
    flat = tf.concat([tf.reshape(t, [tf.shape(t)[0], -1]) for t in packed], axis=1)
    length = tf.shape(flat, tf.int64)[1]
    ladder = tf.constant(LADDER, tf.int64)
    rung = tf.searchsorted(ladder, length[None])[0]
    return rung, tf.pad(flat, [[0, 0], [0, tf.gather(ladder, rung) - length]])


def _pieces(message: tf.Tensor, largest: Sequence[tf.Tensor], columns: Sequence[int]) -> list[tf.Tensor]:
    """The tables in a message: [replicas, most, columns] each."""
    found, start = [], tf.constant(0)
    for most, width in zip(largest, columns, strict=True):
        end = start + most * width
        found.append(tf.reshape(message[:, start:end], tf.stack([message.shape[0], most, width])))
        start = end
    return found
