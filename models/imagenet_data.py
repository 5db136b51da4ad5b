"""Images as encoded JPEG in TFRecord files, and what a network is given of them: crops for training, the middle for validation.

Records are those of tf-models-official, but for their labels, which begin with 0.
"""

import tensorflow as tf

from models.record_pipeline import PerRecord

IMAGE, LABEL = "image/encoded", "image/class/label"
# Of the training images of ImageNet, red, green, blue, in units of 255.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
# Width to height of a crop for training.
ASPECT_RATIOS = (3 / 4, 4 / 3)
# Of the shorter side: what is kept for validation.
KEPT = 0.875
# Records of ImageNet have 110 kB; theirs is a random order already where a preparation has dealt them to files.
SHUFFLED_TOGETHER = 2048


def serialized(image: bytes, label: int) -> bytes:
    """A record: a JPEG in RGB or greyscale, and the number of its class."""
    features = {
        IMAGE: tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        LABEL: tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)


def standardise(images):
    """Any dtype [..., 3], 0 to 255 -> float32 with mean 0 and standard deviation 1 a channel over ImageNet."""
    mean, std = (tf.constant(values) * 255.0 for values in (MEAN, STD))
    return (tf.cast(images, tf.float32) - mean) / std


def training(image_size: int, min_crop_area: float) -> PerRecord:
    """Records to standardised crops of any size and place, every other one mirrored: float32 [size, size, 3], int32 [].

    Args:
        image_size: Height and width in pixels.
        min_crop_area: The least share of the image that a crop has, above 0, at most 1.
    """

    def read(record, record_seed):
        jpeg, label = _parse(record)
        seeds = tf.random.experimental.stateless_split(record_seed, 2)
        image = _decode(jpeg, random_window(jpeg, seeds[0], min_crop_area), image_size)
        return standardise(tf.image.stateless_random_flip_left_right(image, seeds[1])), label

    return PerRecord(read, SHUFFLED_TOGETHER)


def validation(image_size: int) -> PerRecord:
    """Records to their standardised middle: float32 [size, size, 3], int32 []."""

    def read(record):
        jpeg, label = _parse(record)
        return standardise(_decode(jpeg, middle_window(jpeg), image_size)), label

    return PerRecord(read, SHUFFLED_TOGETHER)


def to_serve(image_size: int) -> PerRecord:
    """As for validation, but not standardised: uint8 [size, size, 3], int32 []."""

    def read(record):
        jpeg, label = _parse(record)
        return tf.cast(tf.round(_decode(jpeg, middle_window(jpeg), image_size)), tf.uint8), label

    return PerRecord(read, SHUFFLED_TOGETHER)


def random_window(jpeg, seed, min_area: float):
    """A part of an image that tf-models-official's training could cut out too: int32 [4], top, left, height and width.

    The aspect ratio is uniform, then the height is, between those of the least area and of what fits into the image; an image
    that no such part fits into, being too long, is taken whole. Width and height are rounded to pixels.

    Args:
        jpeg: Encoded image, a string [].
        seed: Integers [2].
        min_area: The least share of the image.
    """
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(jpeg),
        # The whole image is the object; what a part has to cover of it is min_area's to say.
        bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed=seed,
        min_object_covered=0.0,
        aspect_ratio_range=ASPECT_RATIOS,
        area_range=(min_area, 1.0),
        max_attempts=100,
    )
    return tf.concat([begin[:2], size[:2]], axis=0)


def middle_window(jpeg):
    """The square in the middle of an image, with 0.875 of its shorter side: int32 [4], top, left, height and width."""
    shape = tf.io.extract_jpeg_shape(jpeg)[:2]
    side = tf.maximum(tf.cast(KEPT * tf.cast(tf.reduce_min(shape), tf.float32), tf.int32), 1)
    return tf.concat([(shape - side + 1) // 2, [side, side]], axis=0)


def _parse(record):
    features = {IMAGE: tf.io.FixedLenFeature([], tf.string), LABEL: tf.io.FixedLenFeature([], tf.int64)}
    found = tf.io.parse_single_example(record, features)
    return found[IMAGE], tf.cast(found[LABEL], tf.int32)


def _decode(jpeg, window, image_size: int):
    """A part of an image, the only one that is decoded, in another size: float32 [size, size, 3], 0 to 255."""
    # Not the default, which is less exact and no faster.
    image = tf.io.decode_and_crop_jpeg(jpeg, window, channels=3, dct_method="INTEGER_ACCURATE")
    return tf.ensure_shape(tf.image.resize(image, [image_size, image_size], method="bilinear"), [image_size, image_size, 3])
