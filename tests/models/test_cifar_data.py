"""CIFAR-10 is read alike from every layout, and what is wrong with a folder is said."""

import os
import pickle
from collections import OrderedDict

import numpy as np
import pytest

from models import cifar_data

pytestmark = pytest.mark.one_keras

RECORDS = 7


@pytest.fixture(scope="module")
def batches():
    random = np.random.default_rng(0)
    return [
        (random.integers(0, 256, (RECORDS, 32, 32, 3), np.uint8), random.integers(0, 10, RECORDS, np.uint8)) for _ in range(6)
    ]


def planes(x):
    return x.transpose(0, 3, 1, 2).reshape(len(x), -1)


def write_npz(folder, batches):
    for name, (x, y) in zip([*(f"train_{i}" for i in range(1, 6)), "test"], batches, strict=True):
        np.savez(folder / f"cifar10_{name}.npz", x=x, y=y)


def write_binary(folder, batches):
    for name, (x, y) in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], batches, strict=True):
        np.concatenate([y[:, None], planes(x)], axis=1).tofile(folder / f"{name}.bin")


def write_python(folder, batches):
    for name, (x, y) in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], batches, strict=True):
        batch = {b"batch_label": name.encode(), b"labels": y.tolist(), b"data": planes(x), b"filenames": [b"a.png"] * len(x)}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


LAYOUTS = [(write_npz, "cifar10"), (write_binary, "cifar-10-batches-bin"), (write_python, "cifar-10-batches-py")]


@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize(("write", "folder"), LAYOUTS)
def test_every_layout_gives_the_same_arrays(tmp_path, batches, write, folder, below):
    target = tmp_path / folder if below else tmp_path
    target.mkdir(exist_ok=True)
    write(target, batches)
    (x_train, y_train), (x_test, y_test) = cifar_data.load(tmp_path, records_per_file=RECORDS)
    np.testing.assert_array_equal(x_train, np.concatenate([x for x, _ in batches[:5]]))
    np.testing.assert_array_equal(y_train, np.concatenate([y for _, y in batches[:5]]))
    np.testing.assert_array_equal(x_test, batches[5][0])
    np.testing.assert_array_equal(y_test, batches[5][1])
    assert {array.dtype for array in (x_train, y_train, x_test, y_test)} == {np.dtype(np.uint8)}


def test_an_empty_folder_names_what_was_looked_for(tmp_path):
    with pytest.raises(ValueError, match=r"no CIFAR-10 in .*cifar10_train_1\.npz.*data_batch_1\.bin.*cifar-10-batches-py"):
        cifar_data.load(tmp_path)


def test_an_incomplete_folder_names_what_is_missing(tmp_path, batches):
    write_binary(tmp_path, batches)
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(ValueError, match=r"incomplete: data_batch_3\.bin missing"):
        cifar_data.load(tmp_path, records_per_file=RECORDS)


@pytest.mark.parametrize("write", [write for write, _ in LAYOUTS])
def test_wrong_sizes_are_refused(tmp_path, batches, write):
    write(tmp_path, batches)
    with pytest.raises(ValueError, match=r"holds images uint8 \(7, 32, 32, 3\).*not uint8 \(10000, 32, 32, 3\)"):
        cifar_data.load(tmp_path)


@pytest.mark.parametrize(
    ("write", "name"), [(write_npz, "cifar10_test.npz"), (write_binary, "test_batch.bin"), (write_python, "test_batch")]
)
def test_a_truncated_file_is_named(tmp_path, batches, write, name):
    write(tmp_path, batches)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=f"{name} is no CIFAR-10 file"):
        cifar_data.load(tmp_path, records_per_file=RECORDS)


def test_a_pickle_that_runs_code_is_refused(tmp_path, batches):
    write_python(tmp_path, batches)
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(OrderedDict()))
    with pytest.raises(ValueError, match=r"data_batch_1 .* names collections\.OrderedDict"):
        cifar_data.load(tmp_path, records_per_file=RECORDS)


def test_the_real_data(tmp_path):
    folder = os.environ.get("TF_SIMIGRAD_DATA")
    if not folder:
        pytest.skip("TF_SIMIGRAD_DATA names no folder with CIFAR-10")
    (x_train, y_train), (x_test, y_test) = cifar_data.load(folder)
    assert x_train.shape == (50_000, 32, 32, 3)
    assert x_test.shape == (10_000, 32, 32, 3)
    assert np.bincount(y_train).tolist() == [5_000] * 10
    assert np.bincount(y_test).tolist() == [1_000] * 10
    np.testing.assert_allclose(x_train.mean((0, 1, 2)) / 255, (0.49140, 0.48216, 0.44653), atol=1e-5)
