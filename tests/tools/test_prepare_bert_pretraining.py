"""tools.prepare_data bert-pretraining from end to end: the same bytes from any processes, counts, refusals in one line."""

import json
import random
import shutil

import numpy as np
import pytest

from models import bert_data, prepared
from models.bad_records import BadRecord
from tests.tools.command_line import refused
from tools import prepare_data
from tools.prepare import bert_pretraining

pytestmark = pytest.mark.one_keras

WORDS = [*bert_data.MARKS, ".", "the", "cat", "dog", "saw", "ran", "##ning", "home", "rain", "never"]
SHARDS = 3


def text_of(documents, seed):
    """Documents of a line each, and their tokens."""
    rng = random.Random(seed)
    # "never" is in no text.
    found = [
        [rng.choices(WORDS[6:-1], (9, 3, 3, 2, 2, 1, 2, 1), k=rng.randint(2, 9)) for _ in range(20)] for _ in range(documents)
    ]
    for document in found:
        for sentence in document:
            sentence[0] = "the"
    spoken = [" ".join(" ".join(s).replace(" ##", "").capitalize() + "." for s in document) for document in found]
    return "\n\n".join(spoken) + "\n", [token for document in found for s in document for token in [*s, "."]]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with train.txt, validation.txt and vocab.txt."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "train.txt").write_text(text_of(12, seed=0)[0])
    (folder / "validation.txt").write_text(text_of(4, seed=1)[0])
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder


def arguments(texts, output, **changes):
    given = {
        "text": texts / "train.txt",
        "validation-text": texts / "validation.txt",
        "vocabulary": texts / "vocab.txt",
        "output": output,
        "length": 32,
        "shards": SHARDS,
        "processes": 1,
        **changes,
    }
    return ["bert-pretraining", *(str(part) for name, value in given.items() for part in (f"--{name}", value))]


@pytest.fixture(scope="module")
def output(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared") / "new" / "folder"
    prepare_data.main(arguments(texts, folder))
    return folder


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def records(paths):
    import tensorflow as tf

    return [record for path in paths for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()]


def test_files_are_those_of_the_metadata(output, texts):
    metadata = prepared.read_metadata(output, "bert-pretraining")
    assert metadata["files"] == {
        "train": [f"train-0000{i}-of-00003.tfrecord" for i in range(3)],
        "validation": ["validation-00000-of-00001.tfrecord"],
        "vocabulary": ["vocab.txt"],
    }
    named = [name for names in metadata["files"].values() for name in names]
    assert sorted(files(output)) == sorted([*named, "metadata.json"])
    assert (output / "vocab.txt").read_bytes() == (texts / "vocab.txt").read_bytes()


def test_the_metadata_count_what_there_is(output):
    metadata = prepared.read_metadata(output, "bert-pretraining")
    settings = {name: metadata[name] for name in ("length", "predictions", "vocabulary_size", "seed", "copies")}
    assert settings == {"length": 32, "predictions": 5, "vocabulary_size": 15, "seed": 0, "copies": 1}
    parse = bert_data.parse(32, 5)
    for split in ("train", "validation"):
        names = metadata["files"][split]
        found = parse(records(output / name for name in names))
        assert metadata["examples"][split] == len(found["input_word_ids"])
        assert metadata["masked_words"][split] == found["masked_lm_weights"].numpy().sum()
        assert metadata["random_next"][split] == found["next_sentence_labels"].numpy().sum()
    assert metadata["documents"] == {"train": 12, "validation": 4}
    assert metadata["short_documents"] == metadata["bad_records"] == {"train": 0, "validation": 0}


def test_entropies_are_those_of_the_text(output):
    metadata = prepared.read_metadata(output, "bert-pretraining")
    train, validation = text_of(12, seed=0)[1], text_of(4, seed=1)[1]
    assert metadata["tokens"] == {"train": len(train), "validation": len(validation)}
    p = np.array([validation.count(word) for word in WORDS]) / len(validation)
    q = np.array([train.count(word) + 1 for word in WORDS]) / (len(train) + len(WORDS))
    assert metadata["unigram_entropy_nats"] == pytest.approx(-sum(a * np.log(a) for a in p if a))
    assert metadata["unigram_cross_entropy_nats"] == pytest.approx(-(p * np.log(q)).sum())


def test_every_document_is_in_one_shard(tmp_path):
    settings = bert_data.Settings()
    documents = [[str(i)] for i in range(20)]
    shards = bert_pretraining.deal(documents, "train", 3, settings, tmp_path)
    dealt = [document for shard in shards for document in shard.documents]
    assert sorted(dealt) == sorted(documents) and {len(shard.documents) for shard in shards} == {6, 7}
    assert [shard.documents for shard in shards] != [documents[i::3] for i in range(3)]
    other = bert_pretraining.deal(documents, "train", 3, settings._replace(seed=1), tmp_path)
    assert [shard.documents for shard in other] != [shard.documents for shard in shards]


def test_processes_do_not_matter_and_an_earlier_preparation_is_replaced(output, texts, tmp_path, capsys):
    for name in ("train-00004-of-00005.tfrecord", "train-00000-of-00005.tfrecord.partial", "bad_records.txt", "notes.txt"):
        (tmp_path / name).write_text("old")
    (tmp_path / "metadata.json").write_text('{"kind": "bert-pretraining"}')
    prepare_data.main(arguments(texts, tmp_path, processes=2))
    found = files(tmp_path)
    assert found.pop("notes.txt") == b"old"
    assert found == files(output)
    (line,) = capsys.readouterr().out.splitlines()
    metadata = json.loads(found["metadata.json"])
    for expected in (
        f"{metadata['examples']['train']:,} + {metadata['examples']['validation']:,} examples of 32 tokens",
        "12 + 4 documents (of them 0 + 0 short documents)",
        "0 + 0 bad records",
        f"entropy of the validation tokens {metadata['unigram_entropy_nats']:.3f} nats",
    ):
        assert expected in line


def test_a_seed_copies_and_a_bad_line(output, texts, tmp_path):
    lines = (texts / "train.txt").read_bytes().replace(b"\n\n", b"\n\xff\n\n", 1)
    (tmp_path / "train.txt").write_bytes(lines)
    folder = tmp_path / "prepared"
    changes = {"text": tmp_path / "train.txt", "bad-share": 0.05, "seed": 5, "copies": 3, "predictions": 4}
    prepare_data.main(arguments(texts, folder, **changes))
    reason = "not UTF-8: byte 0xff at byte 1 of the line"
    assert (folder / "bad_records.txt").read_text() == f"{BadRecord(tmp_path / 'train.txt:2', reason)}\n"
    metadata, before = (prepared.read_metadata(path, "bert-pretraining") for path in (folder, output))
    assert metadata["bad_records"] == {"train": 1, "validation": 0}
    assert (metadata["seed"], metadata["copies"], metadata["predictions"]) == (5, 3, 4)
    assert metadata["tokens"] == before["tokens"] and metadata["documents"] == before["documents"]
    # Copies are of the training text only.
    ratios = {split: metadata["examples"][split] / before["examples"][split] for split in ("train", "validation")}
    assert 2.4 < ratios["train"] < 3.6 and 0.7 < ratios["validation"] < 1.4


def test_too_many_bad_lines_are_an_error_and_all_are_written(texts, tmp_path, capsys):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"one\n\nt\x00o\n\n\x01\n\nthree\n")
    error = refused(prepare_data.main, capsys, *arguments(texts, tmp_path / "out", **{"validation-text": path}))
    assert f"2 of 7 records cannot be used, more than the accepted share of 0.001: {path}:3: " in error
    written = (tmp_path / "out" / "bad_records.txt").read_text().splitlines()
    assert [line.split(": ")[0] for line in written] == [f"{path}:3", f"{path}:5"]
    assert sorted(files(tmp_path / "out")) == ["bad_records.txt"]


def test_what_fails_in_a_process_is_said_in_one_line_and_leaves_no_whole_preparation(output, texts, tmp_path, capsys):
    folder = shutil.copytree(output, tmp_path / "out")
    # A zero-width space gives no token.
    (tmp_path / "empty.txt").write_text("The cat ran.\n\n\u200b\n", encoding="utf-8")
    error = refused(prepare_data.main, capsys, *arguments(texts, folder, **{"validation-text": tmp_path / "empty.txt"}))
    assert "shard 0 of the validation text has 1 documents that hold a token" in error and "at least 2" in error
    with pytest.raises(ValueError, match=r"no metadata\.json"):
        prepared.read_metadata(folder, "bert-pretraining")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 4}, "length=4: expected 5 or more"),
        ({"predictions": 30}, "predictions=30: expected 1 to 29"),
        ({"copies": 0}, "copies=0: expected 1 or more"),
        ({"shards": 0}, "--shards 0: expected 1 or more"),
        ({"processes": 0}, "--processes 0: expected 1 or more"),
        ({"shards": 7}, "the train text has 12 documents for 7 shards"),
        ({"bad-share": 2}, "a share of bad records of 2.0: expected 0 to 1"),
        ({"text": "nowhere.txt"}, "No such file or directory: 'nowhere.txt'"),
        ({"vocabulary": "nowhere.txt"}, "No such file or directory: 'nowhere.txt'"),
    ],
)
def test_arguments_are_refused_and_an_earlier_preparation_stays(output, texts, capsys, changes, message):
    before = files(output)
    assert message in refused(prepare_data.main, capsys, *arguments(texts, output, **changes))
    assert files(output) == before


def test_data_of_another_kind_are_not_replaced(texts, tmp_path, capsys):
    (tmp_path / "metadata.json").write_text('{"kind": "squad"}')
    error = refused(prepare_data.main, capsys, *arguments(texts, tmp_path))
    assert f"--output {tmp_path} holds prepared data of the kind squad: use another folder" in error
    assert sorted(files(tmp_path)) == ["metadata.json"]
