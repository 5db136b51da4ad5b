"""Epochs cut from blocks of examples: nothing is left out, each is a function of (seed, its number), elements are whole."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf

from models import criteo_pipeline
from models.criteo import FIELDS

pytestmark = pytest.mark.one_keras

BLOCK, TOGETHER, ELEMENT = 5, 2, 4
# Blocks of 5, 5, 5, 2 and 5, 5, 1 and 5 and 3 examples.
LENGTHS = (17, 11, 5, 3)
EXAMPLES = sum(LENGTHS)
# A pass holds one epoch and 16 examples more.
PER_EPOCH = 20


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(criteo_pipeline, "EXAMPLES_OF_A_BLOCK", BLOCK)
    monkeypatch.setattr(criteo_pipeline, "BLOCKS_SHUFFLED_TOGETHER", TOGETHER)


def stored(numbers):
    """Examples whose every value tells their number."""
    numbers = np.asarray(numbers, int)
    floats = (numbers[:, None] + np.arange(14) / 100).astype("<f4")
    return np.concatenate([floats.view("<i4"), numbers[:, None] * 1000 + np.arange(26)], axis=1, dtype="<i4")


@pytest.fixture
def files(tmp_path):
    """Four files of examples that are numbered from the first on; written in pieces of sizes that are none of a block."""
    numbers = iter(range(EXAMPLES))
    paths = [tmp_path / f"{number}.tfrecord" for number in range(len(LENGTHS))]
    for path, length in zip(paths, LENGTHS, strict=True):
        with criteo_pipeline.BlockWriter(path) as writer:
            left = length
            while left:
                piece = min(left, 7)
                writer.add(stored(list(itertools.islice(numbers, piece))))
                left -= piece
            assert writer.examples == length
    return paths


def dataset(files, **changes):
    arguments = {"seed": 3, "initial_epoch": 0, "examples_per_epoch": PER_EPOCH, "element": ELEMENT, **changes}
    return criteo_pipeline.epochs_dataset(files, EXAMPLES, **arguments)


def numbers_of(element):
    """The numbers of the examples, all of whose values are to be theirs."""
    features, labels = element
    numbers = labels.numpy().astype(int)
    np.testing.assert_allclose(features["dense_features"], numbers[:, None] + np.arange(1, 14) / 100, rtol=1e-6)
    assert set(features["sparse_features"]) == {str(column) for column in range(26)}
    for column in range(26):
        np.testing.assert_array_equal(features["sparse_features"][str(column)], numbers * 1000 + column)
    return numbers.tolist()


def numbers(files, elements, **changes):
    found = [numbers_of(element) for element in itertools.islice(dataset(files, **changes), elements)]
    assert set(map(len, found)) == {changes.get("element", ELEMENT)}
    return sum(found, [])


def passes(files, count, **changes):
    found = numbers(files, -(-count * EXAMPLES // ELEMENT), **changes)
    return [found[i * EXAMPLES : (i + 1) * EXAMPLES] for i in range(count)]


def test_files_hold_blocks_of_little_endian_numbers(files):
    records = list(tf.data.TFRecordDataset(str(files[0])).as_numpy_iterator())
    assert [len(record) for record in records] == [length * FIELDS * 4 for length in (5, 5, 5, 2)]
    whole = np.frombuffer(b"".join(records), "<i4").reshape(-1, FIELDS)
    np.testing.assert_array_equal(whole, stored(range(17)))
    np.testing.assert_array_equal(whole[:, 0].view("<f4"), range(17))


@pytest.mark.parametrize("pieces", [[3, 0, 4], [5], [12], [1] * 11, []])
def test_a_file_does_not_depend_on_the_pieces_in_which_it_is_written(tmp_path, pieces):
    with criteo_pipeline.BlockWriter(tmp_path / "pieces") as writer:
        for start, piece in zip(np.cumsum([0, *pieces]), pieces, strict=False):
            writer.add(stored(range(start, start + piece)))
    records = [len(r) // (FIELDS * 4) for r in tf.data.TFRecordDataset(str(tmp_path / "pieces")).as_numpy_iterator()]
    whole, rest = divmod(sum(pieces), BLOCK)
    assert records == [BLOCK] * whole + [rest] * (rest > 0)


@pytest.mark.parametrize("epoch", [1, 2, 3, 7])
@pytest.mark.parametrize("seed", [0, -5, 2**40])
def test_an_epoch_does_not_depend_on_the_one_that_the_dataset_begins_with(files, epoch, seed):
    per_epoch = PER_EPOCH // ELEMENT
    from_the_start = numbers(files, (epoch + 2) * per_epoch, seed=seed)
    assert numbers(files, 2 * per_epoch, seed=seed, initial_epoch=epoch) == from_the_start[epoch * PER_EPOCH :]


def test_an_epoch_may_be_longer_than_a_pass_or_as_long(files):
    for per_epoch in (3 * PER_EPOCH, EXAMPLES):
        from_the_start = numbers(files, 3 * per_epoch // ELEMENT, examples_per_epoch=per_epoch)
        begun_later = numbers(files, per_epoch // ELEMENT, examples_per_epoch=per_epoch, initial_epoch=2)
        assert begun_later == from_the_start[2 * per_epoch :]


@pytest.mark.parametrize("element", [1, 2, 4, 20])
def test_every_pass_holds_every_example_once_whatever_the_element(files, element):
    found = numbers(files, 180 // element, element=element, examples_per_epoch=20)
    for i in range(180 // EXAMPLES):
        assert sorted(found[i * EXAMPLES : (i + 1) * EXAMPLES]) == list(range(EXAMPLES))
    assert found == numbers(files, 180, element=1)


def test_nothing_is_left_out_between_passes_when_an_epoch_ends_within_one(files):
    """In as many epochs as a pass has examples each of them comes as often as an epoch has examples."""
    assert EXAMPLES % PER_EPOCH
    found = numbers(files, EXAMPLES * PER_EPOCH // ELEMENT)
    assert collections.Counter(found) == dict.fromkeys(range(EXAMPLES), PER_EPOCH)


def test_passes_and_seeds_have_orders_of_their_own(files):
    found = [tuple(order) for seed in (0, 1, 2**33) for order in passes(files, 4, seed=seed)]
    assert len(set(found)) == len(found) == 12


def test_blocks_of_several_files_are_shuffled_together(files):
    """A group holds the examples of two blocks, mostly of two files, and not in their order."""
    of_two, sorted_groups, groups = 0, 0, 0
    starts = np.cumsum([0, *LENGTHS])
    for order in passes(files, 30):
        first = order[: TOGETHER * 3]
        of_two += len(set(np.searchsorted(starts, first, side="right"))) == 2
        sorted_groups += first == sorted(first)
        groups += 1
    assert of_two > groups / 2 and sorted_groups <= 1


@pytest.mark.parametrize("seed", [0, 3])
def test_the_global_seed_changes_nothing(files, seed):
    orders = passes(files, 2, seed=seed)
    for global_seed in (0, 17):
        tf.random.set_seed(global_seed)
        # What a model draws for its weights.
        tf.random.normal([global_seed + 1])
        assert passes(files, 2, seed=seed) == orders


def test_specs_are_those_that_are_announced(files):
    assert dataset(files).element_spec == criteo_pipeline.element_spec(ELEMENT)
    shapes = [criteo_pipeline.evaluation_dataset(files, n, ELEMENT).element_spec for n in (8, 9)]
    assert shapes == [criteo_pipeline.element_spec(n) for n in (ELEMENT, None)]


@pytest.mark.parametrize("examples_per_epoch", [18, 3])
def test_epochs_of_no_whole_number_of_elements_are_refused(files, examples_per_epoch):
    with pytest.raises(ValueError, match=f"examples_per_epoch={examples_per_epoch}: expected a multiple of the 4"):
        dataset(files, examples_per_epoch=examples_per_epoch)


@pytest.mark.parametrize("examples", [EXAMPLES, 35, 18, 17, 16, 5, 1])
def test_evaluation_holds_the_first_examples_in_order(files, examples):
    found = [numbers_of(element) for element in criteo_pipeline.evaluation_dataset(files, examples, ELEMENT)]
    assert sum(found, []) == list(range(examples))
    assert [len(element) for element in found] == [ELEMENT] * (examples // ELEMENT) + [examples % ELEMENT] * (
        examples % ELEMENT > 0
    )


def test_replicas_take_their_part_of_every_element(files, strategies):
    strategy = strategies(2)
    for some in (dataset(files), criteo_pipeline.evaluation_dataset(files, 8, ELEMENT)):
        policy = some.options().experimental_distribute.auto_shard_policy
        assert policy == tf.data.experimental.AutoShardPolicy.DATA
    parts = itertools.islice(strategy.experimental_distribute_dataset(dataset(files)), 5)
    found = [[strategy.experimental_local_results(labels)[i].numpy() for i in (0, 1)] for _, labels in parts]
    assert all(len(half) == 2 for halves in found for half in halves)
    assert np.concatenate([np.concatenate(halves) for halves in found]).tolist() == numbers(files, 5)
