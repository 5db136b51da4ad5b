"""tools.prepare_data cifar10-jpeg: every image in the folder of its class, enlarged, and refusals."""

import types

import numpy as np
import pytest
from PIL import Image

from models import cifar_data, imagenet_sources
from tests.models.imagenet_examples import decoded, noise
from tests.tools.command_line import refused
from tools import prepare_data

pytestmark = pytest.mark.one_keras


@pytest.fixture
def cifar(monkeypatch):
    """In place of CIFAR-10: 40 and 20 images, the labels of which are 0 to 9 in turn."""
    arrays = [(np.stack([noise(32, 32, n) for n in range(images)]), np.arange(images) % 10) for images in (40, 20)]
    monkeypatch.setattr(cifar_data, "load", lambda data_dir: tuple(arrays))
    return types.SimpleNamespace(train=arrays[0], test=arrays[1])


def test_cifar_becomes_folders_of_enlarged_images(cifar, tmp_path, capsys):
    command = ["cifar10-jpeg", f"--output={tmp_path / 'out'}", "--pixels=48", "--examples=30", "--quality=100"]
    prepare_data.main(command)
    assert "training + validation: 30 + 20 images of 48 x 48 pixels" in capsys.readouterr().out
    source = imagenet_sources.Folders(tmp_path / "out" / "train", tmp_path / "out" / "validation", seed=0)
    assert source.classes == ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    for split, (images, labels), examples in (("train", cifar.train, 30), ("validation", cifar.test, 20)):
        found = {path: label for path, label, _ in source.images(split)}
        assert len(found) == examples
        for path, label in found.items():
            number = int(path.rpartition("/")[2].removesuffix(".jpeg"))
            assert labels[number] == label
            with open(path, "rb") as file:
                pixels = decoded(file.read())
            expected = np.asarray(Image.fromarray(images[number]).resize((48, 48), Image.Resampling.BICUBIC), np.float64)
            # The JPEG has half of the colours' resolution.
            assert pixels.shape == (48, 48, 3) and np.abs(pixels - expected).mean() < 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pixels=0"], "--pixels 0, --quality 95: expected 1 or more, and 1 to 100"),
        (["--quality=101"], "--quality 101"),
        (["--examples=41"], "--examples 41: expected 0, for all, to 40"),
        (["--validation-examples=9"], "--validation-examples 9: no truck among them; use more"),
    ],
)
def test_cifar_is_refused(cifar, tmp_path, capsys, options, message):
    assert message in refused(prepare_data.main, capsys, "cifar10-jpeg", f"--output={tmp_path / 'out'}", *options)
    assert not (tmp_path / "out").exists()


def test_folders_that_are_not_empty_are_not_written_to(cifar, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    error = refused(prepare_data.main, capsys, "cifar10-jpeg", f"--output={tmp_path}")
    assert f"--output {tmp_path} is not empty" in error
