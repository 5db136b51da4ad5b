"""How the gradients of many variables are laid out in few messages, so that each replica's share of each variable is known."""

import math
from collections.abc import Sequence

import tensorflow as tf

BUCKET_ELEMENTS = 4 * 1024 * 1024
"""Elements packed into one collective (16 MiB): enough to hide its latency, small beside the gradient that is packed."""


class Packing:
    """Consecutive variables in buckets; a bucket is a matrix with one row per replica, a variable some columns of it.

    Every variable is cut into as many shards as there are replicas (the last ones padded with zeros), so that a row holds one
    shard of each variable at a place that is the same for all replicas: sums per variable need no index.

    Args:
        shapes: Of the variables.
        replicas: Number of replicas.
    """

    def __init__(self, shapes: Sequence[tf.TensorShape], replicas: int) -> None:
        self._shapes = list(shapes)
        self._replicas = replicas
        self.shard_sizes = [-(-math.prod(shape) // replicas) for shape in shapes]
        self.buckets = pack_order([math.prod(shape) for shape in shapes], BUCKET_ELEMENTS)

    def packed(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """One matrix [replicas, elements] per bucket: one copy, so that a bucket is one message instead of one per variable."""
        return [tf.concat([self._rows(tensors[i]) for i in bucket], axis=1) for bucket in self.buckets]

    def pieces(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """A row of each bucket, cut into the shards of its variables; one per variable, empty for one without elements."""
        found = [tf.zeros([0])] * len(self._shapes)
        for bucket, vector in zip(self.buckets, vectors, strict=True):
            for i, piece in zip(bucket, tf.split(vector, [self.shard_sizes[i] for i in bucket]), strict=True):
                found[i] = piece
        return found

    def joined(self, pieces: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The rows of which ``pieces`` cuts these."""
        return [tf.concat([pieces[i] for i in bucket], axis=0) for bucket in self.buckets]

    def unpacked(self, matrices: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors that ``packed`` gives these for, without the padding."""
        found = [tf.zeros(shape) for shape in self._shapes]
        for bucket, matrix in zip(self.buckets, matrices, strict=True):
            parts = tf.split(matrix, [self.shard_sizes[i] for i in bucket], axis=1)
            for i, part in zip(bucket, parts, strict=True):
                flat, size = tf.reshape(part, [-1]), math.prod(self._shapes[i])
                found[i] = tf.reshape(flat if flat.shape[0] == size else flat[:size], self._shapes[i])
        return found

    def _rows(self, tensor: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(tensor, [-1])
        missing = -flat.shape[0] % self._replicas
        return tf.reshape(tf.pad(flat, [[0, missing]]) if missing else flat, [self._replicas, -1])


def pack_order(sizes: Sequence[int], bucket_elements: int) -> list[list[int]]:
    """Consecutive indices grouped into buckets that are closed once they hold at least ``bucket_elements`` elements.

    Indices of size 0 are left out: a collective on nothing crashes the process.
    """
    buckets: list[list[int]] = []
    filled = bucket_elements
    for index, size in enumerate(sizes):
        if size == 0:
            continue
        if filled >= bucket_elements:
            buckets.append([])
            filled = 0
        buckets[-1].append(index)
        filled += size
    return buckets
