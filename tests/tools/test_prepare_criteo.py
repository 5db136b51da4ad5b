"""tools.prepare_data clicks and criteo from end to end: files, counts, bad records, refusals."""

import gzip
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from models import clicks, criteo, criteo_pipeline, prepared
from tests.tools.command_line import refused
from tools import prepare_data
from tools.prepare import criteo as preparation

pytestmark = [pytest.mark.one_keras, pytest.mark.usefixtures("tf")]

SIZES = tuple(10 + number for number in range(26))
SHARDS, TRAIN, VALIDATION = 3, 400, 90


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    """Several blocks of lines, and several of examples in each file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "BYTES_OF_A_BLOCK", 4000)
        patch.setattr(criteo_pipeline, "EXAMPLES_OF_A_BLOCK", 32)
        yield


def generate(folder, **changes):
    given = {"output": folder, "examples": TRAIN, "validation-examples": VALIDATION, "largest-vocabulary": 20, **changes}
    return ["clicks", *(str(part) for name, value in given.items() for part in (f"--{name}", value))]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A folder with train.tsv, validation.tsv and ceiling.json."""
    folder = tmp_path_factory.mktemp("sources") / "new" / "folder"
    prepare_data.main(generate(folder))
    return folder


def arguments(sources, output, **changes):
    given = {"train": sources / "train.tsv", "validation": sources / "validation.tsv", "output": output, "table-sizes": SIZES,
             "shards": SHARDS, "processes": 1, **changes}  # fmt: skip
    parts = [(f"--{name}", *(value if isinstance(value, tuple) else (value,))) for name, value in given.items()]
    return ["criteo", *(str(part) for of_one in parts for part in of_one)]


@pytest.fixture(scope="module")
def output(sources, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared") / "new" / "folder"
    prepare_data.main(arguments(sources, folder, ceiling=sources / "ceiling.json"))
    return folder


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def stored(*paths):
    records = [record for path in paths for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()]
    return np.frombuffer(b"".join(records), "<i4").reshape(-1, 40)


def expected(path, sizes=SIZES):
    """The examples of a file, line by line."""
    found = [criteo.parse_line(line) for line in path.read_bytes().splitlines()]
    labels, integers, categories = (np.array(column) for column in zip(*found, strict=True))
    return criteo.packed(criteo.Examples(labels.astype("f4"), np.log1p(integers).astype("f4"), categories), sizes)


def in_some_order(rows):
    return sorted(map(tuple, rows.tolist()))


def test_generated_lines_and_their_ceiling(sources):
    assert sorted(files(sources)) == ["ceiling.json", "train.tsv", "validation.tsv"]
    ceiling = json.loads((sources / "ceiling.json").read_text())
    lines = {split: (sources / f"{split}.tsv").read_bytes().splitlines() for split in ("train", "validation")}
    assert {split: len(of_split) for split, of_split in lines.items()} == {"train": TRAIN, "validation": VALIDATION}
    assert (ceiling["examples"], ceiling["seed"], len(ceiling["vocabularies"])) == (VALIDATION, 0, 26)
    assert ceiling["clicks"] == sum(line[:1] == b"1" for line in lines["validation"])
    # The same distribution and draws tell the probabilities of these lines.
    distribution = clicks.Clicks(0, 20)
    (drawn,) = distribution.batches([0, 3], VALIDATION)
    assert distribution.lines(drawn) == (sources / "validation.tsv").read_bytes()
    pairs = [(p > q) + 0.5 * (p == q) for p in drawn.probabilities[drawn.labels == 1]
             for q in drawn.probabilities[drawn.labels == 0]]  # fmt: skip
    assert ceiling["empirical_auc"] == pytest.approx(np.mean(pairs))
    assert ceiling["expected_auc"] == clicks.expected_auc(drawn.probabilities)
    assert ceiling["expected_loss"] == clicks.expected_loss(drawn.probabilities)


def test_seeds_generate_lines_of_their_own(sources, tmp_path, capsys):
    prepare_data.main(generate(tmp_path / "same"))
    (line,) = capsys.readouterr().out.splitlines()
    assert f"{tmp_path / 'same'}: 400 lines for training, 90 for validation, of which " in line
    assert "no model's AUC is above 0." in line
    assert files(tmp_path / "same") == files(sources)
    prepare_data.main(generate(tmp_path / "other", seed=1))
    ours, theirs = files(tmp_path / "other"), files(sources)
    assert not any(ours[name] == theirs[name] for name in theirs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"examples": 0}, "--examples 0: expected 1 or more"),
        ({"validation-examples": 1}, "--validation-examples 1: expected 2 or more"),
        ({"seed": -1}, "--seed -1: expected 0 or more"),
        ({"largest-vocabulary": 3}, "largest_vocabulary=3: expected 4 to"),
    ],
)
def test_what_cannot_be_generated_is_refused(tmp_path, capsys, changes, message):
    assert message in refused(prepare_data.main, capsys, *generate(tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()


def test_files_are_those_of_the_metadata(output):
    metadata = prepared.read_metadata(output, "criteo")
    train = [f"train-0000{shard}-of-00003.tfrecord" for shard in range(SHARDS)]
    assert metadata["files"] == {"train": train, "validation": ["validation-00000-of-00001.tfrecord"]}
    assert sorted(files(output)) == sorted([*train, *metadata["files"]["validation"], "metadata.json"])


def test_the_metadata_count_what_there_is(output, sources):
    metadata = prepared.read_metadata(output, "criteo")
    assert metadata["table_sizes"] == list(SIZES) and metadata["seed"] == 0
    assert metadata["examples"] == {"train": TRAIN, "validation": VALIDATION}
    for split in ("train", "validation"):
        clicked = [line[:1] == b"1" for line in (sources / f"{split}.tsv").read_bytes().splitlines()]
        assert metadata["click_rate"][split] == np.mean(clicked)
    assert metadata["bad_records"] == {"train": 0, "validation": 0}
    ceiling = json.loads((sources / "ceiling.json").read_text())
    names = ("expected_auc", "expected_loss", "empirical_auc", "examples", "clicks")
    assert metadata["ceiling"] == {name: ceiling[name] for name in names}


def test_every_example_is_in_one_file_and_all_have_as_many(output, sources):
    parts = [stored(output / f"train-0000{shard}-of-00003.tfrecord") for shard in range(SHARDS)]
    whole = expected(sources / "train.tsv")
    assert in_some_order(np.concatenate(parts)) == in_some_order(whole)
    assert sorted(map(len, parts)) == [133, 133, 134]
    # In no order of theirs: nearly none follows the one before it.
    places = {tuple(row): place for place, row in enumerate(whole.tolist())}
    steps = np.concatenate([np.diff([places[tuple(row)] for row in part.tolist()]) for part in parts])
    assert np.mean(steps > 0) == pytest.approx(0.5, abs=0.15)


def test_validation_stays_in_its_order(output, sources):
    found = stored(output / "validation-00000-of-00001.tfrecord")
    np.testing.assert_array_equal(found, expected(sources / "validation.tsv"))


def test_the_same_arguments_give_the_same_bytes_and_another_seed_another_order(output, sources, tmp_path, capsys):
    prepare_data.main(arguments(sources, tmp_path / "same", ceiling=sources / "ceiling.json"))
    assert files(tmp_path / "same") == files(output)
    (line,) = capsys.readouterr().out.splitlines()
    assert f"{tmp_path / 'same'}: 400 and 90 examples for training and for validation, of which " in line
    assert "are clicks; 0 bad records; no model's AUC is above 0." in line
    prepare_data.main(arguments(sources, tmp_path / "other", ceiling=sources / "ceiling.json", seed=1))
    ours, theirs = files(tmp_path / "other"), files(output)
    assert ours.keys() == theirs.keys()
    assert {name for name in ours if ours[name] == theirs[name]} == {"validation-00000-of-00001.tfrecord"}


def test_processes_change_nothing(output, sources, tmp_path):
    prepare_data.main(arguments(sources, tmp_path, ceiling=sources / "ceiling.json", processes=2))
    assert files(tmp_path) == files(output)


def test_several_files_and_gzip(output, sources, tmp_path):
    lines = (sources / "train.tsv").read_bytes().splitlines(keepends=True)
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"".join(lines[:150])))
    (tmp_path / "b.tsv").write_bytes(b"".join(lines[150:]).rstrip(b"\n"))
    given = {"train": (tmp_path / "a.tsv.gz", tmp_path / "b.tsv"), "table-sizes": 50}
    prepare_data.main(arguments(sources, tmp_path / "out", **given))
    metadata = prepared.read_metadata(tmp_path / "out", "criteo")
    assert metadata["table_sizes"] == [50] * 26 and metadata["ceiling"] is None
    parts = stored(*(tmp_path / "out" / name for name in metadata["files"]["train"]))
    assert in_some_order(parts) == in_some_order(expected(sources / "train.tsv", [50] * 26))


def test_the_default_tables_are_those_of_the_terabyte(sources, tmp_path):
    given = arguments(sources, tmp_path)
    at = given.index("--table-sizes")
    prepare_data.main(given[:at] + given[at + 27 :])
    assert prepared.read_metadata(tmp_path, "criteo")["table_sizes"] == list(criteo.TERABYTE_TABLES)


def with_bad_records(sources, folder):
    """Both files with lines that cannot be used, and how those are named."""
    lines = {split: (sources / f"{split}.tsv").read_bytes().splitlines() for split in ("train", "validation")}
    lines["train"].insert(0, b"2" + lines["train"][0][1:])
    lines["train"].insert(399, b"0\t1")
    lines["validation"].insert(50, lines["validation"][3][:-1] + b"g")
    for split, of_split in lines.items():
        (folder / f"{split}.tsv").write_bytes(b"\n".join(of_split) + b"\n")
    reasons = ["the label '2' is neither 0 nor 1", "2 fields, expected 40", "the category 25, '"]
    places = [("train", 1), ("train", 400), ("validation", 51)]
    named = [f"{folder / split}.tsv:{line}: {reason}" for (split, line), reason in zip(places, reasons, strict=True)]
    return {split: folder / f"{split}.tsv" for split in lines}, named


@pytest.mark.parametrize("processes", [1, 2])
def test_bad_records_are_left_out_named_and_counted(output, sources, tmp_path, capsys, processes):
    given, named = with_bad_records(sources, tmp_path)
    folder = tmp_path / "out"
    prepare_data.main(arguments(sources, folder, **given, processes=processes, **{"bad-share": 0.02}))
    assert "; 3 bad records; " in capsys.readouterr().out
    found = (folder / "bad_records.txt").read_text().splitlines()
    assert len(found) == 3 and all(line.startswith(start) for line, start in zip(found, named, strict=True))
    metadata = prepared.read_metadata(folder, "criteo")
    assert metadata["bad_records"] == {"train": 2, "validation": 1}
    assert metadata["examples"] == {"train": TRAIN, "validation": VALIDATION}
    name = "validation-00000-of-00001.tfrecord"
    assert (folder / name).read_bytes() == (output / name).read_bytes()


@pytest.mark.parametrize("share", [0.004, 0])
def test_more_than_the_accepted_share_is_an_error_and_an_earlier_preparation_stays(output, sources, tmp_path, capsys, share):
    given, named = with_bad_records(sources, tmp_path)
    before = files(output)
    error = refused(prepare_data.main, capsys, *arguments(sources, output, **given, **{"bad-share": share}))
    assert f"2 of 402 records cannot be used, more than the accepted share of {share}: {named[0]}; {named[1]}" in error
    assert files(output) == before


def test_a_wrong_file_is_not_read_to_its_end(sources, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(preparation, "CHECKED_FROM", 100)
    (tmp_path / "other.tsv").write_bytes(b"some text\n" * 5000)
    error = refused(prepare_data.main, capsys, *arguments(sources, tmp_path / "out", train=tmp_path / "other.tsv"))
    assert "400 of 400 records cannot be used" in error and "other.tsv:1: 1 fields, expected 40" in error
    assert not list((tmp_path / "out").iterdir())


def test_an_earlier_preparation_is_replaced(output, sources, tmp_path):
    folder = shutil.copytree(output, tmp_path / "again")
    for name in ("train-00004-of-00005.tfrecord", "bad_records.txt", "notes.txt"):
        (folder / name).write_text("old")
    prepare_data.main(arguments(sources, folder, ceiling=sources / "ceiling.json"))
    found = files(folder)
    assert found.pop("notes.txt") == b"old"
    assert found == files(output)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shards": 0}, "--shards 0: expected 1 or more"),
        ({"shards": 401}, "400 examples for train: expected 401 or more, one for each file"),
        ({"processes": 0}, "--processes 0: expected 1 or more"),
        ({"seed": -1}, "--seed -1: expected 0 or more"),
        ({"table-sizes": (5, 6)}, "2 table sizes: expected 26 whole numbers, 2 or more"),
        ({"table-sizes": 1}, "1 among the table sizes: expected 26 whole numbers"),
        ({"bad-share": 2}, "a share of bad records of 2.0: expected 0 to 1"),
        ({"train": "nowhere.tsv"}, "nowhere.tsv is no file"),
        ({"validation": "nowhere.tsv"}, "nowhere.tsv is no file"),
        ({"ceiling": "nowhere.json"}, "No such file or directory: 'nowhere.json'"),
    ],
)
def test_arguments_are_refused_and_an_earlier_preparation_stays(output, sources, capsys, changes, message):
    before = files(output)
    assert message in refused(prepare_data.main, capsys, *arguments(sources, output, **changes))
    assert files(output) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not what tools.prepare_data clicks writes"),
        ("[1]", "is not what tools.prepare_data clicks writes"),
        ('{"expected_auc": 0.8}', "is not what tools.prepare_data clicks writes (KeyError"),
    ],
)
def test_a_ceiling_that_is_none_is_refused(sources, tmp_path, capsys, content, message):
    (tmp_path / "ceiling.json").write_text(content)
    given = arguments(sources, tmp_path / "out", ceiling=tmp_path / "ceiling.json")
    assert message in refused(prepare_data.main, capsys, *given)


def test_the_ceiling_of_other_examples_is_refused(output, sources, capsys):
    before = files(output)
    ceiling = json.loads((sources / "ceiling.json").read_text())
    given = arguments(sources, output, ceiling=sources / "ceiling.json", validation=sources / "train.tsv")
    error = refused(prepare_data.main, capsys, *given)
    assert f"is not of these lines for validation, which hold 400 examples, expected {ceiling['examples']}; " in error
    assert files(output) == before


@pytest.mark.parametrize("broken", [b"no gzip", None])
def test_a_broken_gzip_file_is_refused(sources, tmp_path, capsys, broken):
    whole = gzip.compress((sources / "train.tsv").read_bytes())
    path = tmp_path / "train.tsv.gz"
    path.write_bytes(whole[: len(whole) // 2] if broken is None else broken)
    error = refused(prepare_data.main, capsys, *arguments(sources, tmp_path / "out", train=path))
    assert f"{path} is no whole gzip file: " in error
    assert not list((tmp_path / "out").iterdir())


def test_data_of_another_kind_are_not_replaced(sources, tmp_path, capsys):
    (tmp_path / "metadata.json").write_text('{"kind": "squad"}')
    before = files(tmp_path)
    error = refused(prepare_data.main, capsys, *arguments(sources, tmp_path))
    assert f"--output {tmp_path} holds prepared data of the kind squad: use another folder" in error
    assert files(tmp_path) == before
