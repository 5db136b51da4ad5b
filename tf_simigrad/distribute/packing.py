"""How the gradients of many variables are laid out in few messages, so that each replica's share of each variable is known."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

BUCKET_ELEMENTS = 4 * 1024 * 1024
"""Elements packed into one collective (16 MiB): enough to hide its latency, small beside the gradient that is packed."""

ALONE_ELEMENTS = 256 * 1024
"""A variable of so many elements (1 MiB) is a message of its own where it can be cut without a copy."""


class Cut(NamedTuple):
    """How one variable is cut into a shard per replica.

    Attributes:
        shape: Of the variable.
        axis: Along which it is cut into equal parts of its own rank; None: flat, the last shards padded with zeros.
        shard_shape: Of every shard.
    """

    shape: tuple[int, ...]
    axis: int | None
    shard_shape: tuple[int, ...]

    def rows(self, tensor: tf.Tensor, replicas: int) -> tf.Tensor:
        """The shards, stacked: [replicas, ...]."""
        if self.axis is None:
            flat = tf.reshape(tensor, [-1])
            missing = -flat.shape[0] % replicas
            return tf.reshape(tf.pad(flat, [[0, missing]]) if missing else flat, [replicas, -1])
        apart = [*self.shape[: self.axis], replicas, *self.shard_shape[self.axis :]]
        return _moved(tf.reshape(tensor, apart), self.axis, 0)

    def tensor(self, rows: tf.Tensor) -> tf.Tensor:
        """The tensor whose ``rows`` these are, without the padding."""
        if self.axis is None:
            flat, size = tf.reshape(rows, [-1]), math.prod(self.shape)
            return tf.reshape(flat if flat.shape[0] == size else flat[:size], self.shape)
        return tf.reshape(_moved(rows, 0, self.axis), self.shape)


class Packing:
    """Messages: matrices with one row per replica. A large variable is one, small ones are some columns of a common one.

    Every variable is cut into as many shards as there are replicas, so that a row holds one shard of each variable at a place
    that is the same for all replicas: sums per variable need no index.

    Args:
        shapes: Of the variables.
        replicas: Number of replicas.
        any_axis: Whether a large variable may be cut along another axis than its first. Flat, it is a reshape elsewhere, but
            a TPU holds the last two axes in tiles: there it costs two passes over the variable, and as much memory.

    Attributes:
        shard_shapes: Shape of a shard of each variable.
        messages: Indices of the variables in each message.
    """

    def __init__(self, shapes: Sequence[tf.TensorShape], replicas: int, any_axis: bool = False) -> None:
        self._replicas = replicas
        self._cuts = [_cut(tuple(shape), replicas, any_axis) for shape in shapes]
        self.shard_shapes = [cut.shard_shape for cut in self._cuts]
        alone = [[i] for i, cut in enumerate(self._cuts) if cut.axis is not None]
        sizes = [math.prod(cut.shape) if cut.axis is None else 0 for cut in self._cuts]
        self.messages = sorted([*alone, *pack_order(sizes, BUCKET_ELEMENTS)])

    def packed(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The messages [replicas, ...]. Small variables are copied, so that they are one message instead of one each."""
        return [self._together([self._cuts[i].rows(tensors[i], self._replicas) for i in m], axis=1) for m in self.messages]

    def pieces(self, shards: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """A row of each message as the shards of its variables; one per variable, empty for one without elements."""
        found = [tf.zeros(shape) for shape in self.shard_shapes]
        for message, shard in zip(self.messages, shards, strict=True):
            for i, piece in zip(message, self._apart(message, shard, axis=0), strict=True):
                found[i] = piece
        return found

    def joined(self, pieces: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The rows of which ``pieces`` makes these."""
        return [self._together([pieces[i] for i in message], axis=0) for message in self.messages]

    def unpacked(self, matrices: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors that ``packed`` gives these for."""
        found = [tf.zeros(cut.shape) for cut in self._cuts]
        for message, matrix in zip(self.messages, matrices, strict=True):
            for i, rows in zip(message, self._apart(message, matrix, axis=1), strict=True):
                found[i] = self._cuts[i].tensor(rows)
        return found

    def _together(self, parts: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
        return parts[0] if len(parts) == 1 else tf.concat(parts, axis=axis)

    def _apart(self, message: Sequence[int], tensor: tf.Tensor, axis: int) -> list[tf.Tensor]:
        if len(message) == 1:
            return [tensor]
        return tf.split(tensor, [self.shard_shapes[i][0] for i in message], axis=axis)


def _cut(shape: tuple[int, ...], replicas: int, any_axis: bool) -> Cut:
    size = math.prod(shape)
    if size >= ALONE_ELEMENTS:
        for axis in range(len(shape) if any_axis else min(len(shape), 1)):
            if shape[axis] % replicas == 0:
                return Cut(shape, axis, (*shape[:axis], shape[axis] // replicas, *shape[axis + 1 :]))
    return Cut(shape, None, (-(-size // replicas),))


def _moved(tensor: tf.Tensor, source: int, target: int) -> tf.Tensor:
    """The tensor with one axis at another place."""
    if source == target:
        return tensor
    order = [i for i in range(len(tensor.shape)) if i != source]
    return tf.transpose(tensor, [*order[:target], source, *order[target:]])


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
