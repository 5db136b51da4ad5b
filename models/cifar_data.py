"""CIFAR-10 from a folder, in any of the three layouts it is found in, or downloaded by Keras.

Only NumPy is needed, so that a missing file is noticed before TensorFlow is imported.
"""

import lzma
import pickle
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

RECORDS_PER_FILE = 10_000
IMAGE_BYTES = 3 * 32 * 32


class Layout(NamedTuple):
    """A way the data set is distributed: five files for training, then one for testing."""

    name: str
    folders: tuple
    files: tuple
    read: Callable


def _images(planes):
    """uint8 [n, 3072] as in the official files (red, green, blue planes) -> uint8 [n, 32, 32, 3]."""
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _read_npz(path):
    with np.load(path) as arrays:
        return arrays["x"], arrays["y"]


def _read_binary(path):
    data = np.fromfile(path, np.uint8)
    if data.size % (1 + IMAGE_BYTES):
        raise ValueError(f"{data.size} bytes are no whole number of records of {1 + IMAGE_BYTES} bytes")
    records = data.reshape(-1, 1 + IMAGE_BYTES)
    return _images(records[:, 1:]), records[:, 0]


class _ArrayUnpickler(pickle.Unpickler):
    """Builds NumPy arrays and plain containers, and refuses everything else: a pickle can run any code."""

    allowed = {"ndarray": np.ndarray, "dtype": np.dtype, "_reconstruct": np.zeros(0).__reduce__()[0]}

    def find_class(self, module, name):
        if module == "_codecs" and name == "encode":
            return lambda text, encoding: text.encode(encoding)
        if module.split(".")[0] == "numpy" and name in self.allowed:
            return self.allowed[name]
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no CIFAR-10 file does")


def _read_pickle(path):
    with open(path, "rb") as file:
        batch = _ArrayUnpickler(file, encoding="bytes").load()
    return _images(np.asarray(batch[b"data"])), np.asarray(batch[b"labels"], np.uint8)


LAYOUTS = (
    Layout("npz", ("", "cifar10"), (*(f"cifar10_train_{i}.npz" for i in range(1, 6)), "cifar10_test.npz"), _read_npz),
    Layout(
        "official binary",
        ("", "cifar-10-batches-bin"),
        (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
        _read_binary,
    ),
    Layout(
        "official Python",
        ("", "cifar-10-batches-py"),
        (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
        _read_pickle,
    ),
)


def find(data_dir):
    """Finds the data set in a folder without reading it.

    Args:
        data_dir: The folder that holds the files, or the folder above it.

    Returns:
        (layout, paths): the layout, and the paths of the five training files and the test file.

    Raises:
        ValueError: If no layout is complete in `data_dir`.
    """
    root = Path(data_dir)
    incomplete = ""
    for layout in LAYOUTS:
        for folder in layout.folders:
            paths = [root / folder / name for name in layout.files]
            missing = [path.name for path in paths if not path.is_file()]
            if not missing:
                return layout, paths
            if len(missing) < len(paths) and not incomplete:
                incomplete = f"; {root / folder} is incomplete: {', '.join(missing)} missing"
    looked_for = "; ".join(f"{layout.files[0]} to {layout.files[-1]} (there or in {layout.folders[1]}/)" for layout in LAYOUTS)
    raise ValueError(f"no CIFAR-10 in {root}{incomplete or f'; looked for {looked_for}'}")


def _read(layout, path, records_per_file):
    try:
        x, y = layout.read(path)
    except (ValueError, KeyError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile, lzma.LZMAError) as error:
        raise ValueError(f"{path} is no CIFAR-10 file of the {layout.name} layout: {error}") from error
    shape = (records_per_file, 32, 32, 3)
    if x.shape != shape or x.dtype != np.uint8 or y.shape != shape[:1]:
        raise ValueError(f"{path} holds images {x.dtype} {x.shape} and labels {y.shape}, not uint8 {shape} and {shape[:1]}")
    return x, y.astype(np.uint8)


def _download():
    import tensorflow as tf

    try:
        (x_train, y_train), (x_test, y_test) = tf.keras.datasets.cifar10.load_data()
    except Exception as error:  # Keras raises a bare Exception where the download fails.
        raise ValueError(f"CIFAR-10 could not be downloaded ({error}); pass a folder that holds it") from error
    return (x_train, y_train.reshape(-1)), (x_test, y_test.reshape(-1))


def load(data_dir=None, records_per_file: int = RECORDS_PER_FILE):
    """Loads CIFAR-10 in its original order.

    Args:
        data_dir: Folder with the files (npz, official binary or official Python layout). None: Keras downloads them.
        records_per_file: Images each file must hold.

    Returns:
        ((x_train, y_train), (x_test, y_test)): x uint8 [n, 32, 32, 3] (RGB), y uint8 [n].

    Raises:
        ValueError: If files are missing, cannot be read or do not hold what they should.
    """
    if data_dir is None:
        return _download()
    layout, paths = find(data_dir)
    # Decompression releases the interpreter lock: about 3 seconds a file in the npz layout.
    with ThreadPoolExecutor() as pool:
        parts = list(pool.map(lambda path: _read(layout, path, records_per_file), paths))
    x_train, y_train = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    return (x_train, y_train), parts[-1]
