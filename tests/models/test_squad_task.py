"""The folder of tools.prepare_data squad as the task reads it: windows for training, questions that judge a model."""

import itertools
import shutil

import numpy as np
import pytest
import tensorflow as tf

from models.tasks import Squad
from tests.models.squad_examples import LENGTH, STRIDE, WORDS, arguments, windows_of, write_sources
from tools import prepare_data

pytestmark = pytest.mark.one_keras

TASK = Squad(encoder="tiny", length=LENGTH, stride=STRIDE, vocabulary_size=len(WORDS))
TOKENS = ("input_word_ids", "input_mask", "input_type_ids")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return write_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def output(sources, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    prepare_data.main(arguments(sources, folder))
    return folder


@pytest.mark.parametrize("micro_batch_size", [1, 4])
def test_training_elements_are_those_that_the_task_announces(output, micro_batch_size):
    TASK.check_data(output)
    data = TASK.load(output)
    dataset = data.training(micro_batch_size, seed=0, initial_epoch=0, examples_per_epoch=2 * micro_batch_size)
    assert dataset.element_spec == TASK.element_spec(micro_batch_size)


def test_a_pass_of_training_holds_every_window_once(output, sources):
    data = TASK.load(output)
    expected = sorted(row for of_question in windows_of(sources, "train.json").values() for row in of_question)
    assert data.examples == len(expected)
    elements = itertools.islice(data.training(1, 0, 0, data.examples), data.examples)
    rows = []
    for inputs, labels in elements:
        values = [inputs[name] for name in ("input_word_ids", "input_mask", "input_type_ids")]
        values += [labels[name][:, None] for name in ("start_positions", "end_positions")]
        rows.append(tuple(np.concatenate(values, axis=1)[0].tolist()))
    assert sorted(rows) == expected


@pytest.mark.parametrize("left_out", [0, 1, 5])
def test_validation_holds_the_first_windows_in_order(output, sources, left_out):
    data = TASK.load(output)
    expected = np.array([row[:-2] for of_question in windows_of(sources, "validation.json.gz").values() for row in of_question])
    assert data.validation_examples == len(expected)
    examples = len(expected) - left_out
    elements = list(data.validation(4, examples))
    assert [len(element["input_mask"]) for element in elements] == [4] * (examples // 4) + [examples % 4] * (examples % 4 > 0)
    found = np.concatenate(
        [
            np.concatenate([element[name] for name in ("input_word_ids", "input_mask", "input_type_ids")], axis=1)
            for element in elements
        ]
    )
    np.testing.assert_array_equal(found, expected[:examples])


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_model_is_judged_by_the_answers_of_all_windows(output, strategies, replicas):
    """One that answers every question with Rollo: right for two of four, and no other answer shares a word with it."""

    def model(features, training):
        assert not training
        logits = tf.cast(features["input_word_ids"] == WORDS.index("rollo"), tf.float32)
        return logits, logits

    seen = []
    data = TASK.load(output)
    found = TASK.judge(model, strategies(replicas))(data, 4, data.validation_examples, seen.append)
    assert found == {"exact_match": 50.0, "f1": 50.0}
    assert sum(seen) == data.validation_examples and set(seen[:-1]) == {4}


def test_only_questions_with_all_of_their_windows_are_judged(output, strategies):
    def model(features, training):
        # The second question, whose answer is France, and no other.
        logits = tf.cast(features["input_word_ids"] == WORDS.index("france"), tf.float32)
        return logits, logits

    data = TASK.load(output)
    first, second = (len(windows) for _, windows in data.questions()[:2])
    assert first > 2
    for examples, exact in ((first, 0.0), (first + second, 50.0)):
        found = TASK.judge(model, strategies(1))(data, 4, examples, lambda examples: None)
        assert found["exact_match"] == exact
    with pytest.raises(ValueError, match=f"validation_examples=2: .* the first one has {first}; 0 takes all"):
        TASK.judge(model, strategies(1))(data, 4, 2, lambda examples: None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 128}, "length=128, prepared with 96"),
        ({"stride": 16}, "stride=16, prepared with 8"),
        ({"vocabulary_size": 30_522}, f"vocabulary_size=30522, prepared with {len(WORDS)}"),
    ],
)
def test_data_of_other_settings_are_refused(output, changes, message):
    settings = {"encoder": "tiny", "length": LENGTH, "stride": STRIDE, "vocabulary_size": len(WORDS), **changes}
    with pytest.raises(ValueError, match=message):
        Squad(**settings).check_data(output)


def test_data_of_another_kind_and_parts_of_data_are_refused(output, tmp_path):
    folder = shutil.copytree(output, tmp_path / "part")
    (folder / "train-00001-of-00003.tfrecord").unlink()
    with pytest.raises(ValueError, match=r"is incomplete: train-00001-of-00003\.tfrecord missing"):
        TASK.check_data(folder)
    (folder / "metadata.json").write_text('{"kind": "bert-pretraining", "files": {}}')
    with pytest.raises(ValueError, match="of the kind bert-pretraining, expected squad"):
        TASK.check_data(folder)
    for nothing, message in ((None, "--data-dir is missing"), (tmp_path, r"no metadata\.json")):
        with pytest.raises(ValueError, match=message):
            TASK.check_data(nothing)


def test_the_vocabulary_goes_to_the_server(output):
    assert [path.read_bytes() for path in TASK.assets(output)] == [(output / "vocab.txt").read_bytes()]
