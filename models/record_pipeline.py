"""Epochs of examples in TFRecord files whose order is a function of (seed, pass over the data)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from models.input_pipeline import shared_by_element

# Records that are shuffled among each other, beyond the order of files and the mixture of all files that are read at once.
SHUFFLED_TOGETHER = 8192
FILES_READ_AT_ONCE = 16


class PerRecord(NamedTuple):
    """Reads each record by itself, many at a time: where a record is work for a core, and has random numbers of its own.

    Attributes:
        read: ``read(record, record_seed)`` from a serialized record, a string [], and an int64 [2] that depends on (seed, pass
            over the data, place in the pass) to an example. In an evaluation it is given the record only.
        shuffled_together: In place of ``SHUFFLED_TOGETHER``, where records are large: about three times as many are in memory.
    """

    read: Callable
    shuffled_together: int


def interleaved(names: tf.Tensor, pass_seed: tf.Tensor, block_length: int) -> tf.data.Dataset:
    """Serialized records of files in an order of the pass, from several files in turn.

    Args:
        names: Of the files, strings.
        pass_seed: Int64 [2].
        block_length: Records from one file at a time.
    """
    return tf.data.Dataset.from_tensor_slices(tf.random.experimental.stateless_shuffle(names, pass_seed)).interleave(
        tf.data.TFRecordDataset,
        cycle_length=min(FILES_READ_AT_ONCE, len(names)),
        block_length=block_length,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def _passes(files: Sequence[str], seed: int, first: int, shuffled_together: int) -> tf.data.Dataset:
    """Serialized records of endless passes over the files, each pass in its own order.

    Returns:
        A dataset of (record, a seed of the pass for what is done with its records, place in the pass).
    """
    names = tf.constant([str(file) for file in files])

    def one_pass(number):
        pass_seed = tf.stack([tf.constant(seed, tf.int64), number])
        records = interleaved(names, pass_seed, block_length=16)

        # Not by Dataset.shuffle: its seed mixes with the global one, which would have to be the same in a resumed run.
        def shuffled(block, block_records):
            return tf.random.experimental.stateless_shuffle(
                block_records, tf.random.experimental.stateless_fold_in(pass_seed, block + 1)
            )

        blocks = records.batch(shuffled_together).enumerate().map(shuffled).prefetch(1)
        # Blocks have 1 and more.
        of_records = tf.random.experimental.stateless_fold_in(pass_seed, tf.constant(0, tf.int64))
        return tf.data.Dataset.zip(
            blocks.unbatch(), tf.data.Dataset.from_tensors(of_records).repeat(), tf.data.Dataset.counter()
        )

    return tf.data.Dataset.counter(first).flat_map(one_pass)


def epochs_dataset(
    files: Sequence[str | Path],
    examples: int,
    parse: Callable | PerRecord,
    element: int,
    seed: int,
    initial_epoch: int,
    examples_per_epoch: int,
) -> tf.data.Dataset:
    """Endless epochs of equal length, cut from an endless row of passes over the files: nothing is left out between passes.

    What epoch e holds depends on the arguments other than ``initial_epoch``, and on e, only. To begin with a later epoch, the
    records of its pass before it are read and thrown away.

    Args:
        files: TFRecord files.
        examples: How many records they hold.
        parse: From serialized records, a string [element], to what the model's ``fit`` takes; or how to read one record.
        element: Examples of an element, over all replicas.
        seed: Any integer.
        initial_epoch: The epoch that the dataset starts with.
        examples_per_epoch: A multiple of ``element``.

    Returns:
        A dataset of elements.

    Raises:
        ValueError: If ``examples_per_epoch`` is no multiple of ``element``.
    """
    if examples_per_epoch % element:
        raise ValueError(f"examples_per_epoch={examples_per_epoch}: expected a multiple of the {element} of an element")
    first, skipped = divmod(initial_epoch * examples_per_epoch, examples)
    per_record = isinstance(parse, PerRecord)
    records = _passes(files, seed, first, parse.shuffled_together if per_record else SHUFFLED_TOGETHER).skip(skipped)
    if per_record:

        def read(record, of_records, place):
            return parse.read(record, tf.random.experimental.stateless_fold_in(of_records, place))

        dataset = _batches_of_read(records, read, element, drop_remainder=True)
    else:
        batches = records.batch(element, drop_remainder=True)
        dataset = batches.map(lambda found, *_: parse(found), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return shared_by_element(dataset.prefetch(tf.data.AUTOTUNE))


def evaluation_dataset(
    files: Sequence[str | Path], examples: int, parse: Callable | PerRecord, element: int
) -> tf.data.Dataset:
    """The first so many examples of the files, once, in order; the last element may hold fewer."""
    records = tf.data.TFRecordDataset([str(file) for file in files]).take(examples)
    # Where nothing remains, shapes are static.
    drop_remainder = examples % element == 0
    if isinstance(parse, PerRecord):
        dataset = _batches_of_read(records, parse.read, element, drop_remainder)
    else:
        dataset = records.batch(element, drop_remainder).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return shared_by_element(dataset.prefetch(tf.data.AUTOTUNE))


def _batches_of_read(records: tf.data.Dataset, read: Callable, element: int, drop_remainder: bool) -> tf.data.Dataset:
    examples = records.map(read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return examples.batch(element, drop_remainder, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
