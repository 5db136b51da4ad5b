"""Numerical guards, by name."""

import tensorflow as tf

TINY = 2.0**-126
"""The smallest normal float32: devices flush what is smaller to 0."""


def at_least_tiny(value: tf.Tensor) -> tf.Tensor:
    """The value, or ``TINY`` where it is smaller: a divisor that is no 0 and not negative."""
    return tf.maximum(value, TINY)
