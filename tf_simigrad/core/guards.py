"""Numerical guards, by name."""

import numpy as np
import tensorflow as tf

TINY = float(np.finfo(np.float32).tiny)
"""The smallest normal float32: devices flush what is smaller to 0."""


def at_least_tiny(value: tf.Tensor) -> tf.Tensor:
    """The value, or ``TINY`` where it is smaller: a divisor that is no 0 and not negative."""
    return tf.maximum(value, TINY)
