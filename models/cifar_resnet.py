"""Residual networks for 32x32 images, 6n + 2 layers deep.

References:
    He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", 2015, section 4.2: three stages of n blocks
    with 16, 32 and 64 channels. The shortcuts are option A, as there: where the shape changes, every second pixel and
    zeros for the new channels, so that no shortcut has parameters.
"""

import tensorflow as tf

STAGES = (1, 2, 4)


@tf.keras.utils.register_keras_serializable("cifar_resnet")
class OptionAShortcut(tf.keras.layers.Layer):
    """Every second pixel, and zeros for the channels that the block adds (half of them on either side)."""

    def __init__(self, channels: int, **kwargs):
        super().__init__(**kwargs)
        self.channels = channels

    def call(self, inputs):
        added = self.channels - inputs.shape[-1]
        before = added // 2
        return tf.pad(inputs[:, ::2, ::2, :], [[0, 0], [0, 0], [0, 0], [before, added - before]])

    def compute_output_shape(self, input_shape):
        batch, height, width, _ = input_shape
        return (batch, (height + 1) // 2, (width + 1) // 2, self.channels)

    def get_config(self):
        return {**super().get_config(), "channels": self.channels}


def _conv_norm(x, channels, stride):
    x = tf.keras.layers.Conv2D(channels, 3, stride, "same", use_bias=False, kernel_initializer="he_normal")(x)
    return tf.keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


def _block(x, channels, stride):
    shortcut = x if stride == 1 else OptionAShortcut(channels)(x)
    x = tf.keras.layers.ReLU()(_conv_norm(x, channels, stride))
    x = _conv_norm(x, channels, 1)
    return tf.keras.layers.ReLU()(tf.keras.layers.Add()([x, shortcut]))


def build(depth: int, num_classes: int = 10, width: int = 16):
    """Builds a CIFAR ResNet.

    Args:
        depth: Number of weighted layers, 6n + 2: 8, 14, 20, 32, 44, 56, 110, ...
        num_classes: Number of logits.
        width: Channels of the first stage; the second has twice, the third four times as many.

    Returns:
        A functional Keras model, float32 [batch, 32, 32, 3] -> float32 logits [batch, num_classes].

    Raises:
        ValueError: If `depth` is not 6n + 2 with n >= 1.
    """
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth={depth}: a CIFAR ResNet is 6n + 2 layers deep: 8, 14, 20, 32, 44, 56, 110, ...")
    inputs = tf.keras.Input((32, 32, 3))
    x = tf.keras.layers.ReLU()(_conv_norm(inputs, width, 1))
    for stage, channels in enumerate(width * times for times in STAGES):
        for block in range((depth - 2) // 6):
            x = _block(x, channels, stride=2 if stage > 0 and block == 0 else 1)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    # Logits stay in float32 under mixed precision.
    logits = tf.keras.layers.Dense(num_classes, kernel_initializer="he_normal", dtype="float32")(x)
    return tf.keras.Model(inputs, logits, name=f"cifar_resnet{depth}")
