"""A published BERT as the encoder of `models.bert`: conversion, and loading of what was converted.

Every tensor of the encoder is taken from the source under its name there, and its shape is checked. Sources differ in the names
and in how kernels lie; the encoder has the heads of a layer's width on an axis of their own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from models import bert_sources

if TYPE_CHECKING:
    from models import bert

CONFIG = "bert_config.json"
CHECKPOINT = "encoder.ckpt"
NAMED_IN_ERROR = 5
DTYPES = ("float16", "bfloat16", "float32", "float64")

# Names of BERT's own code, without the scope bert/.
EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm/gamma", "LayerNorm/beta")
DENSE = (
    "attention/self/query",
    "attention/self/key",
    "attention/self/value",
    "attention/output/dense",
    "intermediate/dense",
    "output/dense",
)
NORMS = ("attention/output/LayerNorm", "output/LayerNorm")
POOLER = ("pooler/dense/kernel", "pooler/dense/bias")


class Summary(NamedTuple):
    """What `convert` did.

    Attributes:
        size: Shape of the encoder.
        vocabulary: Number of tokens.
        positions: Longest sequence in tokens.
        parameters: Numbers in the encoder.
        has_pooler: False: the source has none, and the encoder's is as it was initialised.
        unused: Names of the source's tensors that the encoder has no place for.
    """

    size: bert.Size
    vocabulary: int
    positions: int
    parameters: int
    has_pooler: bool
    unused: tuple[str, ...]


def convert(source: str | Path, output: str | Path, config: str | Path | None = None) -> Summary:
    """Writes the encoder's checkpoint, and what its shape is and where it came from.

    Args:
        source: What `bert_sources.EXPECTED` says.
        output: Folder for ``bert_config.json`` and ``encoder.ckpt``.
        config: File of the source's configuration, if it is not beside the weights.

    Raises:
        ValueError: If the source is none of these, is no BERT that `models.bert.encoder` can be, or lacks a tensor. A pooler
            may lack as a whole.
    """
    from models import bert

    output = Path(output)
    with bert_sources.opened(source, config) as opened:
        if output.resolve() in [path.resolve().parent for path in opened.files] and (output / CONFIG).exists():
            raise ValueError(f"{output} holds the source, and its {CONFIG} would be overwritten: choose another folder")
        size, vocabulary, positions = bert_sources.shape(opened)
        encoder = bert.encoder(size, vocabulary, positions)
        unused, has_pooler = _fill(encoder, opened, size.layers)
        files = {path.name: _sha256(path) for path in opened.files}
    shape = {**size._asdict(), "vocabulary": vocabulary, "positions": positions}
    _write(encoder, output, {**shape, "has_pooler": has_pooler, "source_sha256": files})
    return Summary(size, vocabulary, positions, int(encoder.count_params()), has_pooler, unused)


def read_config(folder: str | Path) -> tuple[bert.Size, int, int]:
    """Shape of a converted encoder, as `models.bert.encoder` takes it.

    Args:
        folder: The output of `convert`.

    Returns:
        (size, vocabulary, positions).

    Raises:
        ValueError: If the folder is no such output.
    """
    from models import bert

    path = Path(folder) / CONFIG
    if not path.is_file():
        raise ValueError(f"there is no {path}: make it with `python -m tools.prepare_data bert-weights`")
    found = bert_sources.read_json(path)
    counts = [name for name in (*bert.Size._fields, "vocabulary", "positions") if name != "exact_gelu"]
    wrong = [f"{name}={found.get(name)!r}" for name in counts if not bert_sources.is_count(found.get(name))]
    if not isinstance(found.get("exact_gelu"), bool):
        wrong.append(f"exact_gelu={found.get('exact_gelu')!r}")
    if wrong:
        raise ValueError(
            f"{path} has {', '.join(wrong)}: it is not from `python -m tools.prepare_data bert-weights`, which writes whole "
            f"numbers from 1 on as {', '.join(counts)}, and true or false as exact_gelu"
        )
    return bert.Size(*(found[name] for name in bert.Size._fields)), found["vocabulary"], found["positions"]


def load(encoder, folder: str | Path) -> None:
    """Sets all variables of an encoder to the converted ones.

    Args:
        encoder: From `models.bert.encoder`, of the shape that `read_config` says; its dropout may be another.
        folder: The output of `convert`.

    Raises:
        ValueError: If the encoder is of another shape, or the checkpoint is damaged.
    """
    import tensorflow as tf

    expected, given = read_config(folder), _shape_of(encoder)
    if given != expected:
        raise ValueError(
            f"the encoder is {_words(*given)}; {folder} holds {_words(*expected)}: build the encoder with what "
            "models.bert_weights.read_config gives"
        )
    path = Path(folder) / CHECKPOINT
    try:
        status = tf.train.Checkpoint(encoder=encoder).read(str(path))
        status.assert_existing_objects_matched().assert_consumed()
    except (tf.errors.OpError, AssertionError) as error:
        raise ValueError(f"{path} cannot be restored, make it again with `prepare_data bert-weights`: {error}") from error


def _shape_of(encoder) -> tuple[bert.Size, int, int]:
    from models import bert

    config = encoder.get_config()
    size = bert.Size(
        config["num_layers"],
        config["hidden_size"],
        config["num_attention_heads"],
        config["inner_dim"],
        exact_gelu=config["inner_activation"] == bert.exact_gelu.__name__,
    )
    return size, config["vocab_size"], config["max_sequence_length"]


def _words(size: bert.Size, vocabulary: int, positions: int) -> str:
    return f"{size}, vocabulary {vocabulary}, positions {positions}"


def _fill(encoder, source: bert_sources.Source, layers: int) -> tuple[tuple[str, ...], bool]:
    """Sets the encoder's variables; gives the names that were not used, and whether there is a pooler."""
    layout, available = source.layout, source.names
    scope = layout.scope if layout.scope + layout.name("embeddings/word_embeddings") in available else ""
    names = {name: scope + layout.name(name) for name in _names(layers)}
    has_pooler = any(names[name] in available for name in POOLER)
    if not has_pooler:
        names = {name: there for name, there in names.items() if name not in POOLER}
    missing = [there for there in names.values() if there not in available]
    if missing:
        raise ValueError(
            f"the source lacks {len(missing)} of the {len(names)} tensors of {layers} layers: {_some(missing)}; "
            f"it has {_some(available.values())}"
        )
    variables = {variable.name.removesuffix(":0"): variable for variable in encoder.variables}
    for name, there in names.items():
        variable = variables.pop(_encoder_name(name))
        is_transposed = layout.is_transposed and name.endswith("/kernel")
        array = _checked(source.tensor(available[there]), available[there], _flat(name, variable.shape), is_transposed)
        variable.assign(array.reshape(variable.shape))
    left = [name for name in variables if has_pooler or not name.startswith("pooler_transform/")]
    if left:
        raise ValueError(f"nothing is known to fill {_some(left)} of the encoder: is tf-models-official another version?")
    return tuple(sorted(stored for name, stored in available.items() if name not in names.values())), has_pooler


def _names(layers: int) -> list[str]:
    of_layer = [f"{part}/{kind}" for part in DENSE for kind in ("kernel", "bias")]
    of_layer += [f"{part}/{kind}" for part in NORMS for kind in ("gamma", "beta")]
    of_layers = [f"encoder/layer_{layer}/{name}" for layer in range(layers) for name in of_layer]
    return [f"embeddings/{name}" for name in EMBEDDINGS] + of_layers + list(POOLER)


def _encoder_name(name: str) -> str:
    """The variable of the encoder, from the name of BERT's own code."""
    from official.nlp.tools.tf1_bert_checkpoint_converter_lib import BERT_V2_NAME_REPLACEMENTS

    for there, here in BERT_V2_NAME_REPLACEMENTS:
        name = name.replace(there, here)
    return name


def _flat(name: str, shape: Iterable[int]) -> tuple[int, ...]:
    """Shape of a variable without an axis for heads: of a kernel [inputs, outputs], of a bias [outputs]."""
    shape = tuple(shape)
    if name.endswith("attention/output/dense/kernel"):
        return shape[0] * shape[1], shape[2]
    if name.endswith("/kernel"):
        return shape[0], int(np.prod(shape[1:]))
    return (int(np.prod(shape)),) if name.endswith("/bias") else shape


def _checked(array: np.ndarray, name: str, shape: tuple[int, ...], is_transposed: bool) -> np.ndarray:
    """The array as float32 in TensorFlow's layout, if it is what was expected."""
    expected = shape[::-1] if is_transposed else shape
    if array.shape != expected:
        raise ValueError(f"{name} has shape {array.shape}: expected {expected} from the configuration")
    if array.dtype.name not in DTYPES:
        raise ValueError(f"{name} holds {array.dtype}: expected {', '.join(DTYPES)}, weights that are not quantized")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds numbers that are not finite: the source is damaged")
    return (array.T if is_transposed else array).astype(np.float32)


def _write(encoder, output: Path, description: dict) -> None:
    import tensorflow as tf

    output.mkdir(parents=True, exist_ok=True)
    # Gone first and written last: a folder that has it is whole.
    (output / CONFIG).unlink(missing_ok=True)
    tf.train.Checkpoint(encoder=encoder).write(str(output / CHECKPOINT))
    (output / CONFIG).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _some(names: Iterable[str]) -> str:
    names = sorted(names)
    return ", ".join(names[:NAMED_IN_ERROR]) + (", ..." if len(names) > NAMED_IN_ERROR else "")
