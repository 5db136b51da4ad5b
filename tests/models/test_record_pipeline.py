"""Epochs cut from endless passes over TFRecord files: nothing is left out, and each is a function of (seed, its number)."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf

from models import record_pipeline

pytestmark = pytest.mark.one_keras

BLOCK, BLOCK_AS_IT_IS = 8, record_pipeline.SHUFFLED_TOGETHER
LENGTHS = (7, 11, 5)
EXAMPLES = sum(LENGTHS)
ELEMENT = 4
# A pass holds one epoch and 7 records more.
PER_EPOCH = 16


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three files of records that are numbered from the first on."""
    folder = tmp_path_factory.mktemp("records")
    numbers = itertools.count()
    paths = [folder / f"{length}.tfrecord" for length in LENGTHS]
    for path, length in zip(paths, LENGTHS, strict=True):
        with tf.io.TFRecordWriter(str(path)) as writer:
            for number in itertools.islice(numbers, length):
                value = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
                writer.write(tf.train.Example(features=tf.train.Features(feature={"number": value})).SerializeToString())
    return paths


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """A pass is shuffled in blocks of 8, 8 and 7 records; as they are, one block would hold all of them."""
    monkeypatch.setattr(record_pipeline, "SHUFFLED_TOGETHER", BLOCK)


def parse(records):
    return tf.io.parse_example(records, {"number": tf.io.FixedLenFeature([], tf.int64)})["number"]


def dataset(files, **changes):
    arguments = {"seed": 3, "initial_epoch": 0, "examples_per_epoch": PER_EPOCH, "element": ELEMENT, **changes}
    return record_pipeline.epochs_dataset(files, EXAMPLES, parse, **arguments)


def numbers(files, elements, **changes):
    """The numbers of the records of the first so many elements, in order."""
    return np.concatenate([element.numpy() for element in itertools.islice(dataset(files, **changes), elements)]).tolist()


def passes(files, count, **changes):
    """The numbers of the records, one list for each of the first passes."""
    found = numbers(files, -(-count * EXAMPLES // ELEMENT), **changes)
    return [found[i * EXAMPLES : (i + 1) * EXAMPLES] for i in range(count)]


@pytest.mark.parametrize("epoch", [1, 2, 3, 7])
@pytest.mark.parametrize("seed", [0, -5, 2**40])
def test_an_epoch_does_not_depend_on_the_one_that_the_dataset_begins_with(files, epoch, seed):
    per_epoch = PER_EPOCH // ELEMENT
    from_the_start = numbers(files, (epoch + 2) * per_epoch, seed=seed)
    assert numbers(files, 2 * per_epoch, seed=seed, initial_epoch=epoch) == from_the_start[epoch * PER_EPOCH :]


def test_an_epoch_may_be_longer_than_a_pass(files):
    per_epoch = 3 * PER_EPOCH
    from_the_start = numbers(files, 3 * per_epoch // ELEMENT, examples_per_epoch=per_epoch)
    begun_later = numbers(files, per_epoch // ELEMENT, examples_per_epoch=per_epoch, initial_epoch=2)
    assert begun_later == from_the_start[2 * per_epoch :]


def test_every_pass_holds_every_record_once(files):
    for found in passes(files, 5):
        assert sorted(found) == list(range(EXAMPLES))


def test_nothing_is_left_out_between_passes_when_an_epoch_ends_within_one(files):
    """In as many epochs as there are records each of them comes as often as an epoch has examples."""
    assert EXAMPLES % PER_EPOCH
    found = numbers(files, EXAMPLES * PER_EPOCH // ELEMENT)
    assert collections.Counter(found) == dict.fromkeys(range(EXAMPLES), PER_EPOCH)


def test_passes_and_seeds_have_orders_of_their_own(files):
    found = [tuple(order) for seed in (0, 1, 2**33) for order in passes(files, 4, seed=seed)]
    assert len(set(found)) == len(found) == 12


def test_the_files_of_a_pass_and_the_records_of_its_blocks_are_in_random_order(files):
    """Each block holds the records that it would without shuffling, in an order that neither a block nor a pass repeats."""
    orders_of_files, permutations = collections.Counter(), collections.Counter()
    for found in passes(files, 40):
        order, unshuffled = read_in_turn(found)
        orders_of_files[order] += 1
        for start in (0, BLOCK):
            block = unshuffled[start : start + BLOCK]
            permutations[tuple(block.index(number) for number in found[start : start + BLOCK])] += 1
    # In 40 passes one of six orders is missing once in 240.
    assert len(orders_of_files) >= 5
    assert len(permutations) == 80 and tuple(range(BLOCK)) not in permutations


def read_in_turn(found):
    """The order of the files, which are shorter than what is read of one at a time, that fits the blocks of a pass."""
    ends = np.cumsum(LENGTHS)
    runs = [list(range(end - length, end)) for end, length in zip(ends, LENGTHS, strict=True)]
    starts = range(0, EXAMPLES, BLOCK)
    fitting = []
    for order in itertools.permutations(range(len(LENGTHS))):
        unshuffled = [number for file in order for number in runs[file]]
        if all(sorted(unshuffled[i : i + BLOCK]) == sorted(found[i : i + BLOCK]) for i in starts):
            fitting.append((order, unshuffled))
    (one,) = fitting
    return one


def test_one_block_may_hold_the_whole_pass(files, monkeypatch):
    monkeypatch.setattr(record_pipeline, "SHUFFLED_TOGETHER", BLOCK_AS_IT_IS)
    orders = passes(files, 3)
    assert all(sorted(order) == list(range(EXAMPLES)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    # Records of all files are among each other.
    assert all({number >= 7 for number in order[:12]} == {True, False} for order in orders)


@pytest.mark.parametrize("seed", [0, 3])
def test_the_global_seed_changes_nothing(files, seed):
    orders = passes(files, 2, seed=seed)
    for global_seed in (0, 1, 17):
        tf.random.set_seed(global_seed)
        # What a model draws for its weights.
        tf.random.normal([global_seed + 1])
        assert passes(files, 2, seed=seed) == orders


def test_shapes_are_static(files):
    assert dataset(files).element_spec == tf.TensorSpec([ELEMENT], tf.int64)


def test_workers_take_their_part_of_every_element(files):
    for some in (dataset(files), record_pipeline.evaluation_dataset(files, 5, parse, ELEMENT)):
        policy = some.options().experimental_distribute.auto_shard_policy
        assert policy == tf.data.experimental.AutoShardPolicy.DATA


@pytest.mark.parametrize("examples_per_epoch", [15, 3])
def test_epochs_of_no_whole_number_of_elements_are_refused(files, examples_per_epoch):
    with pytest.raises(ValueError, match=f"examples_per_epoch={examples_per_epoch}: expected a multiple of the 4"):
        dataset(files, examples_per_epoch=examples_per_epoch)


@pytest.mark.parametrize(
    ("examples", "lengths"), [(EXAMPLES, [4, 4, 4, 4, 4, 3]), (20, [4] * 5), (9, [4, 4, 1]), (3, [3]), (1, [1])]
)
def test_evaluation_holds_the_first_examples_in_order(files, examples, lengths):
    found = [element.numpy() for element in record_pipeline.evaluation_dataset(files, examples, parse, ELEMENT)]
    assert [len(element) for element in found] == lengths
    np.testing.assert_array_equal(np.concatenate(found), range(examples))


def test_shapes_of_evaluation_are_static_where_nothing_remains(files):
    shapes = [record_pipeline.evaluation_dataset(files, n, parse, ELEMENT).element_spec.shape[0] for n in (8, 9)]
    assert shapes == [ELEMENT, None]


def per_record(shuffled_together=BLOCK):
    """Reads (number, seed) of a training's record, and the number of one for evaluation."""

    def read(record, *seed):
        number = tf.io.parse_single_example(record, {"number": tf.io.FixedLenFeature([], tf.int64)})["number"]
        return (number, *seed)

    return record_pipeline.PerRecord(read, shuffled_together)


def numbers_and_seeds(files, elements, shuffled_together=BLOCK, **changes):
    """Of the first so many elements (number, seed), one record after the other."""
    arguments = {"seed": 3, "initial_epoch": 0, "examples_per_epoch": PER_EPOCH, "element": ELEMENT, **changes}
    found = record_pipeline.epochs_dataset(files, EXAMPLES, per_record(shuffled_together), **arguments)
    pairs = [
        (n, tuple(s)) for element in itertools.islice(found, elements) for n, s in zip(*map(np.array, element), strict=True)
    ]
    return [(int(number), tuple(map(int, seed))) for number, seed in pairs]


@pytest.mark.parametrize("epoch", [1, 2, 7])
@pytest.mark.parametrize("seed", [0, -5, 2**40])
def test_single_records_come_in_the_order_of_batches_with_seeds_of_their_pass_and_place(files, epoch, seed):
    per_epoch = PER_EPOCH // ELEMENT
    from_the_start = numbers_and_seeds(files, (epoch + 2) * per_epoch, seed=seed)
    assert [number for number, _ in from_the_start] == numbers(files, (epoch + 2) * per_epoch, seed=seed)
    begun_later = numbers_and_seeds(files, 2 * per_epoch, seed=seed, initial_epoch=epoch)
    assert begun_later == from_the_start[epoch * PER_EPOCH :]


def test_no_two_records_of_passes_and_seeds_have_the_same_seed(files):
    found = [of_record for seed in (0, 1, 2**33) for _, of_record in numbers_and_seeds(files, 2 * EXAMPLES, seed=seed)]
    assert len(set(found)) == len(found) == 3 * 2 * EXAMPLES * ELEMENT


def test_the_global_seed_does_not_change_those_of_records(files):
    found = numbers_and_seeds(files, EXAMPLES)
    tf.random.set_seed(17)
    assert numbers_and_seeds(files, EXAMPLES) == found


def test_single_records_may_be_shuffled_in_blocks_of_their_own_size(files):
    """In blocks of one record they come as they are read: file after file, each of which is in order."""
    found = [number for number, _ in numbers_and_seeds(files, 6, shuffled_together=1)][:EXAMPLES]
    assert sorted(found) == list(range(EXAMPLES))
    assert (np.diff(found) != 1).sum() <= len(LENGTHS) - 1


@pytest.mark.parametrize(("examples", "lengths"), [(EXAMPLES, [4, 4, 4, 4, 4, 3]), (8, [4, 4]), (1, [1])])
def test_evaluation_reads_single_records_in_order(files, examples, lengths):
    dataset = record_pipeline.evaluation_dataset(files, examples, per_record(), ELEMENT)
    found = [element.numpy() for (element,) in dataset]
    assert [len(element) for element in found] == lengths
    np.testing.assert_array_equal(np.concatenate(found), range(examples))
    assert dataset.element_spec[0].shape[0] == (ELEMENT if examples % ELEMENT == 0 else None)


def test_shapes_are_static_and_workers_take_their_part_of_single_records_too(files):
    arguments = {"seed": 3, "initial_epoch": 0, "examples_per_epoch": PER_EPOCH, "element": ELEMENT}
    dataset = record_pipeline.epochs_dataset(files, EXAMPLES, per_record(), **arguments)
    assert dataset.element_spec == (tf.TensorSpec([ELEMENT], tf.int64), tf.TensorSpec([ELEMENT, 2], tf.int64))
    for some in (dataset, record_pipeline.evaluation_dataset(files, 5, per_record(), ELEMENT)):
        assert some.options().experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.DATA
