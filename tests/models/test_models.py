"""The networks are the published ones, and run in both Kerases."""

import numpy as np
import pytest
import tensorflow as tf

from models import cifar_resnet, digits


def trainable(model):
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


# 0.27M, 0.46M, 0.66M, 0.85M in table 6 of He et al.
@pytest.mark.parametrize(("depth", "count"), [(8, 75_290), (20, 269_722), (32, 464_154), (44, 658_586), (56, 853_018)])
def test_resnet_parameters(depth, count):
    assert trainable(cifar_resnet.build(depth)) == count


def test_resnet_gives_logits():
    model = cifar_resnet.build(8, num_classes=7)
    logits = model(np.zeros((2, 32, 32, 3), np.float32))
    assert logits.shape == (2, 7)
    assert logits.dtype == tf.float32


@pytest.mark.parametrize("depth", [0, 2, 7, 21])
def test_resnet_of_another_depth_is_refused(depth):
    with pytest.raises(ValueError, match=f"depth={depth}: a CIFAR ResNet is 6n"):
        cifar_resnet.build(depth)


def test_the_shortcut_takes_every_second_pixel_and_adds_zeros():
    x = np.random.default_rng(0).normal(size=(2, 4, 4, 6)).astype(np.float32)
    y = cifar_resnet.OptionAShortcut(10)(x).numpy()
    np.testing.assert_array_equal(y[..., 2:8], x[:, ::2, ::2])
    assert not y[..., :2].any()
    assert not y[..., 8:].any()


def test_a_resnet_is_restored_from_its_file(tmp_path):
    model = cifar_resnet.build(8)
    model.save(tmp_path / "model.keras")
    restored = tf.keras.models.load_model(tmp_path / "model.keras")
    x = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)
    np.testing.assert_allclose(restored(x).numpy(), model(x).numpy(), atol=1e-6)


def test_digits_are_split_by_class_and_always_alike():
    (x_train, y_train), (x_test, y_test) = digits.load()
    assert (x_train.shape, x_test.shape) == ((1437, 8, 8, 1), (360, 8, 8, 1))
    assert (x_train.dtype, x_train.min(), x_train.max()) == (np.float32, 0, 1)
    assert set(np.bincount(y_test)) <= {35, 36, 37}
    np.testing.assert_array_equal(digits.load()[1][0], x_test)
    assert len(np.unique(np.concatenate([x_train, x_test]).reshape(1797, -1), axis=0)) == 1797


def test_digits_network():
    model = digits.build()
    assert model(np.zeros((3, 8, 8, 1), np.float32)).shape == (3, 10)
    assert trainable(model) < 10_000
