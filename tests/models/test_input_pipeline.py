"""An epoch is a function of (seed, epoch); augmentation shifts and mirrors, and nothing else."""

import itertools

import numpy as np
import pytest

from models import input_pipeline

pytestmark = pytest.mark.one_keras

EXAMPLES = 50
BATCH = 8
STEPS = EXAMPLES // BATCH


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(0)
    return random.integers(1, 256, (EXAMPLES, 32, 32, 3), np.uint8), np.arange(EXAMPLES)


def batches(data, count, **arguments):
    arguments = {"batch_size": BATCH, "seed": 3, "augment": input_pipeline.crop_and_flip, **arguments}
    dataset = input_pipeline.epochs_dataset(*data, **arguments)
    return [(x.numpy(), y.numpy()) for x, y in itertools.islice(dataset, count)]


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs)
    for (x, y), (other_x, other_y) in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(x, other_x)
        np.testing.assert_array_equal(y, other_y)


def labels(some):
    return np.concatenate([y for _, y in some])


def test_the_same_seed_gives_the_same_batches(data):
    assert_equal(batches(data, 2 * STEPS), batches(data, 2 * STEPS))


def test_a_resumed_run_continues_with_the_same_batches(data):
    assert_equal(batches(data, 2 * STEPS, initial_epoch=3), batches(data, 5 * STEPS)[3 * STEPS :])


def test_epochs_and_seeds_differ(data):
    some = batches(data, 2 * STEPS)
    assert labels(some[:STEPS]).tolist() != labels(some[STEPS:]).tolist()
    assert labels(some[:STEPS]).tolist() != labels(batches(data, STEPS, seed=4)).tolist()


def test_an_epoch_holds_every_example_once(data):
    some = batches(data, 2 * (STEPS + 1), drop_remainder=False)
    assert [len(y) for _, y in some[: STEPS + 1]] == [BATCH] * STEPS + [EXAMPLES % BATCH]
    assert sorted(labels(some[: STEPS + 1])) == sorted(labels(some[STEPS + 1 :])) == list(range(EXAMPLES))


def test_augmentation_depends_on_the_example_and_not_on_its_batch(data):
    small, large = batches(data, EXAMPLES, batch_size=1), batches(data, 1, batch_size=EXAMPLES)
    assert_equal([(np.concatenate([x for x, _ in small]), labels(small))], large)


def test_augmentation_of_an_example_changes_from_epoch_to_epoch(data):
    first, second = (dict(zip(y.tolist(), x, strict=True)) for x, y in batches(data, 2, batch_size=EXAMPLES))
    assert sum((first[i] == second[i]).all() for i in range(EXAMPLES)) < EXAMPLES // 4


def test_crop_and_flip_equals_padding_cropping_and_mirroring(data):
    x = data[0]
    noise = np.random.default_rng(1).random((EXAMPLES, 3), np.float32)
    # The extremes: the largest shifts both ways, with and without mirroring.
    noise[:4] = [[0, 0, 0], [0.9999999, 0.9999999, 0], [0, 0.9999999, 0.9], [0.5, 0.5, 0.9]]
    seen = input_pipeline.crop_and_flip(x, noise).numpy()
    padded = np.pad(x, [(0, 0), (4, 4), (4, 4), (0, 0)])
    for image, (vertical, horizontal, mirror), source in zip(seen, noise, padded, strict=True):
        row, column = int(vertical * np.float32(9)), int(horizontal * np.float32(9))
        crop = source[row : row + 32, column : column + 32]
        np.testing.assert_array_equal(image, crop[:, ::-1] if mirror < 0.5 else crop)


def test_without_augmentation_the_examples_are_left_alone(data):
    for x, y in batches(data, STEPS, augment=None):
        np.testing.assert_array_equal(x, data[0][y])


def test_standardised_images(data):
    (x, y) = batches(data, 1, augment=None, standardise=input_pipeline.standardise_cifar10)[0]
    mean, std = np.float64(input_pipeline.CIFAR10_MEAN), np.float64(input_pipeline.CIFAR10_STD)
    assert x.dtype == np.float32
    np.testing.assert_allclose(x, (data[0][y] / 255 - mean) / std, atol=1e-5)


def test_shapes_are_static_where_they_can_be(data):
    dataset = input_pipeline.epochs_dataset(*data, batch_size=BATCH, seed=0)
    assert dataset.element_spec[0].shape == (BATCH, 32, 32, 3)
    assert input_pipeline.evaluation_dataset(*data, batch_size=25).element_spec[0].shape == (25, 32, 32, 3)


def test_evaluation_holds_every_example_in_order(data):
    some = [(x.numpy(), y.numpy()) for x, y in input_pipeline.evaluation_dataset(*data, batch_size=16)]
    assert [len(y) for _, y in some] == [16, 16, 16, 2]
    np.testing.assert_array_equal(np.concatenate([x for x, _ in some]), data[0])
    np.testing.assert_array_equal(labels(some), data[1])


def test_a_batch_larger_than_the_data_is_refused(data):
    with pytest.raises(ValueError, match="batch_size=51: expected 1 to 50"):
        input_pipeline.epochs_dataset(*data, batch_size=51, seed=0)
