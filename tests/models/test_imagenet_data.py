"""What a network is given of encoded images, beside Pillow and numpy."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from models import imagenet_data
from tests.models.imagenet_examples import MEAN, STD, coordinates, decoded, encoded, noise

pytestmark = pytest.mark.one_keras


def bilinear(image, size):
    """[height, width, 3] -> [size, size, 3], between the four pixels around the middle of the new one."""
    for axis in (0, 1):
        length = image.shape[axis]
        places = np.clip((np.arange(size) + 0.5) * length / size - 0.5, 0, length - 1)
        low = np.floor(places).astype(int)
        share = (places - low).reshape([-1 if a == axis else 1 for a in range(3)])
        image = image.take(low, axis) * (1 - share) + image.take(np.minimum(low + 1, length - 1), axis) * share
    return image


def standardised(image):
    return (image - MEAN) / STD


@pytest.fixture(scope="module")
def crops():
    """``crops(image, size, min_area, seeds)``: what training makes of one image with so many seeds, [seeds, size, size, 3]."""

    def of(image, size, min_area, seeds):
        read = tf.function(imagenet_data.training(size, min_area).read)
        record = tf.constant(imagenet_data.serialized(image, 5))
        found = [read(record, tf.constant([seed, 7], tf.int64)) for seed in range(seeds)]
        assert {int(label) for _, label in found} == {5}
        return np.stack([cut.numpy() for cut, _ in found])

    return of


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_are_standardised(dtype):
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 3)).astype(dtype)
    np.testing.assert_allclose(imagenet_data.standardise(images), standardised(images), rtol=1e-5, atol=1e-6)
    assert imagenet_data.standardise(images).dtype == tf.float32


# Sides of the middle by hand: of 41, 64 and 1000 pixels int(0.875 n), at least one.
@pytest.mark.parametrize(
    ("width", "height", "side"), [(41, 41, 35), (64, 100, 56), (101, 64, 56), (1200, 1000, 875), (8, 9, 7), (1, 3, 1)]
)
@pytest.mark.parametrize("size", [1, 17, 40])
def test_validation_is_the_middle(width, height, side, size):
    image = encoded(noise(width, height))
    found, label = imagenet_data.validation(size).read(imagenet_data.serialized(image, 3))
    top, left = (height - side + 1) // 2, (width - side + 1) // 2
    expected = standardised(bilinear(decoded(image)[top : top + side, left : left + side], size))
    # Both decode the same pixels, as the colours are stored in full: what differs is float32.
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert (int(label), label.dtype, found.dtype) == (3, tf.int32, tf.float32)


def test_of_files_with_less_of_the_colours_the_border_differs_a_little():
    """Beyond it colours are interpolated from what is outside of the crop, which Pillow decodes too."""
    image = encoded(noise(100, 80), subsampling=2, quality=90)
    found, _ = imagenet_data.validation(70).read(imagenet_data.serialized(image, 3))
    difference = np.abs(found * STD + MEAN - decoded(image)[5:75, 15:85])
    assert difference[2:-2, 2:-2].max() < 1e-3
    assert difference.max() < 32


def test_greyscale_has_three_equal_channels():
    image = encoded(noise(32, 32)[..., 0])
    found, _ = imagenet_data.validation(28).read(imagenet_data.serialized(image, 3))
    np.testing.assert_allclose(found * STD + MEAN, decoded(image)[2:30, 2:30], atol=1e-3)


def test_what_is_served_is_what_validation_has_before_it_is_standardised():
    image = encoded(noise(50, 40))
    found, _ = imagenet_data.to_serve(24).read(imagenet_data.serialized(image, 3))
    assert found.dtype == tf.uint8
    np.testing.assert_allclose(found, bilinear(decoded(image)[3:38, 8:43], 24), atol=0.501)


def windows(cuts, width, height):
    """Left, top, width and height of the crops of ``coordinates(width, height)``, in pixels, [n, 4], and which are mirrored.

    They come from straight lines through the reds and the greens, up to a third of a pixel for the rounding of the colours.
    """
    size = cuts.shape[1]
    pixels, middles = cuts * STD + MEAN, (np.arange(size) + 0.5) / size - 0.5
    spans = []
    for axis, length in ((1, width), (0, height)):
        values = pixels[..., 1 - axis].mean(axis=1 + (1 - axis)) * (length - 1) / 255
        # Resizing makes them level next to the border.
        inner = slice(size // 8, -(size // 8))
        slopes, centres = np.polyfit(middles[inner], values[:, inner].T, 1)
        lines = centres[:, None] + slopes[:, None] * middles[inner]
        assert np.abs(lines - values[:, inner]).max() < 2, "not evenly spaced"
        spans.append((centres + 0.5 - np.abs(slopes) / 2, np.abs(slopes), slopes < 0))
    (left, wide, mirrored), (top, high, upside_down) = spans
    assert not upside_down.any()
    return np.stack([left, top, wide, high], axis=1), mirrored


@pytest.mark.parametrize(
    ("width", "height", "min_area"), [(256, 256, 0.08), (200, 256, 0.08), (256, 150, 0.25), (256, 240, 0.7)]
)
def test_crops_have_the_areas_and_the_aspects_that_they_may(crops, width, height, min_area):
    """Where they are and how large, their own pixels say."""
    found, mirrored = windows(crops(encoded(coordinates(width, height)), 64, min_area, 400), width, height)
    left, top, wide, high = found.T
    area, aspect = wide * high / (width * height), wide / high
    # Sides are whole pixels, and measured up to a part of one.
    assert area.min() > min_area * (1 - 1.5 / high.min()) ** 2 and area.max() < 1.02
    assert aspect.min() > 3 / 4 * (1 - 2 / high.min()) and aspect.max() < 4 / 3 * (1 + 2 / high.min())
    assert min(left.min(), top.min()) > -1.5 and (left + wide).max() < width + 1.5 and (top + high).max() < height + 1.5
    # They come near to the bounds.
    largest = min(1, 4 / 3 * height / width, 4 / 3 * width / height)
    assert area.min() < 1.15 * min_area and area.max() > 0.85 * largest
    assert aspect.max() > 1.25 and aspect.min() < 0.8
    # Of 400 tosses of a coin, four standard deviations.
    assert 160 < mirrored.sum() < 240
    for start, room in ((left, width - wide), (top, height - high)):
        free = room > 0.3 * np.median(room)
        # Uniform between the borders: mean and standard deviation of a share.
        share = (start / np.maximum(room, 1))[free]
        assert abs(share.mean() - 0.5) < 0.08 and abs(share.std() - 12**-0.5) < 0.05


def test_the_height_of_a_crop_is_uniform_between_its_bounds(crops):
    """Of a square image at one aspect: from the root of the least area to all of it."""
    found, _ = windows(crops(encoded(coordinates(256, 256)), 64, 0.25, 400), 256, 256)
    wide, high = found[:, 2:].T
    square = np.abs(wide / high - 1) < 0.1
    share = high[square] / 256
    assert square.sum() > 80
    assert abs(share.mean() - 0.75) < 0.06 and abs(share.std() - 0.5 / 12**0.5) < 0.03


def test_a_mirrored_crop_is_the_mirror_of_what_it_would_be(crops):
    """With all of the image as the only crop there are two results; the least area leaves one that is square."""
    image = encoded(noise(48, 48))
    found = crops(image, 32, 1.0, 24)
    expected = standardised(bilinear(decoded(image), 32))
    is_mirror = [np.abs(cut - expected[:, ::-1]).max() < 1e-4 for cut in found]
    is_plain = [np.abs(cut - expected).max() < 1e-4 for cut in found]
    assert all(np.not_equal(is_mirror, is_plain)) and 4 <= sum(is_mirror) <= 20


def test_an_image_that_is_too_long_is_taken_whole(crops):
    image = encoded(noise(300, 20))
    for cut in crops(image, 16, 0.5, 3):
        expected = standardised(bilinear(decoded(image), 16))
        assert min(np.abs(cut - expected).max(), np.abs(cut - expected[:, ::-1]).max()) < 1e-4


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (3, 5)])
def test_the_smallest_images_can_be_cropped(crops, size):
    assert np.isfinite(crops(encoded(noise(*size)), 4, 0.08, 5)).all()


def test_a_seed_says_all_and_others_say_others(crops):
    image = encoded(noise(90, 80))
    first = crops(image, 8, 0.08, 20)
    np.testing.assert_array_equal(crops(image, 8, 0.08, 20), first)
    assert all(np.abs(a - b).max() > 1e-3 for a, b in itertools.combinations(first, 2))


def test_a_record_is_read_by_tf_models_official():
    """Whose labels begin with 1, which is a matter of what is written there, not of how it is read."""
    from official.vision.dataloaders import classification_input

    image = encoded(noise(9, 8))
    found = classification_input.Decoder("image/encoded", "image/class/label").decode(imagenet_data.serialized(image, 2))
    assert (found["image/encoded"].numpy(), int(found["image/class/label"])) == (image, 2)
