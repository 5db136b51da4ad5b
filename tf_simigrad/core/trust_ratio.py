"""Trust ratios: how LARS and LAMB scale the step of one layer (one variable) by the norms of its weights and its step."""

import tensorflow as tf

from tf_simigrad.core import trees

Bounds = tuple[float, float] | None
"""The smallest and the largest ratio, or None."""


def lars_ratio(
    weight: tf.Tensor,
    gradient: tf.Tensor,
    trust_coefficient: float,
    weight_decay: float,
    epsilon: float,
    bounds: Bounds = None,
) -> tf.Tensor:
    """``trust_coefficient |w| / (|g| + weight_decay |w| + epsilon)``, 1 where ``|w|`` or ``|g|`` is 0; then the bounds.

    Args:
        weight: ``w``, float32, any shape.
        gradient: ``g``, the mean gradient without decay, float32, the same shape.
        trust_coefficient: A factor.
        weight_decay: Of this layer.
        epsilon: Added to the divisor.
        bounds: What the result is clipped to.

    Returns:
        Float32 scalar.

    References:
        You, Gitman, Ginsburg, arXiv 1708.03888, algorithm 1 and equation 6.
    """
    weight_norm, gradient_norm = norm(weight), norm(gradient)
    divisor = gradient_norm + weight_decay * weight_norm + epsilon
    return _clipped(_ratio(trust_coefficient * weight_norm, divisor, weight_norm, gradient_norm), bounds)


def lamb_ratio(weight: tf.Tensor, direction: tf.Tensor, bounds: Bounds = None) -> tf.Tensor:
    """``|w| / |d|``, 1 where either is 0; then the bounds.

    Args:
        weight: ``w``, float32, any shape.
        direction: ``d``, the step before the learning rate, decay included: float32, the same shape.
        bounds: What the result is clipped to.

    Returns:
        Float32 scalar.

    References:
        You et al., arXiv 1904.00962, algorithm 2, with the identity for its phi.
    """
    weight_norm, direction_norm = norm(weight), norm(direction)
    return _clipped(_ratio(weight_norm, direction_norm, weight_norm, direction_norm), bounds)


def norm(tensor: tf.Tensor) -> tf.Tensor:
    """Euclidean norm of a float32 tensor of any shape: a float32 scalar."""
    return tf.sqrt(trees.squared_norm([tensor]))


def _ratio(dividend: tf.Tensor, divisor: tf.Tensor, left_norm: tf.Tensor, right_norm: tf.Tensor) -> tf.Tensor:
    """The quotient where both norms are positive, else 1. A norm of NaN is not 0, and its quotient stays NaN."""
    either_is_zero = tf.logical_or(tf.equal(left_norm, 0.0), tf.equal(right_norm, 0.0))
    return tf.where(either_is_zero, 1.0, tf.math.divide_no_nan(dividend, divisor))


def _clipped(ratio: tf.Tensor, bounds: Bounds) -> tf.Tensor:
    return ratio if bounds is None else tf.clip_by_value(ratio, *bounds)
