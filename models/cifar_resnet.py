"""Residual networks for 32x32 images: those of 6n + 2 layers, and ResNet-18.

References:
    He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", 2015, section 4.2: three stages of n blocks
    with 16, 32 and 64 channels. The shortcuts are option A, as there: where the shape changes, every second pixel and
    zeros for the new channels, so that no shortcut has parameters.

    ResNet-18 is table 1's with a 3x3 stem without pooling, as in github.com/kuangliu/pytorch-cifar: four stages of two
    blocks with 64, 128, 256 and 512 channels, and option B: where the shape changes, a 1x1 convolution. Different from
    there: kernels start as He's normal ones, and strided 3x3 convolutions pad right and below only, as TensorFlow does.
"""

import tensorflow as tf

from models import cifar_networks

STAGES = (1, 2, 4)
STAGES_OF_18 = (1, 2, 4, 8)


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


def _conv_norm(x, channels, stride, kernel=3):
    x = tf.keras.layers.Conv2D(channels, kernel, stride, "same", use_bias=False, kernel_initializer="he_normal")(x)
    return tf.keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


def _shortcut(x, channels, projects):
    return _conv_norm(x, channels, 2, kernel=1) if projects else OptionAShortcut(channels)(x)


def _block(x, channels, stride, projects):
    shortcut = x if stride == 1 else _shortcut(x, channels, projects)
    x = tf.keras.layers.ReLU()(_conv_norm(x, channels, stride))
    x = _conv_norm(x, channels, 1)
    return tf.keras.layers.ReLU()(tf.keras.layers.Add()([x, shortcut]))


def build(network: str, num_classes: int = 10, width: int | None = None):
    """Builds a CIFAR ResNet.

    Args:
        network: "resnet8", "resnet14", "resnet20", ..., "resnet110" (6n + 2 weighted layers), or "resnet18".
        num_classes: Number of logits.
        width: Channels of the first stage; each later one has twice as many as the one before. By default 16; 64 for ResNet-18.

    Returns:
        A functional Keras model, float32 [batch, 32, 32, 3] -> float32 logits [batch, num_classes].

    Raises:
        ValueError: If there is no such network.
    """
    depth = cifar_networks.depth_of(network)
    is_18 = depth == 18
    stages, blocks, default_width = (STAGES_OF_18, 2, 64) if is_18 else (STAGES, (depth - 2) // 6, 16)
    width = default_width if width is None else width
    inputs = tf.keras.Input((32, 32, 3))
    x = tf.keras.layers.ReLU()(_conv_norm(inputs, width, 1))
    for stage, channels in enumerate(width * times for times in stages):
        for block in range(blocks):
            x = _block(x, channels, stride=2 if stage > 0 and block == 0 else 1, projects=is_18)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    # Logits stay in float32 under mixed precision.
    logits = tf.keras.layers.Dense(num_classes, kernel_initializer="he_normal", dtype="float32")(x)
    return tf.keras.Model(inputs, logits, name=f"cifar_{network}")
