"""Criteo's examples in TFRecord files, a block of them in each record, and elements of any size cut from these.

No operation is done for a single example: small models of clicks take millions of them a second.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from models.criteo import CATEGORICAL, DENSE, FIELDS
from models.input_pipeline import shared_by_element
from models.record_pipeline import interleaved

EXAMPLES_OF_A_BLOCK = 8192
BYTES_OF_AN_EXAMPLE = 4 * FIELDS
# Blocks whose examples are shuffled among each other, beyond the order of files and the dealing of examples to them.
BLOCKS_SHUFFLED_TOGETHER = 16


class BlockWriter:
    """Writes examples to a TFRecord file. A context manager.

    Args:
        path: Of the file.

    Attributes:
        examples: Written so far, or kept for the next block.
    """

    def __init__(self, path: str | Path) -> None:
        self.examples = 0
        self._file = tf.io.TFRecordWriter(str(path))
        self._pending: list[np.ndarray] = []

    def __enter__(self) -> "BlockWriter":
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def add(self, packed: np.ndarray) -> None:
        """Appends examples, as ``criteo.packed`` has them."""
        pending = sum(map(len, self._pending))
        self.examples += len(packed)
        self._pending.append(packed)
        if pending + len(packed) >= EXAMPLES_OF_A_BLOCK:
            examples = np.concatenate(self._pending)
            whole = len(examples) - len(examples) % EXAMPLES_OF_A_BLOCK
            for start in range(0, whole, EXAMPLES_OF_A_BLOCK):
                self._file.write(examples[start : start + EXAMPLES_OF_A_BLOCK].tobytes())
            self._pending = [examples[whole:]]

    def close(self) -> None:
        """Writes what is left as a smaller block."""
        examples = b"".join(packed.tobytes() for packed in self._pending)
        if examples:
            self._file.write(examples)
        self._pending = []
        self._file.close()


def unpack(packed: tf.Tensor) -> tuple[dict, tf.Tensor]:
    """From stored numbers to what a ranking model of tensorflow-recommenders takes.

    Args:
        packed: As ``criteo.packed`` has them, int32 [examples, 40].

    Returns:
        ({"dense_features": float32 [examples, 13], "sparse_features": {"0": int32 [examples], ..., "25": ...}}, labels), the
        labels float32 [examples].
    """
    floats = tf.bitcast(packed[:, : 1 + DENSE], tf.float32)
    columns = tf.unstack(packed[:, 1 + DENSE :], CATEGORICAL, axis=1)
    sparse = {str(column): rows for column, rows in enumerate(columns)}
    return {"dense_features": floats[:, 1:], "sparse_features": sparse}, floats[:, 0]


def element_spec(examples: int | None) -> tuple[dict, tf.TensorSpec]:
    """The same as specs."""
    sparse = {str(column): tf.TensorSpec([examples], tf.int32) for column in range(CATEGORICAL)}
    dense = tf.TensorSpec([examples, DENSE], tf.float32)
    return {"dense_features": dense, "sparse_features": sparse}, tf.TensorSpec([examples], tf.float32)


def _decode(records: tf.Tensor) -> tf.Tensor:
    """The examples of some records, a string [records], as int32 [examples, 40]."""
    return tf.reshape(tf.io.decode_raw(tf.strings.reduce_join(records), tf.int32), [-1, FIELDS])


def _examples_of(records: tf.Tensor) -> tf.Tensor:
    """How many there are in some records, int64."""
    return tf.cast(tf.reduce_sum(tf.strings.length(records, "BYTE")) // BYTES_OF_AN_EXAMPLE, tf.int64)


def _passes(files: Sequence[str | Path], seed: int, first: int, skipped: int) -> tf.data.Dataset:
    """Stored examples of endless passes, each in its own order, as they come; without the first `skipped` of the first pass."""
    names = tf.constant([str(file) for file in files])

    def one_pass(number):
        pass_seed = tf.stack([tf.constant(seed, tf.int64), number])
        records = interleaved(names, pass_seed, block_length=1)

        def skip(left, numbered):
            group, group_records = numbered
            examples = _examples_of(group_records)
            here = tf.minimum(left, examples)
            return left - here, (group, group_records, here, here < examples)

        # Not by Dataset.shuffle: its seed mixes with the global one, which would have to be the same in a resumed run.
        def shuffled(group, group_records, skipped_here, _):
            group_seed = tf.random.experimental.stateless_fold_in(pass_seed, group + 1)
            return tf.random.experimental.stateless_shuffle(_decode(group_records), group_seed)[skipped_here:]

        left = tf.where(number == first, tf.constant(skipped, tf.int64), tf.constant(0, tf.int64))
        groups = records.batch(BLOCKS_SHUFFLED_TOGETHER).enumerate().scan(left, skip)
        # Groups that are skipped as a whole are not even decoded.
        groups = groups.filter(lambda group, group_records, here, is_any_left: is_any_left)
        return groups.map(shuffled, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    return tf.data.Dataset.counter(first).flat_map(one_pass)


def epochs_dataset(
    files: Sequence[str | Path], examples: int, element: int, seed: int, initial_epoch: int, examples_per_epoch: int
) -> tf.data.Dataset:
    """Endless epochs of equal length, cut from an endless row of passes over the files: nothing is left out between passes.

    What epoch e holds depends on the arguments other than ``initial_epoch``, and on e, only. To begin with a later epoch, the
    blocks of its pass before it are read and thrown away.

    Args:
        files: From `BlockWriter`.
        examples: How many they hold.
        element: Examples of an element, over all replicas.
        seed: Any integer.
        initial_epoch: The epoch that the dataset starts with.
        examples_per_epoch: A multiple of ``element``.

    Returns:
        A dataset of what `unpack` gives.

    Raises:
        ValueError: If ``examples_per_epoch`` is no multiple of ``element``.
    """
    if examples_per_epoch % element:
        raise ValueError(f"examples_per_epoch={examples_per_epoch}: expected a multiple of the {element} of an element")
    first, skipped = divmod(initial_epoch * examples_per_epoch, examples)
    return _elements(_passes(files, seed, first, skipped), element, drop_remainder=True)


def evaluation_dataset(files: Iterable[str | Path], examples: int, element: int) -> tf.data.Dataset:
    """The first so many examples of the files, once, in order; the last element may hold fewer."""

    def take(left, record):
        block = _decode(record[None])[:left]
        return left - tf.shape(block, tf.int64)[0], block

    blocks = tf.data.TFRecordDataset([str(file) for file in files]).scan(tf.constant(examples, tf.int64), take)
    blocks = blocks.take_while(lambda block: tf.shape(block)[0] > 0)
    return _elements(blocks, element, drop_remainder=examples % element == 0)


def _elements(packed: tf.data.Dataset, element: int, drop_remainder: bool) -> tf.data.Dataset:
    dataset = packed.rebatch(element, drop_remainder=drop_remainder)
    dataset = dataset.map(unpack, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return shared_by_element(dataset.prefetch(tf.data.AUTOTUNE))
