"""The networks are the published ones, and run in both Kerases."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from models import cifar_networks, cifar_resnet, digits


def trainable(model):
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


def parameters(n, width=16, classes=10):
    """Of 6n + 2 layers: 3x3 kernels without biases, scale and offset after each, and the dense layer."""
    kernels, channels, before = 9 * 3 * width, width, width
    for stage in (width, 2 * width, 4 * width):
        kernels += 9 * before * stage + (2 * n - 1) * 9 * stage * stage
        channels += 2 * n * stage
        before = stage
    return kernels + 2 * channels + (before + 1) * classes


# 0.27M, 0.46M, 0.66M, 0.85M and 1.7M in table 6 of He et al.
@pytest.mark.parametrize(
    ("depth", "count"), [(8, 75_290), (20, 269_722), (32, 464_154), (44, 658_586), (56, 853_018), (110, 1_727_962)]
)
def test_resnet_parameters(depth, count):
    assert trainable(cifar_resnet.build(f"resnet{depth}")) == count == parameters((depth - 2) // 6)


def test_resnet_18_has_as_many_parameters_as_the_one_of_pytorch_cifar():
    assert trainable(cifar_resnet.build("resnet18")) == 11_173_962


@pytest.mark.parametrize("network", ["resnet14", "resnet18"])
def test_width_is_the_channels_of_the_first_stage(network):
    model = cifar_resnet.build(network, num_classes=3, width=4)
    channels = [layer.filters for layer in model.layers if isinstance(layer, tf.keras.layers.Conv2D)]
    if network == "resnet14":
        assert channels == [4] * 5 + [8] * 4 + [16] * 4
        assert trainable(model) == parameters(2, 4, 3)
    else:
        # Two blocks of two, and one more of each later stage in its shortcut.
        assert sorted(channels) == [4] * 5 + [8] * 5 + [16] * 5 + [32] * 5


@pytest.mark.parametrize("network", ["resnet8", "resnet18"])
def test_resnet_gives_logits(network):
    model = cifar_resnet.build(network, num_classes=7, width=4)
    logits = model(np.zeros((2, 32, 32, 3), np.float32))
    assert logits.shape == (2, 7)
    assert logits.dtype == tf.float32


@pytest.mark.parametrize("network", ["resnet8", "resnet18"])
def test_logits_stay_in_float32_under_mixed_precision(network):
    before = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = cifar_resnet.build(network, width=4)
    finally:
        tf.keras.mixed_precision.set_global_policy(before)
    assert model(np.zeros((2, 32, 32, 3), np.float32)).dtype == tf.float32
    pooled = next(layer for layer in model.layers if isinstance(layer, tf.keras.layers.GlobalAveragePooling2D))
    assert pooled.output.dtype == "bfloat16"


@pytest.mark.parametrize("depth", [8, 14, 18, 20, 110, 1202])
def test_a_name_says_its_depth(depth):
    assert cifar_networks.depth_of(f"resnet{depth}") == depth


@pytest.mark.parametrize(
    "network", ["resnet2", "resnet7", "resnet19", "resnet08", "resnet20v2", "Resnet20", "resnet", "vgg16", 20]
)
def test_another_network_is_refused(network):
    with pytest.raises(ValueError, match=f"network={network!r} is not known: .*'resnet18', .*'resnet8', .*'resnet110'"):
        cifar_networks.depth_of(network)
    with pytest.raises(ValueError, match=f"network={network!r} is not known"):
        cifar_resnet.build(network)


def test_names_are_read_without_tensorflow():
    code = "import sys, models.cifar_networks as n; n.depth_of('resnet18'); sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(cifar_networks.__file__).parents[1]).returncode == 0


def test_the_shortcut_takes_every_second_pixel_and_adds_zeros():
    x = np.random.default_rng(0).normal(size=(2, 4, 4, 6)).astype(np.float32)
    y = cifar_resnet.OptionAShortcut(10)(x).numpy()
    np.testing.assert_array_equal(y[..., 2:8], x[:, ::2, ::2])
    assert not y[..., :2].any()
    assert not y[..., 8:].any()


def test_shortcuts_of_18_are_1x1_convolutions_where_the_shape_changes():
    model = cifar_resnet.build("resnet18", width=4)
    random = np.random.default_rng(0)
    for layer in model.layers:
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            layer.set_weights([random.uniform(0.5, 2, weight.shape) for weight in layer.get_weights()])
    adds = [layer for layer in model.layers if isinstance(layer, tf.keras.layers.Add)]
    projections = [layer for layer in model.layers if getattr(layer, "kernel_size", None) == (1, 1)]
    assert len(adds) == 8 and len(projections) == 3
    outputs = tf.keras.Model(model.input, [tensor for add in adds for tensor in [*add.input, add.output]])
    images = random.normal(size=(2, 32, 32, 3)).astype(np.float32)
    found = [value.numpy() for value in outputs(images)]
    for block in range(1, 8):
        x, shortcut = np.maximum(found[3 * block - 1], 0), found[3 * block + 1]
        if block % 2 == 0:
            kernel = projections[block // 2 - 1].get_weights()[0][0, 0]
            norm = next(layer for layer in model.layers if layer.output is adds[block].input[1])
            scale, offset, mean, variance = norm.get_weights()
            x = (x[:, ::2, ::2] @ kernel - mean) / np.sqrt(variance + 1e-5) * scale + offset
        np.testing.assert_allclose(shortcut, x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("network", ["resnet8", "resnet18"])
def test_a_resnet_is_restored_from_its_file(tmp_path, network):
    model = cifar_resnet.build(network, width=4)
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
