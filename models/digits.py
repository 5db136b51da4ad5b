"""Handwritten digits, 8x8 pixels: the data set that comes with scikit-learn, and a small network for it."""

import numpy as np
import tensorflow as tf

TEST_EXAMPLES = 360


def load():
    """Loads the digits in a fixed split, stratified by class.

    Returns:
        ((x_train, y_train), (x_test, y_test)): 1437 and 360 examples; x float32 [n, 8, 8, 1] in [0, 1], y int32 [n].
    """
    # Imported here: the network is usable without scikit-learn.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    x = (digits.images / 16.0).astype(np.float32)[..., np.newaxis]
    y = digits.target.astype(np.int32)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=TEST_EXAMPLES, stratify=y, random_state=0)
    return (x_train, y_train), (x_test, y_test)


def build():
    """Builds two convolutions and a linear layer: float32 [batch, 8, 8, 1] -> logits [batch, 10]."""
    layers = tf.keras.layers
    inputs = tf.keras.Input((8, 8, 1))
    x = layers.Conv2D(16, 3, padding="same", activation="relu", kernel_initializer="he_normal")(inputs)
    x = layers.Conv2D(32, 3, strides=2, padding="same", activation="relu", kernel_initializer="he_normal")(x)
    logits = layers.Dense(10, dtype="float32")(layers.Flatten()(x))
    return tf.keras.Model(inputs, logits, name="digits")
