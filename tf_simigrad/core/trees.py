"""Sums and products over lists of tensors, in float32."""

from collections.abc import Sequence

import tensorflow as tf


def dense(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    """A gradient as one float32 tensor; the rows of an ``IndexedSlices`` that share an index are summed."""
    return tf.cast(tf.convert_to_tensor(gradient), tf.float32)


def dot(left: Sequence[tf.Tensor], right: Sequence[tf.Tensor]) -> tf.Tensor:
    """Inner product of two lists of tensors as if each were one long vector.

    Args:
        left: Float32 tensors of any shapes.
        right: As many, of the same shapes.

    Returns:
        Float32 scalar.
    """
    return tf.add_n([tf.reduce_sum(a * b) for a, b in zip(left, right, strict=True)])


def squared_norm(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Squared Euclidean norm of a list of float32 tensors as if it were one long vector: a float32 scalar."""
    return dot(tensors, tensors)
