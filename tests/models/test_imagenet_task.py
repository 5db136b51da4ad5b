"""What tools.prepare_data imagenet has written as the task reads it, the networks and their loss, judging and serving."""

import dataclasses
import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from models import imagenet_resnet, prepared
from models.tasks import ImageNet
from tests.models.imagenet_examples import MEAN, STD, arguments, decoded, numbers_of, write_folders
from tf_simigrad.compat import keras_private
from tools import prepare_data

needs_tf_keras = pytest.mark.skipif(keras_private.KERAS_3, reason="its networks are tf_keras's")
one_keras = pytest.mark.one_keras

TASK = ImageNet(depth=10, width=0.25, image_size=32, classes=3)
TRAIN, VALIDATION = 12, 6


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagenet")
    prepare_data.main(arguments(write_folders(folder / "images", TRAIN, VALIDATION), folder / "prepared"))
    return folder / "prepared"


def training(output, elements, element=4, task=TASK, **changes):
    given = {"seed": 0, "initial_epoch": 0, "examples_per_epoch": 8, **changes}
    found = [(x.numpy(), y.numpy()) for x, y in itertools.islice(task.load(output).training(element, **given), elements)]
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


@one_keras
@pytest.mark.parametrize("micro_batch_size", [1, 4])
def test_elements_are_those_that_the_task_announces(output, micro_batch_size):
    TASK.check_data(output)
    data = TASK.load(output)
    assert (data.examples, data.validation_examples) == (TRAIN, VALIDATION)
    dataset = data.training(micro_batch_size, seed=0, initial_epoch=0, examples_per_epoch=2 * micro_batch_size)
    assert dataset.element_spec == TASK.element_spec(micro_batch_size)
    assert data.validation(3, 6).element_spec == TASK.element_spec(3)


@one_keras
def test_a_pass_of_training_holds_every_image_once_with_its_label(output):
    images, labels = training(output, 2 * TRAIN // 4)
    for number in range(2):
        numbers = numbers_of(images[number * TRAIN : (number + 1) * TRAIN])
        assert sorted(numbers) == list(range(TRAIN))
        assert [n % 3 for n in numbers] == labels[number * TRAIN : (number + 1) * TRAIN].tolist()


@one_keras
def test_an_epoch_is_the_same_whatever_the_first_one_is(output):
    """Images too, bit for bit, in epochs that end within a pass."""
    images, labels = training(output, 8)
    for epoch in (1, 2, 3):
        later_images, later_labels = training(output, 2, initial_epoch=epoch)
        np.testing.assert_array_equal(later_images, images[8 * epoch : 8 * epoch + 8])
        np.testing.assert_array_equal(later_labels, labels[8 * epoch : 8 * epoch + 8])


@one_keras
def test_other_passes_and_other_seeds_have_other_crops(output):
    by_number = {}
    for seed in (0, 1):
        images, _ = training(output, 2 * TRAIN // 4, seed=seed)
        for number, image in zip(numbers_of(images), images, strict=True):
            by_number.setdefault(number, []).append(image)
    for images in by_number.values():
        assert len(images) == 4
        assert all(np.abs(a - b).max() > 0.01 for a, b in itertools.combinations(images, 2))


@one_keras
def test_crops_are_as_large_as_the_task_says(output):
    """Of ``coordinates`` the spread of red and green tells the share; most crops of 8 % and more are below a half."""

    def shares(task):
        images, _ = training(output, 12, task=task)
        pixels = images * STD + MEAN
        return np.prod(np.ptp(pixels[..., :2], axis=(1, 2)) / 255, axis=-1)

    assert shares(dataclasses.replace(TASK, min_crop_area=0.6)).min() > 0.5
    assert np.median(shares(TASK)) < 0.5


@one_keras
@pytest.mark.parametrize("examples", [6, 5, 1])
def test_validation_is_in_order(output, examples):
    names = prepared.read_metadata(output, "imagenet")["files"]["validation"]
    records = [r for name in names for r in tf.data.TFRecordDataset(str(output / name)).as_numpy_iterator()]
    features = [tf.train.Example.FromString(record).features.feature for record in records]
    expected = [int(decoded(f["image/encoded"].bytes_list.value[0])[..., 2].mean() / 8 + 0.5) for f in features]
    assert sorted(expected) == list(range(VALIDATION)) != expected
    elements = list(TASK.load(output).validation(4, examples))
    assert [len(labels) for _, labels in elements] == ([4] if examples > 4 else []) + [examples % 4]
    images = np.concatenate([images for images, _ in elements])
    assert numbers_of(images) == expected[:examples]
    assert np.concatenate([labels for _, labels in elements]).tolist() == [number % 3 for number in expected[:examples]]


@one_keras
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 51}, "depth=51: expected one of 10, 18, 26, 34, 50, "),
        ({"width": 0.01}, "width=0.01: expected at least 1/64"),
        ({"width": float("inf")}, "width=inf"),
        ({"image_size": 0}, "image_size=0: expected 1 or more"),
        ({"classes": 1}, "classes=1: expected 2 or more"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0: expected 0 to less than 1"),
        ({"label_smoothing": -0.1}, "label_smoothing=-0.1"),
        ({"min_crop_area": 0.0}, "min_crop_area=0.0: expected a share above 0, at most 1"),
        ({"min_crop_area": 1.1}, "min_crop_area=1.1"),
    ],
)
def test_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TASK, **changes)


@one_keras
def test_other_data_are_refused(output, tmp_path):
    with pytest.raises(ValueError, match=r"classes=1000, prepared with 3\. Prepare it anew, or --set task\.<name>"):
        ImageNet().check_data(output)
    with pytest.raises(ValueError, match="--data-dir is missing: expected a folder of the kind imagenet"):
        TASK.check_data(None)
    (tmp_path / "metadata.json").write_text(json.dumps({"kind": "squad", "files": {}}))
    with pytest.raises(ValueError, match="of the kind squad, expected imagenet"):
        TASK.check_data(tmp_path)
    assert TASK.data_fingerprint(output) == prepared.fingerprint(output) != TASK.data_fingerprint(tmp_path)


@one_keras
def test_settings_are_read_without_tensorflow():
    code = "import sys; from models.tasks import ImageNet; ImageNet().check_data; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(imagenet_resnet.__file__).parents[1]).returncode == 0


def smoothed(labels, logits, smoothing):
    """Of each example, with a label that is 1 - s for its class, and s shared by all of them."""
    targets = (1 - smoothing) * np.eye(logits.shape[1])[labels] + smoothing / logits.shape[1]
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return -(targets * np.log(shares)).sum(axis=1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_labels_are_smoothed(smoothing):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(scale=3, size=(5, 7)).astype(np.float32), rng.integers(0, 7, 5).astype(np.int32)
    loss = dataclasses.replace(TASK, classes=7, label_smoothing=smoothing).compile_arguments()["loss"]
    expected = smoothed(labels, logits.astype(np.float64), smoothing)
    np.testing.assert_allclose(loss.call(tf.constant(labels), tf.constant(logits)), expected, rtol=1e-5)
    for shape in ([5], [5, 1]):
        np.testing.assert_allclose(loss(tf.reshape(labels, shape), tf.constant(logits)), expected.mean(), rtol=1e-5)
    weights = np.array([0.0, 1, 2, 0, 3], np.float32)
    np.testing.assert_allclose(loss(labels, tf.constant(logits), weights), (expected * weights).sum() / 5, rtol=1e-5)


def test_the_loss_comes_back_from_its_configuration():
    loss = dataclasses.replace(TASK, label_smoothing=0.3).compile_arguments()["loss"]
    again = tf.keras.losses.deserialize(tf.keras.losses.serialize(loss))
    assert type(again) is type(loss) and again.get_config() == loss.get_config() and again.label_smoothing == 0.3


@pytest.mark.parametrize(("classes", "names"), [(5, ["accuracy"]), (6, ["accuracy", "top_5_accuracy"])])
def test_where_there_are_more_than_five_classes_the_first_five_count(classes, names):
    metrics = dataclasses.replace(TASK, classes=classes).compile_arguments()["metrics"]
    assert [metric.name for metric in metrics] == names
    logits = np.arange(classes)[None].repeat(4, axis=0).astype(np.float32)
    labels = np.array([0, 1, classes - 1, classes - 1], np.int32)
    for metric, expected in zip(metrics, (0.5, 0.75), strict=False):
        metric.update_state(labels, logits)
        assert float(metric.result()) == expected


def trainable(model):
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


@needs_tf_keras
def test_the_network_is_the_published_one():
    """25.6 million parameters: torchvision's count to the last one, 25,557,032."""
    model = ImageNet().build()
    assert trainable(model) == 25_557_032
    assert (model.input_shape, model.output_shape) == ((None, 224, 224, 3), (None, 1000))
    (backbone,) = [layer for layer in model.layers if hasattr(layer, "get_config") and layer.name.startswith("res_net")]
    norms = [part for part in backbone.submodules if isinstance(part, tf.keras.layers.BatchNormalization)]
    assert len(norms) == 53 and {(norm.momentum, norm.epsilon) for norm in norms} == {(0.9, 1e-5)}
    # v1.5: where the size is halved, it is by the 3x3 convolution.
    convolutions = [part for part in backbone.submodules if isinstance(part, tf.keras.layers.Conv2D)]
    halving = sorted((part.kernel_size[0], part.filters) for part in convolutions if part.strides == (2, 2))
    # The stem, and of each later stage that convolution and the one beside its first block.
    assert halving == [(1, 512), (1, 1024), (1, 2048), (3, 128), (3, 256), (3, 512), (7, 64)]
    kernel, bias = model.layers[-1].get_weights()
    assert not bias.any() and abs(kernel.std() - 0.01) < 1e-4 and abs(kernel.mean()) < 1e-4


@needs_tf_keras
@pytest.mark.parametrize("width", [0.125, 0.5, 1.0])
def test_width_and_depth_are_those_of_the_network(width):
    """ResNet-18: its 7x7 stem, then two blocks of two 3x3 convolutions a stage, the first of each with a 1x1 one beside."""
    model = dataclasses.replace(TASK, depth=18, width=width, classes=11).build()
    channels = [int(c * width) for c in (64, 64, 128, 256, 512)]
    count = 49 * 3 * channels[0] + 2 * channels[0]
    for before, stage in itertools.pairwise(channels):
        count += 9 * before * stage + 3 * 9 * stage * stage + before * stage + 5 * 2 * stage
    assert trainable(model) == count + (channels[-1] + 1) * 11
    assert model(np.zeros((2, 32, 32, 3), np.float32)).shape == (2, 11)


@needs_tf_keras
def test_logits_stay_in_float32_under_mixed_precision():
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = TASK.build()
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    assert model(np.zeros((2, 32, 32, 3), np.float32)).dtype == tf.float32


@needs_tf_keras
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_model_is_judged_by_all_of_the_validation(output, strategies, replicas):
    """One that tells the classes 0, 1 and 2 of an image by its blue, but takes 2 for 1: right for four of six."""
    strategy = strategies(replicas)
    with strategy.scope():
        inputs = tf.keras.Input((32, 32, 3))
        number = tf.round((tf.reduce_mean(inputs[..., 2], axis=[1, 2]) * STD[2] + MEAN[2]) / 8)
        label = tf.minimum(tf.cast(number, tf.int32) % 3, 1)
        model = tf.keras.Model(inputs, tf.one_hot(label, 3) * 4.0)
        model.compile(**TASK.compile_arguments())
    seen, data = [], TASK.load(output)
    found = TASK.judge(model, strategy)(data, 4, data.validation_examples, seen.append)
    assert seen == [4, 2] and found["accuracy"] == pytest.approx(4 / 6)
    right, wrong = (float(smoothed(np.array([label]), np.array([[4.0, 0, 0]]), 0.1)[0]) for label in (0, 1))
    assert found["loss"] == pytest.approx((4 * right + 2 * wrong) / 6, rel=1e-4)


@needs_tf_keras
def test_a_server_takes_images_as_they_are(output):
    model, data = TASK.build(), TASK.load(output)
    signature = TASK.signatures(model)["serving_default"]
    (inputs,) = TASK.serving_inputs(data).values()
    images = inputs["images"]
    assert (images.shape, images.dtype) == ((6, 32, 32, 3), np.uint8)
    found = signature(**inputs)
    expected = model(((images - MEAN) / STD).astype(np.float32), training=False).numpy()
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-4, atol=1e-5)
    shares = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found["probabilities"], shares, rtol=1e-4)
    assert found["classes"].numpy().tolist() == expected.argmax(axis=1).tolist()
    # What is tried is what the validation holds, up to the rounding to whole numbers.
    (validated, _), *_ = data.validation(6, 6)
    np.testing.assert_allclose(images, validated * STD + MEAN, atol=0.502)


@needs_tf_keras
def test_the_loss_of_a_training_is_that_of_its_elements(output):
    model, data = TASK.build(), TASK.load(output)
    model.compile(optimizer=tf.keras.optimizers.SGD(0.0), **TASK.compile_arguments())
    history = model.fit(data.training(6, 3, 0, 6), steps_per_epoch=1, verbose=0).history
    images, labels = training(output, 1, element=6, seed=3, examples_per_epoch=6)
    logits = model(images, training=True).numpy().astype(np.float64)
    assert history["loss"][0] == pytest.approx(smoothed(labels, logits, 0.1).mean(), rel=1e-4)
    assert history["accuracy"][0] == pytest.approx((logits.argmax(axis=1) == labels).mean())


@one_keras
def test_images_of_cifar_are_found_again(data_dir, tmp_path, monkeypatch):
    """The way of small runs: to JPEG files, to records, back to images that are near the original ones."""
    from models import cifar_data

    # One of its files, for both splits: each takes seconds to read.
    with np.load(data_dir / "cifar10" / "cifar10_test.npz") as arrays:
        x, y = arrays["x"][:60], arrays["y"][:60]
    monkeypatch.setattr(cifar_data, "load", lambda data_dir: ((x, y), (x, y)))
    prepare_data.main(["cifar10-jpeg", f"--output={tmp_path / 'jpeg'}", "--pixels=64", "--validation-examples=40"])
    prepare_data.main(arguments(tmp_path / "jpeg", tmp_path / "prepared"))
    task = ImageNet(depth=10, image_size=32, classes=10, min_crop_area=1.0)
    task.check_data(tmp_path / "prepared")
    images, labels = training(tmp_path / "prepared", 15, task=task)
    originals, found = (x - MEAN) / STD, []
    for image, label in zip(images, labels, strict=True):
        distances = [min(np.abs(o - image).mean(), np.abs(o[:, ::-1] - image).mean()) for o in originals]
        found.append(int(np.argmin(distances)))
        assert min(distances) < 0.2 and y[found[-1]] == label
    assert sorted(found) == list(range(60))
