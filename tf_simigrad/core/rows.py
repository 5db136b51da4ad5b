"""Gradients of large tables, kept as the rows that examples have touched: ``tf.IndexedSlices``."""

from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from tf_simigrad.core.guards import at_least_tiny

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices


def summed(indices: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The rows that share an index added up.

    Args:
        indices: Int64 [rows].
        values: Float32 [rows, ...].

    Returns:
        The distinct indices, in the order of their first row, and their sums.
    """
    distinct, places = tf.unique(indices)
    return distinct, tf.math.unsorted_segment_sum(values, places, tf.size(distinct))


def of_gradient(gradient: Gradient) -> tf.IndexedSlices:
    """A gradient as float32 rows of distinct indices (int64); a dense one as all of its rows."""
    if not isinstance(gradient, tf.IndexedSlices):
        every = tf.range(gradient.shape[0], dtype=tf.int64)
        return tf.IndexedSlices(tf.cast(gradient, tf.float32), every, tf.constant(gradient.shape.as_list(), tf.int64))
    indices, values = summed(tf.cast(gradient.indices, tf.int64), tf.cast(gradient.values, tf.float32))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def values(gradients: Sequence[Gradient]) -> list[tf.Tensor]:
    """The rows of those that are rows; the others themselves."""
    return [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]


def like(gradients: Sequence[Gradient], tensors: Sequence[tf.Tensor]) -> list[Gradient]:
    """The tensors in the places of ``values(gradients)``."""
    return [
        tf.IndexedSlices(t, g.indices, g.dense_shape) if isinstance(g, tf.IndexedSlices) else t
        for g, t in zip(gradients, tensors, strict=True)
    ]


def variance_of_groups(sums: tf.Tensor, groups: tf.Tensor, places: tf.Tensor, weights: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
    """``gsnr.variance_of_groups`` where each group says only the rows that it has; in all others its sum is 0.

    Args:
        sums: Weighted gradient sums, a row of one group each, [rows, ...], float32.
        groups: Which group a row is of, int32 [rows]. No group has a place twice.
        places: Which row of ``mean`` it belongs to, int32 [rows].
        weights: Weights of the groups [groups]. A group without weight does not count.
        mean: Mean gradient over all groups [distinct rows, ...].

    Returns:
        Float32 [distinct rows, ...].
    """

    def beside(vector: tf.Tensor) -> tf.Tensor:
        return tf.reshape(vector, [-1] + [1] * (len(mean.shape) - 1))

    weight = tf.gather(weights, groups)
    deviations = tf.math.divide_no_nan(sums, beside(weight)) - tf.gather(mean, places)
    count = tf.shape(mean)[0]
    spoken = tf.math.unsorted_segment_sum(beside(weight) * tf.square(deviations), places, count)
    total = tf.reduce_sum(weights)
    silent = tf.maximum(total - tf.math.unsorted_segment_sum(weight, places, count), 0.0)
    return (spoken + beside(silent) * tf.square(mean)) / at_least_tiny(total)
