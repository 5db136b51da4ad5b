"""Cross-entropy with smoothed labels for integer labels, which Keras has for one-hot labels only."""

import tensorflow as tf


@tf.keras.utils.register_keras_serializable(package="tf_simigrad_models")
class SmoothedCrossEntropy(tf.keras.losses.Loss):
    """Softmax cross-entropy of logits with labels that give every class a part of their weight.

    loss = -(1 - s) log p[label] - s / K sum_k log p[k], for K classes and a smoothing s.

    Args:
        label_smoothing: s, 0 to less than 1.
        arguments: Of every Keras loss.

    References:
        Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2015, section 7.
    """

    def __init__(self, label_smoothing: float, name: str = "smoothed_cross_entropy", **arguments) -> None:
        super().__init__(name=name, **arguments)
        self.label_smoothing = label_smoothing

    def call(self, labels, logits):
        """Integers [batch] or [batch, 1] and float32 logits [batch, classes] -> the loss of each example, float32 [batch]."""
        # Keras gives labels a second axis.
        one_hot = tf.one_hot(tf.cast(tf.reshape(labels, [-1]), tf.int32), logits.shape[-1])
        return tf.keras.losses.categorical_crossentropy(one_hot, logits, from_logits=True, label_smoothing=self.label_smoothing)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}
