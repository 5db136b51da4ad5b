"""ImageNet and its residual networks."""

from dataclasses import dataclass
from pathlib import Path

from models import imagenet_resnet, prepared
from models.tasks.base import SERVING_EXAMPLES, Data
from models.tasks.classification import Classification

KIND = "imagenet"


class ImageNetData(Data):
    """Encoded images in TFRecord files.

    Args:
        folder: From ``tools.prepare_data imagenet``.
        metadata: Of that folder.
        image_size: Height and width of what the network is given, in pixels.
        min_crop_area: The least share of an image that a crop for training has.
    """

    def __init__(self, folder, metadata, image_size, min_crop_area):
        self.files = {split: [Path(folder) / name for name in names] for split, names in metadata["files"].items()}
        self.examples = metadata["examples"]["train"]
        self.validation_examples = metadata["examples"]["validation"]
        self._image_size, self._min_crop_area = image_size, min_crop_area

    def training(self, element, seed, initial_epoch, examples_per_epoch):
        from models import imagenet_data, record_pipeline

        files, read = self.files["train"], imagenet_data.training(self._image_size, self._min_crop_area)
        return record_pipeline.epochs_dataset(files, self.examples, read, element, seed, initial_epoch, examples_per_epoch)

    def validation(self, element, examples):
        from models import imagenet_data, record_pipeline

        read = imagenet_data.validation(self._image_size)
        return record_pipeline.evaluation_dataset(self.files["validation"], examples, read, element)

    def images_to_serve(self):
        """The first few for validation as a server gets them: uint8 [images, size, size, 3]."""
        from models import imagenet_data, record_pipeline

        examples = min(SERVING_EXAMPLES, self.validation_examples)
        read = imagenet_data.to_serve(self._image_size)
        dataset = record_pipeline.evaluation_dataset(self.files["validation"], examples, read, examples)
        images, _ = next(iter(dataset.as_numpy_iterator()))
        return images


@dataclass(frozen=True)
class ImageNet(Classification):
    """Classes of photographs, by ResNet v1.5 and its crops of any size.

    Attributes:
        depth: Of the network, one of ``models.imagenet_resnet.DEPTHS``.
        width: By which its numbers of channels are multiplied.
        image_size: Height and width of what it is given, in pixels.
        classes: How many, as the data was prepared.
        label_smoothing: The part of a label's weight that all classes share.
        min_crop_area: The least share of an image that a crop for training has.
    """

    depth: int = 50
    width: float = 1.0
    image_size: int = 224
    classes: int = 1000
    label_smoothing: float = 0.1
    min_crop_area: float = 0.08

    only_keras = "tf_keras"

    def __post_init__(self):
        if self.depth not in imagenet_resnet.DEPTHS:
            raise ValueError(f"depth={self.depth}: expected one of {', '.join(map(str, imagenet_resnet.DEPTHS))}")
        if not 1 <= imagenet_resnet.CHANNELS * self.width < float("inf"):
            raise ValueError(f"width={self.width}: expected at least 1/{imagenet_resnet.CHANNELS}, which leaves one channel")
        if not self.image_size >= 1:
            raise ValueError(f"image_size={self.image_size}: expected 1 or more, in pixels")
        if not self.classes >= 2:
            raise ValueError(f"classes={self.classes}: expected 2 or more")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing={self.label_smoothing}: expected 0 to less than 1")
        if not 0 < self.min_crop_area <= 1:
            raise ValueError(f"min_crop_area={self.min_crop_area}: expected a share above 0, at most 1")

    def check_data(self, data_dir):
        prepared.check_settings(data_dir, prepared.read_metadata(data_dir, KIND), classes=self.classes)

    def data_fingerprint(self, data_dir):
        return prepared.fingerprint(data_dir)

    def load(self, data_dir):
        return ImageNetData(data_dir, prepared.read_metadata(data_dir, KIND), self.image_size, self.min_crop_area)

    def build(self):
        return imagenet_resnet.build(self.classes, self.image_size, self.depth, self.width)

    def compile_arguments(self):
        import tensorflow as tf

        from models.label_smoothing import SmoothedCrossEntropy

        arguments = super().compile_arguments()
        if self.classes > 5:
            arguments["metrics"].append(tf.keras.metrics.SparseTopKCategoricalAccuracy(5, "top_5_accuracy"))
        return {**arguments, "loss": SmoothedCrossEntropy(self.label_smoothing)}

    def element_spec(self, micro_batch_size):
        import tensorflow as tf

        images = tf.TensorSpec([micro_batch_size, self.image_size, self.image_size, 3], tf.float32)
        return images, tf.TensorSpec([micro_batch_size], tf.int32)

    def signatures(self, model):
        """Of images as they are stored, 0 to 255, in the size of the network: a server does not standardise."""
        import tensorflow as tf

        from models import imagenet_data

        image = tf.TensorSpec([self.image_size, self.image_size, 3], tf.uint8)
        return {"serving_default": self.serving_function(model, image, imagenet_data.standardise)}

    def serving_inputs(self, data):
        return {"serving_default": {"images": data.images_to_serve()}}
