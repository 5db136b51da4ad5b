"""Windows of SQuAD as TFRecord files."""

from collections.abc import Callable, Iterable
from pathlib import Path

import tensorflow as tf

from models.squad import TOKENS, Window

# Labels of a record: attribute of a window.
PLACES = {"start_positions": "start", "end_positions": "end"}


def write(windows: Iterable[Window], path: Path) -> None:
    """Writes windows, in order."""

    def feature(values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    with tf.io.TFRecordWriter(str(path)) as writer:
        for window in windows:
            features = {name: feature(getattr(window, field)) for name, field in TOKENS.items()}
            features |= {name: feature([getattr(window, field)]) for name, field in PLACES.items()}
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def parse(length: int) -> Callable:
    """What parses serialized records, a string [batch], to (inputs, labels) of a span labeler.

    Args:
        length: Tokens of a window.

    Returns:
        A function; its inputs are int32 [batch, length] by name, its labels int32 [batch].
    """
    spec = {name: tf.io.FixedLenFeature([length], tf.int64) for name in TOKENS}
    spec |= {name: tf.io.FixedLenFeature([], tf.int64) for name in PLACES}

    def parsed(records):
        features = {name: tf.cast(values, tf.int32) for name, values in tf.io.parse_example(records, spec).items()}
        return {name: features[name] for name in TOKENS}, {name: features[name] for name in PLACES}

    return parsed
