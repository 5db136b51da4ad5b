"""Shared by the tests of private names: which Keras it is, tiny models and variables."""

import numpy as np
import pytest

from tf_simigrad.compat import keras_private

only_keras_3 = pytest.mark.skipif(not keras_private.KERAS_3, reason="a name of Keras 3")
only_tf_keras = pytest.mark.skipif(keras_private.KERAS_3, reason="a name of tf_keras")


def small_model(k, **compile_arguments):
    model = k.Sequential([k.Input((3,)), k.layers.Dense(4, name="hidden"), k.layers.BatchNormalization(name="norm"),
                          k.layers.Dense(1, name="out")])  # fmt: skip
    model.compile(**{"optimizer": k.optimizers.SGD(0.1), "loss": "mse", **compile_arguments})
    return model


def variable_at_1(tf, dtype="float32"):
    """A trainable Keras variable of value 1, the only one of its layer."""
    layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", dtype=dtype)
    layer.build((None, 1))
    return layer.trainable_variables[0]


def value_of(variable):
    return float(np.array(variable).ravel()[0])
