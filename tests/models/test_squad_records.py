"""Windows come back from TFRecord files as the inputs and labels of a span labeler."""

import numpy as np
import pytest
import tensorflow as tf

from models import squad, squad_records
from tests.models.squad_examples import question, write_vocabulary

pytestmark = pytest.mark.one_keras

LENGTH = 75


@pytest.fixture
def windows(tmp_path):
    """Several windows of two questions, with the answer and without."""
    cut = squad.Windows(write_vocabulary(tmp_path), LENGTH, stride=5)
    found = [*cut.of(question(asked="?" * 60)), *cut.of(question("France"))]
    assert len(found) > 3 and len({window.end > 0 for window in found}) == 2
    return found


def serialized(path):
    return tf.stack(list(tf.data.TFRecordDataset(str(path))))


def test_windows_come_back(windows, tmp_path):
    # What is read once is enough: the windows of a whole file are written as they are made.
    squad_records.write(iter(windows), tmp_path / "a.tfrecord")
    inputs, labels = squad_records.parse(LENGTH)(serialized(tmp_path / "a.tfrecord"))
    expected = {
        "input_word_ids": np.stack([window.word_ids for window in windows]),
        "input_mask": np.stack([window.mask for window in windows]),
        "input_type_ids": np.stack([window.type_ids for window in windows]),
    }
    assert inputs.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(inputs[name], values, err_msg=name)
    assert labels.keys() == {"start_positions", "end_positions"}
    assert labels["start_positions"].numpy().tolist() == [window.start for window in windows]
    assert labels["end_positions"].numpy().tolist() == [window.end for window in windows]


def test_everything_is_int32_of_static_length(windows, tmp_path):
    squad_records.write(windows, tmp_path / "a.tfrecord")
    dataset = tf.data.TFRecordDataset(str(tmp_path / "a.tfrecord")).batch(2, drop_remainder=True)
    tokens, place = tf.TensorSpec([2, LENGTH], tf.int32), tf.TensorSpec([2], tf.int32)
    assert dataset.map(squad_records.parse(LENGTH)).element_spec == (
        {"input_word_ids": tokens, "input_mask": tokens, "input_type_ids": tokens},
        {"start_positions": place, "end_positions": place},
    )


def test_another_length_is_refused(windows, tmp_path):
    squad_records.write(windows, tmp_path / "a.tfrecord")
    with pytest.raises(tf.errors.InvalidArgumentError, match="Number of int64 values != expected"):
        squad_records.parse(LENGTH - 1)(serialized(tmp_path / "a.tfrecord"))


def test_no_windows_are_an_empty_file(tmp_path):
    squad_records.write([], tmp_path / "a.tfrecord")
    assert list(tf.data.TFRecordDataset(str(tmp_path / "a.tfrecord"))) == []
