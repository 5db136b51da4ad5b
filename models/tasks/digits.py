"""Handwritten digits, which come with scikit-learn."""

from dataclasses import dataclass

from models.tasks.arrays import ArrayClassification, ArrayData


@dataclass(frozen=True)
class Digits(ArrayClassification):
    """scikit-learn's digits and a small convolutional network. It has no settings."""

    def check_data(self, data_dir):
        if data_dir is not None:
            raise ValueError(f"--data-dir {data_dir}: the digits come with scikit-learn; leave it out")

    def load(self, data_dir):
        from models import digits

        return ArrayData(digits.load())

    def build(self):
        from models import digits

        return digits.build()

    def element_spec(self, micro_batch_size):
        import tensorflow as tf

        images = tf.TensorSpec([micro_batch_size, 8, 8, 1], tf.float32)
        return images, tf.TensorSpec([micro_batch_size], tf.int32)

    def signatures(self, model):
        import tensorflow as tf

        return {"serving_default": self.serving_function(model, tf.TensorSpec([8, 8, 1], tf.float32))}
