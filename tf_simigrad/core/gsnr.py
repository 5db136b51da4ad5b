"""The gradient signal to noise ratio: how sure the groups of a batch are of each element of the mean gradient.

All of it acts on lists of tensors, one per layer (a layer is a variable), whole or a shard of it: the sums of shards add up to
those of the whole.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_simigrad.core import guards
from tf_simigrad.core.by_layer import Layers, by_layer

LARGEST_RATIO = 1e4
"""Where groups agree to the last bits of float32 their variance is rounding error, and so would be any larger ratio: identical
gradients must all be equally sure, whatever these bits are."""


def ratio(mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    """``mean^2 / variance``, elementwise, at most ``LARGEST_RATIO``; 0 where the mean is 0.

    Args:
        mean: Mean gradient over the groups, float32, unscaled, any shape.
        variance: Biased variance of the groups' mean gradients, same shape. What is not above 0 is rounding error: no noise.

    Returns:
        Float32, same shape.

    References:
        Jiang et al., arXiv 2309.13681, eq. 2 and 7.
    """
    squared = tf.square(mean)
    return tf.where(squared > 0, tf.minimum(squared / guards.at_least_tiny(variance), LARGEST_RATIO), 0.0)


def layer_sums(means: Sequence[tf.Tensor], variances: Sequence[tf.Tensor]) -> tf.Tensor:
    """What the mean ratio of each layer is made of.

    Args:
        means: Mean gradient of each layer, or a shard of it.
        variances: Variance over the groups, same shapes.

    Returns:
        Float32 [layers, 2]: the sum of the ratios, and the number of elements whose gradient is not 0. The others (rows of an
        embedding that no example touched, padding) say nothing about noise.
    """
    return tf.stack(_sums(list(zip(means, variances, strict=True))))


@by_layer
def _sums(layers: Layers) -> list[tf.Tensor]:
    return [tf.stack([tf.reduce_sum(ratio(m, v)), tf.math.count_nonzero(m, dtype=tf.float32)]) for m, v in layers]


def multipliers(
    means: Sequence[tf.Tensor], variances: Sequence[tf.Tensor], sums: tf.Tensor, gamma: tf.Tensor, upper: tf.Tensor
) -> list[tf.Tensor]:
    """The ratio over its mean in the layer, clipped: what the mean gradient is multiplied by.

    Args:
        means: Mean gradient of each layer, or a shard of it.
        variances: Variance over the groups, same shapes.
        sums: ``layer_sums`` of the whole layers.
        gamma: Lower clip, float32 scalar.
        upper: Upper clip, float32 scalar.

    Returns:
        Float32 in [gamma, upper], same shapes; 1 in a layer whose gradient is 0 throughout.

    References:
        Jiang et al., arXiv 2309.13681, eq. 8 and 9.
    """
    layer_means = tf.unstack(tf.math.divide_no_nan(sums[:, 0], sums[:, 1]), num=len(means))
    return _multipliers(list(zip(means, variances, layer_means, strict=True)), gamma, upper)


@by_layer
def _multipliers(layers: Layers, gamma: tf.Tensor, upper: tf.Tensor) -> list[tf.Tensor]:
    return [
        tf.clip_by_value(tf.where(of_layer > 0, ratio(m, v) / guards.at_least_tiny(of_layer), 1.0), gamma, upper)
        for m, v, of_layer in layers
    ]


def variance_of_groups(sums: tf.Tensor, weights: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
    """The weighted variance of the groups' mean gradients about the mean of all, from the groups' sums.

    ``sum_d w_d (s_d / w_d - m)^2 / sum_d w_d``: biased, as published; for groups of equal weight the plain mean square.

    Args:
        sums: Weighted gradient sums [groups, ...], float32.
        weights: Weights of the groups [groups]. A group without weight does not count.
        mean: Mean gradient over all groups [...].

    Returns:
        Float32 [...].
    """
    each = tf.reshape(weights, [-1] + [1] * len(mean.shape))
    deviations = tf.math.divide_no_nan(sums, each) - mean[None]
    return tf.reduce_sum(each * tf.square(deviations), axis=0) / tf.reduce_sum(weights)


def averaged(averages: Sequence[tf.Tensor], factors: Sequence[tf.Tensor], momentum: tf.Tensor) -> list[tf.Tensor]:
    """``momentum * average + (1 - momentum) * factor`` of each layer, not yet corrected for having begun at 0."""
    return _averaged(list(zip(averages, factors, strict=True)), momentum)


@by_layer
def _averaged(layers: Layers, momentum: tf.Tensor) -> list[tf.Tensor]:
    return [momentum * a + (1.0 - momentum) * f for a, f in layers]


def scaled(means: Sequence[tf.Tensor], factors: Sequence[tf.Tensor], is_scaled: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The mean gradients times their factors, and the sum of the factors of each layer.

    Args:
        means: Mean gradient of each layer, or a shard of it.
        factors: Same shapes.
        is_scaled: Boolean scalar; where it is false the factors are 1.

    Returns:
        The gradients, and float32 [layers]: the sum of the factors over the elements whose gradient is not 0.
    """
    results = _scaled(list(zip(means, factors, strict=True)), is_scaled)
    return [gradient for gradient, _ in results], tf.stack([total for _, total in results])


@by_layer
def _scaled(layers: Layers, is_scaled: tf.Tensor) -> list[tuple[tf.Tensor, tf.Tensor]]:
    used = [(m, tf.where(is_scaled, f, tf.ones_like(f))) for m, f in layers]
    return [(m * f, tf.reduce_sum(tf.where(m != 0, f, 0.0))) for m, f in used]
