"""Where labelled images come from, folders of files or a data set of TFDS, and what has to be true of each to be a record."""

import io
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from models.bad_records import BadRecord

CONVERTED_QUALITY = 100
# Of Pillow; with more bits a channel an image would have to be scaled to be converted.
EIGHT_BIT_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB")


class Source(NamedTuple):
    """An image: where it stands, the number of its class, and its bytes; None: they are in the file of that place."""

    place: str
    label: int
    image: bytes | None


class Image(NamedTuple):
    """A JPEG in RGB or greyscale that can be decoded, the number of its class, and whether it was something else before."""

    image: bytes
    label: int
    converted: bool


class Folders:
    """Images in one folder for each class, the number of which is its place among the sorted names.

    Args:
        train: Folder with the folders for training.
        validation: The same for validation.
        seed: Of the order in which images come.

    Attributes:
        classes: Their names, in order.
        examples: How many images each split has, usable or not.

    Raises:
        ValueError: If a folder has no class, a class no file, or the splits have other classes.
    """

    def __init__(self, train: Path, validation: Path, seed: int) -> None:
        folders = {"train": Path(train), "validation": Path(validation)}
        self.classes = _same_classes(folders)
        # Places only: the images themselves need not fit into memory.
        self._sources = {split: _files_of(folder, self.classes) for split, folder in folders.items()}
        for split, sources in self._sources.items():
            random.Random(f"{seed}/{split}").shuffle(sources)
        self.examples = {split: len(sources) for split, sources in self._sources.items()}

    def images(self, split: str) -> Iterator[Source]:
        """The images of a split in random order, which depends on the seed and the split."""
        return iter(self._sources[split])


def _same_classes(folders: dict[str, Path]) -> list[str]:
    names = {split: {path.name for path in folder.iterdir() if path.is_dir()} for split, folder in folders.items()}
    for split, found in names.items():
        if not found:
            raise ValueError(f"{folders[split]} holds no folders: expected one for each class, with its images for {split}")
    only = {split: sorted(found - set.intersection(*names.values())) for split, found in names.items()}
    differing = [f"{', '.join(found)} only in {folders[split]}" for split, found in only.items() if found]
    if differing:
        raise ValueError(f"both splits must have the same classes, as folders: {'; '.join(differing)}")
    return sorted(names["train"])


def _files_of(folder: Path, classes: list[str]) -> list[Source]:
    """Every file in sorted order. One beside the folders of the classes has the label -1, so that it is a bad record."""
    labels = {name: label for label, name in enumerate(classes)}
    sources = [Source(str(path), -1, None) for path in sorted(folder.iterdir()) if path.name not in labels]
    for name, label in labels.items():
        found = sorted(entry.path for entry in os.scandir(folder / name))
        if not found:
            raise ValueError(f"{folder / name} is empty: expected the images of a class")
        sources += [Source(path, label, None) for path in found]
    return sources


class Tfds:
    """Images of a data set of TFDS that has been made, with their bytes as they are stored.

    Args:
        name: Of the data set, with its configuration and version as TFDS understands them.
        data_dir: Folder of data sets; None: that of TFDS.
        splits: Its splits for training and for validation.
        seed: Of the order in which images come.

    Attributes:
        classes: Their names, in order.
        examples: How many images each split has, usable or not.

    Raises:
        ValueError: If there is no such data set, it has not been made, or it is none of labelled images in random order.
    """

    def __init__(self, name: str, data_dir: Path | None, splits: tuple[str, str], seed: int) -> None:
        # Imported here: folders do not need it.
        import tensorflow_datasets as tfds

        try:
            self._builder = tfds.builder(name, data_dir=data_dir)
        # The latter where it has no such version.
        except (ValueError, AssertionError) as error:
            raise ValueError(f"--tfds {name}: {str(error).partition(chr(10))[0]}") from error
        info = self._builder.info
        self._name, self._seed, self._splits = name, seed, dict(zip(("train", "validation"), splits, strict=True))
        self.classes = _classes_of(info, name)
        try:
            self.examples = {split: info.splits[of_tfds].num_examples for split, of_tfds in self._splits.items()}
        except (KeyError, ValueError) as error:
            there = ", ".join(info.splits) or f"none: tfds build {name} makes them, in --tfds-dir {self._builder.data_dir_root}"
            raise ValueError(f"--tfds-splits {','.join(splits)}: {name} has {there}") from error

    def images(self, split: str) -> Iterator[Source]:
        """The images of a split in the order of TFDS, which is random, with its files in one that depends on the seed."""
        import tensorflow_datasets as tfds

        of_tfds = self._splits[split]
        dataset = self._builder.as_dataset(
            split=of_tfds,
            decoders={"image": tfds.decode.SkipDecoding()},
            shuffle_files=True,
            read_config=tfds.ReadConfig(shuffle_seed=self._seed, try_autocache=False),
        )
        for number, example in enumerate(dataset.as_numpy_iterator()):
            yield Source(f"{self._name}/{of_tfds}[{number}]", int(example["label"]), example["image"])


def _classes_of(info: Any, name: str) -> list[str]:
    import tensorflow_datasets as tfds

    features = dict(info.features.items()) if isinstance(info.features, tfds.features.FeaturesDict) else {}
    image, label = features.get("image"), features.get("label")
    if not isinstance(image, tfds.features.Image) or not isinstance(label, tfds.features.ClassLabel):
        raise ValueError(f"--tfds {name}: expected the features image and label, found {', '.join(features) or 'none'}")
    if info.disable_shuffling:
        raise ValueError(f"--tfds {name}: its examples are in an order of its own, which must be random here; use folders")
    return list(label.names)


def read(source: Source, classes: int) -> Image | BadRecord:
    """What becomes of an image: as it is, as a JPEG if it is none that TensorFlow reads, or a bad record.

    Args:
        source: The image.
        classes: How many there are.
    """
    if not 0 <= source.label < classes:
        return BadRecord(source.place, f"it belongs to none of the {classes} classes (label {source.label})")
    try:
        image = Path(source.place).read_bytes() if source.image is None else source.image
        jpeg = as_jpeg(image)
    # Pillow's decoders raise a lot of things on bytes that are no image.
    except Exception as error:
        return BadRecord(source.place, f"it cannot be decoded: {' '.join(str(error).split())}")
    return Image(jpeg, source.label, jpeg is not image)


def as_jpeg(image: bytes) -> bytes:
    """The same bytes if they are a JPEG in RGB or greyscale, else the image as a JPEG in RGB of quality 100.

    Raises:
        Exception: If they cannot be decoded, of the type that the decoder raises.
    """
    import PIL.Image
    import tensorflow as tf

    with PIL.Image.open(io.BytesIO(image)) as opened:
        # MPO is a JPEG with more of them behind it.
        if opened.format in ("JPEG", "MPO") and opened.mode in ("RGB", "L"):
            # By the decoder of the training: Pillow is content with more. Its result is not needed.
            tf.io.decode_jpeg(image, channels=3)
            return image
        if opened.mode not in EIGHT_BIT_MODES:
            raise ValueError(f"its mode is {opened.mode}, expected one with 8 bits a channel")
        converted = io.BytesIO()
        opened.convert("RGB").save(converted, "JPEG", quality=CONVERTED_QUALITY, subsampling=0)
        return converted.getvalue()
