"""A folder of prepared data is taken as a whole: of the right kind, with all of its files and the right settings."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from models import prepared

pytestmark = pytest.mark.one_keras

ROOT = Path(__file__).resolve().parents[2]
KIND = "squad"
FILES = {"train": ["a.tfrecord", "b.tfrecord"], "validation": ["c.json.gz"]}
HOW = "python -m tools.prepare_data squad --help says how to make one"


@pytest.fixture
def folder(tmp_path):
    for names in FILES.values():
        for name in names:
            (tmp_path / name).touch()
    write(tmp_path, {"kind": KIND, "files": FILES, "length": 128, "name": "größe"})
    return tmp_path


def write(folder, metadata):
    (folder / "metadata.json").write_text(json.dumps(metadata, ensure_ascii=False), encoding="utf-8")


def refused(folder, expected):
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}; {re.escape(HOW)}$"):
        prepared.read_metadata(folder, KIND)


@pytest.mark.parametrize("as_path", [Path, str])
def test_the_metadata_are_read(folder, as_path):
    expected = {"kind": KIND, "files": FILES, "length": 128, "name": "größe"}
    assert prepared.read_metadata(as_path(folder), KIND) == expected


def test_no_folder_is_refused():
    refused(None, "--data-dir is missing: expected a folder of the kind squad")


def test_a_folder_without_metadata_is_refused(tmp_path):
    refused(tmp_path / "nowhere", f"{tmp_path}/nowhere holds no prepared data: no metadata.json")
    refused(tmp_path, f"{tmp_path} holds no prepared data: no metadata.json")


@pytest.mark.parametrize("kind", ["bert-pretraining", None])
def test_another_kind_is_refused(folder, kind):
    write(folder, {"kind": kind, "files": FILES})
    refused(folder, f"{folder} holds prepared data of the kind {kind}, expected squad")


def test_missing_files_are_named(folder):
    for name in ("b.tfrecord", "c.json.gz"):
        (folder / name).unlink()
    (folder / "c.json.gz").mkdir()
    refused(folder, f"{folder} is incomplete: b.tfrecord, c.json.gz missing")


@pytest.mark.parametrize(
    "text", ["", '{"kind": "squ', "[]", '"squad"', '{"kind": "squad"}', '{"kind": "squad", "files": ["a"]}']
)
def test_what_is_no_metadata_is_refused(folder, text):
    (folder / "metadata.json").write_text(text)
    with pytest.raises(ValueError, match=rf"metadata\.json .*; {re.escape(HOW)}$") as error:
        prepared.read_metadata(folder, KIND)
    assert str(error.value).startswith(f"{folder}/metadata.json is not what tools.prepare_data writes (")


def test_settings_that_fit_are_accepted(folder):
    metadata = {"length": 128, "predictions": 20, "vocabulary_size": 30_522}
    prepared.check_settings(folder, metadata, length=128, predictions=20)
    prepared.check_settings(folder, metadata)


def test_all_settings_that_do_not_fit_are_named(folder):
    with pytest.raises(ValueError) as error:
        prepared.check_settings(folder, {"length": 128, "predictions": 20}, length=512, predictions=20, stride=64)
    expected = f"{folder} does not fit the experiment: length=512, prepared with 128; stride=64, prepared with None. "
    assert str(error.value).startswith(expected) and "Prepare it anew, or --set task.<name>" in str(error.value)


def test_it_needs_no_tensorflow():
    """Folders are checked before TensorFlow is imported, which takes seconds."""
    code = "import sys, models.prepared; print({'tensorflow', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


def test_only_a_preparation_of_the_same_kind_is_replaced(folder, tmp_path):
    prepared.check_replaceable(folder, KIND)
    prepared.check_replaceable(tmp_path / "new", KIND)
    expected = f"--output {folder} holds prepared data of the kind squad: use another folder, or remove it first"
    with pytest.raises(ValueError, match=re.escape(expected)):
        prepared.check_replaceable(folder, "bert-pretraining")
    for text in ("", "[]", "{}"):
        (folder / "metadata.json").write_text(text)
        with pytest.raises(ValueError, match="of the kind unknown"):
            prepared.check_replaceable(folder, KIND)
