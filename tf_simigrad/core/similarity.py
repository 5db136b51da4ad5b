"""Similarity and noise scale from the moments of one update."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_simigrad.core import trees
from tf_simigrad.core.by_layer import Layers, by_layer
from tf_simigrad.records import Moments


class Measurement(NamedTuple):
    """What the gradients of an update say about their noise. Float32 scalars; NaN where nothing can be said.

    Attributes:
        similarity: Cosine of the two half-batch gradients, in [-1, 1].
        squared_gradient_norm: Unbiased estimate of the squared norm of the true gradient. May be negative.
        noise_trace: Unbiased estimate of the trace of the per-example gradient covariance.
    """

    similarity: tf.Tensor
    squared_gradient_norm: tf.Tensor
    noise_trace: tf.Tensor


def group_products(a: Sequence[tf.Tensor], b: Sequence[tf.Tensor] | None) -> tf.Tensor:
    """The three numbers that the cosine of two groups needs, for each tensor, in one compiled pass over the gradients.

    Args:
        a: Gradients of group A (a sum or a mean), float32, or a shard of them.
        b: Gradients of group B, same shapes; None where there is no such group.

    Returns:
        Float32 [tensors, 3]: a.b, a.a, b.b. They add up over tensors, and over shards.
    """
    return tf.stack(_products([(x,) for x in a] if b is None else list(zip(a, b, strict=True))))


@by_layer
def _products(layers: Layers) -> list[tf.Tensor]:
    def products(x: tf.Tensor, y: tf.Tensor | None = None) -> tf.Tensor:
        none = tf.constant(0.0)
        squared = trees.squared_norm([x])
        return tf.stack([none, squared, none] if y is None else [trees.dot([x], [y]), squared, trees.squared_norm([y])])

    return [products(*layer) for layer in layers]


def two_groups(moments: Moments) -> Measurement:
    """The similarity as SimiGrad measures it, between the mean gradients of two groups.

    ``|G|^2 = gA.gB`` and ``tr(Sigma) = nA nB / (nA + nB) |gA - gB|^2`` are unbiased for groups of any sizes.

    Args:
        moments: Moments with both groups known; NaN results if one group is empty.

    Returns:
        The measurement; unequal groups are reported as the similarity that equal halves would show.

    References:
        Qin et al., NeurIPS 2021.
    """
    cosine = moments.dot / (tf.sqrt(moments.squared_norm_a) * tf.sqrt(moments.squared_norm_b))
    distance = moments.squared_norm_a + moments.squared_norm_b - 2 * moments.dot
    weight = moments.weight_a + moments.weight_b
    trace = moments.weight_a * moments.weight_b / weight * distance
    return Measurement(
        similarity=equal_halves(tf.clip_by_value(cosine, -1.0, 1.0), moments.weight_a, moments.weight_b),
        squared_gradient_norm=moments.dot,
        noise_trace=_per_example(trace, moments),
    )


def all_pairs(moments: Moments) -> Measurement:
    """The similarity expected of a random split into halves, from the norms of all micro-gradients.

    With K micro-gradients of weights n_i, B their sum and m their mean:
    ``tr(Sigma) = (sum n_i |g_i|^2 - B |m|^2) / (K - 1)``, ``|G|^2 = |m|^2 - tr(Sigma) / B``,
    ``similarity = |G|^2 / (|m|^2 + tr(Sigma) / B)``. One plain all-reduce and one scalar suffice.

    Args:
        moments: Moments with ``weighted_squared_norms``; NaN results for fewer than two micro-gradients.

    Returns:
        The measurement.
    """
    weight = moments.weight_a + moments.weight_b
    excess = moments.weighted_squared_norms - weight * moments.squared_norm
    enough = moments.micro_gradients >= 2
    trace = tf.where(enough, excess / tf.maximum(moments.micro_gradients - 1, 1.0), float("nan"))
    squared_gradient_norm = moments.squared_norm - trace / weight
    return Measurement(
        similarity=tf.clip_by_value(squared_gradient_norm / (moments.squared_norm + trace / weight), -1.0, 1.0),
        squared_gradient_norm=squared_gradient_norm,
        noise_trace=_per_example(trace, moments),
    )


def equal_halves(cosine: tf.Tensor, weight_a: tf.Tensor, weight_b: tf.Tensor) -> tf.Tensor:
    """The cosine that two halves of the same total would show, from that of two unequal groups.

    With r the noise scale, groups of nA and nB show ``1 / sqrt((1 + r/nA)(1 + r/nB))`` and halves ``1 / (1 + 2r/(nA + nB))``.
    Solving the first for r and putting it into the second, arranged so that neither end of [0, 1] cancels; odd in the
    cosine, as a negative one has no r; the identity for equal groups.

    Args:
        cosine: In [-1, 1], float32 scalar.
        weight_a: Weight of group A, float32 scalar.
        weight_b: Weight of group B, float32 scalar.

    Returns:
        Float32 scalar in [-1, 1]; NaN if a group is empty.
    """
    c = tf.abs(cosine)
    unexplained = (1 - c) * (1 + c)
    p = 1 / weight_a + 1 / weight_b
    q = 1 / (weight_a * weight_b)
    d = c * (c * p + tf.sqrt(c * c * p * p + 4 * q * unexplained))
    return tf.sign(cosine) * d / (d + 4 * unexplained / (weight_a + weight_b))


def _per_example(trace: tf.Tensor, moments: Moments) -> tf.Tensor:
    """A trace per unit of weight (tokens, say) as one per example: a mean over more units has less variance."""
    return trace * moments.examples / (moments.weight_a + moments.weight_b)


STATISTICS: dict[str, Callable[[Moments], Measurement]] = {
    "two_groups": two_groups,
    "two_groups_by_variable": two_groups,
    "all_pairs": all_pairs,
}
