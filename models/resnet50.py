"""ResNet-50 v1.5 for 224x224 images, from tf-models-official (a tf_keras model, whatever Keras the process uses)."""

CLASSES = 1000
IMAGE_SIZE = 224


def build(num_classes: int = CLASSES, image_size: int = IMAGE_SIZE):
    """Builds ResNet-50 with its strides in the 3x3 convolutions ("v1.5").

    Args:
        num_classes: Number of logits.
        image_size: Height and width in pixels.

    Returns:
        A model, float32 [batch, image_size, image_size, 3] -> float32 logits [batch, num_classes].

    References:
        He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", 2015; the strides as in Goyal et al., "Accurate,
        Large Minibatch SGD", 2017.
    """
    import tf_keras
    from official.vision.modeling import backbones

    inputs = tf_keras.Input((image_size, image_size, 3))
    backbone = backbones.ResNet(50, input_specs=tf_keras.layers.InputSpec(shape=(None, image_size, image_size, 3)))
    x = tf_keras.layers.GlobalAveragePooling2D()(backbone(inputs)["5"])
    # Logits stay in float32 under mixed precision.
    initializer = tf_keras.initializers.RandomNormal(stddev=0.01)
    logits = tf_keras.layers.Dense(num_classes, kernel_initializer=initializer, dtype="float32")(x)
    return tf_keras.Model(inputs, logits, name="resnet50")
