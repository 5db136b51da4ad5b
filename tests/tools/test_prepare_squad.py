"""tools.prepare_data squad from end to end, files, counts, bad records, refusals."""

import gzip
import hashlib
import itertools
import json
import shutil

import pytest
import tensorflow as tf

from models import prepared, squad
from tests.models.squad_examples import (
    LENGTH,
    SHARDS,
    STRIDE,
    TRAIN,
    VALIDATION,
    WORDS,
    arguments,
    file_of,
    record,
    windows_of,
    write_sources,
)
from tests.tools.command_line import refused
from tools import prepare_data

pytestmark = [pytest.mark.one_keras, pytest.mark.usefixtures("tf")]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A folder with train.json, validation.json.gz and vocab.txt."""
    return write_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def output(sources, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared") / "new" / "folder"
    prepare_data.main(arguments(sources, folder))
    return folder


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def rows_of(path):
    """The same of a file of records, in order."""
    rows = []
    for serialized in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        features = tf.train.Example.FromString(serialized).features.feature
        names = ("input_word_ids", "input_mask", "input_type_ids", "start_positions", "end_positions")
        rows.append(tuple(itertools.chain(*(features[name].int64_list.value for name in names))))
    return rows


def test_files_are_those_of_the_metadata(output, sources):
    metadata = prepared.read_metadata(output, "squad")
    assert metadata["files"] == {
        "train": [f"train-0000{i}-of-00003.tfrecord" for i in range(SHARDS)],
        "validation": ["validation.json.gz"],
        "vocabulary": ["vocab.txt"],
    }
    named = [name for names in metadata["files"].values() for name in names]
    assert sorted(files(output)) == sorted([*named, "metadata.json"])
    assert (output / "vocab.txt").read_bytes() == (sources / "vocab.txt").read_bytes()


def test_the_metadata_count_what_there_is(output, sources):
    metadata = prepared.read_metadata(output, "squad")
    train, validation = windows_of(sources, "train.json"), windows_of(sources, "validation.json.gz")
    assert {name: metadata[name] for name in ("length", "stride", "seed", "vocabulary_size")} == {
        "length": LENGTH,
        "stride": STRIDE,
        "seed": 0,
        "vocabulary_size": len(WORDS),
    }
    assert metadata["vocabulary_sha256"] == hashlib.sha256((sources / "vocab.txt").read_bytes()).hexdigest()
    assert metadata["questions"] == {"train": 7, "validation": 4}
    assert metadata["examples"] == {
        split: sum(map(len, found.values())) for split, found in (("train", train), ("validation", validation))
    }
    assert metadata["examples"]["train"] > 7 and metadata["examples"]["validation"] > 4
    labelled = [row for of_question in train.values() for row in of_question if row[-1]]
    assert metadata["windows_with_answer"] == len(labelled) < metadata["examples"]["train"]
    assert metadata["bad_records"] == {"train": 0, "validation": 0}


def test_every_window_is_written_once_and_those_of_a_question_side_by_side(output, sources):
    expected = windows_of(sources, "train.json")
    left = dict(expected)
    for shard in range(SHARDS):
        rows = rows_of(output / f"train-0000{shard}-of-00003.tfrecord")
        assert rows
        while rows:
            (name,) = [name for name, of_question in left.items() if rows[: len(of_question)] == of_question]
            del rows[: len(left.pop(name))]
    assert not left


def test_the_validation_file_holds_its_questions_in_order(output, sources):
    assert list(squad.read(output / "validation.json.gz")) == list(squad.read(sources / "validation.json.gz"))


def test_the_same_arguments_give_the_same_bytes_and_another_seed_another_order(output, sources, tmp_path, capsys):
    prepare_data.main(arguments(sources, tmp_path / "same"))
    assert files(tmp_path / "same") == files(output)
    (line,) = capsys.readouterr().out.splitlines()
    examples, labelled = (prepared.read_metadata(output, "squad")[name] for name in ("examples", "windows_with_answer"))
    for expected in (
        f"{tmp_path / 'same'}: 7 questions for training in {examples['train']} windows ({labelled} with the answer)",
        f"4 for validation in {examples['validation']}; 0 bad records; ",
    ):
        assert expected in line
    prepare_data.main(arguments(sources, tmp_path / "other", seed=1))
    ours, theirs = files(tmp_path / "other"), files(output)
    assert ours.keys() == theirs.keys()
    assert {name for name in ours if ours[name] == theirs[name]} == {"vocab.txt", "validation.json.gz"}


def test_an_earlier_preparation_is_replaced_even_by_its_own_files(output, sources, tmp_path):
    folder = shutil.copytree(output, tmp_path / "again")
    for name in ("train-00004-of-00005.tfrecord", "bad_records.txt", "notes.txt"):
        (folder / name).write_text("old")
    own = {"vocabulary": folder / "vocab.txt", "validation": folder / "validation.json.gz"}
    prepare_data.main(arguments(sources, folder, **own))
    found = files(folder)
    assert found.pop("notes.txt") == b"old"
    assert found == files(output)


def with_bad_records(sources, folder):
    """Both files with records that cannot be used, and how those are named."""
    train, validation = (json.loads(json.dumps(paragraphs)) for paragraphs in (TRAIN, VALIDATION))
    train[0]["qas"].insert(1, record(id=None))
    train[1]["qas"].append(record(answers=[]))
    validation[1]["qas"].insert(0, record(answers=[{"text": "Rollo", "answer_start": 3}]))
    given = {"train": file_of(folder, train, "bad.json.gz"), "validation": file_of(folder, validation, "bad.json")}
    places = [
        f"{given['train']}: data[0].paragraphs[0].qas[1]",
        f"{given['train']}: data[0].paragraphs[1].qas[4]",
        f"{given['validation']}: data[0].paragraphs[1].qas[0]",
    ]
    moved = "the answer 'Rollo' does not stand at character 3 of its paragraph"
    reasons = ["no id, or a question without text", "no answers", moved]
    return given, [f"{place}: {reason}" for place, reason in zip(places, reasons, strict=True)]


def test_bad_records_are_left_out_named_and_counted(output, sources, tmp_path, capsys):
    given, named = with_bad_records(sources, tmp_path)
    folder = tmp_path / "out"
    prepare_data.main(arguments(sources, folder, **given, **{"bad-share": 0.25}))
    assert "; 3 bad records; " in capsys.readouterr().out
    found, expected = files(folder), files(output)
    assert found.pop("bad_records.txt").decode().splitlines() == named
    metadata = json.loads(found.pop("metadata.json"))
    assert metadata.pop("bad_records") == {"train": 2, "validation": 1}
    before = json.loads(expected.pop("metadata.json"))
    del before["bad_records"]
    assert (metadata, found) == (before, expected)


@pytest.mark.parametrize("share", [0.22, 0.001, 0])
def test_more_than_the_accepted_share_is_an_error_and_an_earlier_preparation_stays(output, sources, tmp_path, capsys, share):
    given, named = with_bad_records(sources, tmp_path)
    before = files(output)
    error = refused(prepare_data.main, capsys, *arguments(sources, output, **given, **{"bad-share": share}))
    assert f"2 of 9 records cannot be used, more than the accepted share of {share}: {named[0]}; {named[1]}" in error
    assert files(output) == before


def test_the_share_is_of_each_file(output, sources, tmp_path, capsys):
    given, named = with_bad_records(sources, tmp_path)
    changes = {"validation": given["validation"], "bad-share": 0.19}
    error = refused(prepare_data.main, capsys, *arguments(sources, tmp_path / "out", **changes))
    assert f"1 of 5 records cannot be used, more than the accepted share of 0.19: {named[2]}" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shards": 0}, "--shards 0: expected 1 or more"),
        ({"shards": 8}, "7 questions for training, 4 for validation: expected at least --shards=8 and 1"),
        ({"stride": 0}, "length=96, stride=0"),
        ({"stride": 30}, "the stride must be 1 to that"),
        ({"length": 67}, "length=67, stride=8"),
        ({"bad-share": 2}, "a share of bad records of 2.0: expected 0 to 1"),
        ({"train": "nowhere.json"}, "No such file or directory: 'nowhere.json'"),
        ({"validation": "nowhere.json"}, "No such file or directory: 'nowhere.json'"),
        ({"vocabulary": "nowhere.txt"}, "No such file or directory: 'nowhere.txt'"),
        ({"seed": "one"}, "argument --seed: invalid int value: 'one'"),
    ],
)
def test_arguments_are_refused_and_an_earlier_preparation_stays(output, sources, capsys, changes, message):
    before = files(output)
    assert message in refused(prepare_data.main, capsys, *arguments(sources, output, **changes))
    assert files(output) == before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train", b"{", "is no SQuAD file"),
        ("train", b'{"data": []}', "0 questions for training, 4 for validation"),
        ("validation", b'{"data": []}', "7 questions for training, 0 for validation"),
        ("vocabulary", b"[PAD]\n[UNK]\n[CLS]\n[MASK]\n", "lacks [SEP]"),
        ("vocabulary", "\n".join([*WORDS, "rollo"]).encode(), "holds 1 tokens more than once"),
        ("vocabulary", b"\xff\xfe", "'utf-8' codec can't decode"),
    ],
)
def test_files_are_refused_and_an_earlier_preparation_stays(output, sources, tmp_path, capsys, name, content, message):
    before = files(output)
    (tmp_path / "file").write_bytes(content)
    assert message in refused(prepare_data.main, capsys, *arguments(sources, output, **{name: tmp_path / "file"}))
    assert files(output) == before


def test_data_of_another_kind_are_not_replaced(sources, tmp_path, capsys):
    (tmp_path / "metadata.json").write_text('{"kind": "bert-pretraining"}')
    (tmp_path / "train-00000-of-00001.tfrecord").write_text("of another kind")
    before = files(tmp_path)
    error = refused(prepare_data.main, capsys, *arguments(sources, tmp_path))
    assert f"--output {tmp_path} holds prepared data of the kind bert-pretraining: use another folder" in error
    assert files(tmp_path) == before


def test_the_validation_file_says_nothing_of_the_time(output):
    # The bytes 4 to 8 of a gzip file are when it was written.
    assert (output / "validation.json.gz").read_bytes()[4:8] == bytes(4)
    assert json.loads(gzip.decompress((output / "validation.json.gz").read_bytes()))["version"] == "1.1"
