"""CIFAR-10 and its residual networks."""

from dataclasses import dataclass

from models.cifar_networks import depth_of
from models.tasks.arrays import ArrayClassification, ArrayData


@dataclass(frozen=True)
class Cifar10(ArrayClassification):
    """CIFAR-10 with its usual augmentation, by shifts and mirroring.

    Attributes:
        network: "resnet8" to "resnet110", 6n + 2 layers deep, or "resnet18".
        width: Channels of its first stage; 0: the network's own.
    """

    network: str = "resnet20"
    width: int = 0

    def __post_init__(self):
        depth_of(self.network)
        if not self.width >= 0:
            raise ValueError(f"width={self.width}: expected 0 or more")

    def check_data(self, data_dir):
        from models import cifar_data

        if data_dir is not None:
            cifar_data.find(data_dir)

    def load(self, data_dir):
        from models import cifar_data, input_pipeline

        return ArrayData(cifar_data.load(data_dir), input_pipeline.standardise_cifar10, input_pipeline.crop_and_flip)

    def build(self):
        from models import cifar_resnet

        return cifar_resnet.build(self.network, width=self.width or None)

    def element_spec(self, micro_batch_size):
        import tensorflow as tf

        images = tf.TensorSpec([micro_batch_size, 32, 32, 3], tf.float32)
        return images, tf.TensorSpec([micro_batch_size], tf.uint8)

    def signatures(self, model):
        """Of images as they are stored, 0 to 255: a server does not standardise."""
        import tensorflow as tf

        from models import input_pipeline

        image = tf.TensorSpec([32, 32, 3], tf.uint8)
        return {"serving_default": self.serving_function(model, image, input_pipeline.standardise_cifar10)}
