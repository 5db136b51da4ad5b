"""The residual networks of ImageNet, from tf-models-official (tf_keras models, whatever Keras the process uses)."""

CLASSES = 1000
IMAGE_SIZE = 224
# Those of tf-models-official; from 50 on a block has three convolutions.
DEPTHS = (10, 18, 26, 34, 50, 101, 152, 200, 270, 350, 420)
# Channels of the first stage; each of the other three has twice those of the one before.
CHANNELS = 64


def build(num_classes: int = CLASSES, image_size: int = IMAGE_SIZE, depth: int = 50, width: float = 1.0):
    """Builds a ResNet with its strides in the 3x3 convolutions ("v1.5").

    Its first convolution and the pooling after it leave a quarter of the height and the width, the four stages a 32nd: images
    of 32 pixels end in one pixel. Batch normalisation is that of tf-models-official's experiments with ImageNet.

    Args:
        num_classes: Number of logits.
        image_size: Height and width in pixels.
        depth: Layers with kernels, one of ``DEPTHS``.
        width: By which all numbers of channels are multiplied, rounded down. Training 8 channels (0.125) at 224 pixels on a
            CPU ends the process in TensorFlow 2.20, in plain ``fit`` too, unless TF_ENABLE_ONEDNN_OPTS is 0.

    Returns:
        A model, float32 [batch, image_size, image_size, 3] -> float32 logits [batch, num_classes].

    References:
        He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", 2015; the strides as in Goyal et al., "Accurate,
        Large Minibatch SGD", 2017.
    """
    import tf_keras
    from official.vision.modeling import backbones

    inputs = tf_keras.Input((image_size, image_size, 3))
    backbone = backbones.ResNet(
        depth,
        input_specs=tf_keras.layers.InputSpec(shape=(None, image_size, image_size, 3)),
        depth_multiplier=width,
        norm_momentum=0.9,
        norm_epsilon=1e-5,
    )
    x = tf_keras.layers.GlobalAveragePooling2D()(backbone(inputs)["5"])
    # Logits stay in float32 under mixed precision.
    initializer = tf_keras.initializers.RandomNormal(stddev=0.01)
    logits = tf_keras.layers.Dense(num_classes, kernel_initializer=initializer, dtype="float32")(x)
    return tf_keras.Model(inputs, logits, name=f"resnet{depth}")
