"""tools.prepare_data imagenet from end to end: records, counts, what is converted, bad records, refusals."""

import io
import itertools
import json
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from models import imagenet_sources, prepared
from tests.models.imagenet_examples import CLASSES, arguments, coordinates, decoded, encoded, noise, write_folders
from tests.tools.command_line import refused
from tools import prepare_data

pytestmark = [pytest.mark.one_keras, pytest.mark.usefixtures("tf")]

TRAIN, VALIDATION = 12, 6


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_folders(tmp_path_factory.mktemp("images"), TRAIN, VALIDATION)


@pytest.fixture(scope="module")
def output(folders, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared") / "new" / "folder"
    prepare_data.main(arguments(folders, folder))
    return folder


@pytest.fixture
def own_folders(folders, tmp_path):
    """A copy that a test may spoil."""
    return shutil.copytree(folders, tmp_path / "images")


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def records(folder, split):
    """(image, label) of a split, file by file."""
    found = []
    for name in json.loads((folder / "metadata.json").read_text())["files"][split]:
        of_file = []
        for record in tf.data.TFRecordDataset(str(folder / name)).as_numpy_iterator():
            features = tf.train.Example.FromString(record).features.feature
            assert set(features) == {"image/encoded", "image/class/label"}
            (image,), (label,) = features["image/encoded"].bytes_list.value, features["image/class/label"].int64_list.value
            of_file.append((image, label))
        found.append(of_file)
    return found


def in_folders(root, split):
    return [
        (path.read_bytes(), label) for label, name in enumerate(CLASSES) for path in sorted((root / split / name).iterdir())
    ]


def test_every_file_is_a_record_as_it_is_with_the_number_of_its_class(output, folders):
    for split, lengths in (("train", [4, 4, 4]), ("validation", [3, 3])):
        found = records(output, split)
        assert [len(of_file) for of_file in found] == lengths
        assert sorted(itertools.chain(*found)) == sorted(in_folders(folders, split))
        # Not class by class.
        labels = [label for _, label in itertools.chain(*found)]
        assert labels != sorted(labels)


def test_the_metadata_say_what_there_is(output):
    metadata = prepared.read_metadata(output, "imagenet")
    assert metadata == {
        "kind": "imagenet",
        "classes": 3,
        "class_names": ["ant", "bee", "cow"],
        "seed": 0,
        "examples": {"train": TRAIN, "validation": VALIDATION},
        "converted": {"train": 0, "validation": 0},
        "bad_records": {"train": 0, "validation": 0},
        "files": {
            "train": [f"train-0000{i}-of-00003.tfrecord" for i in range(3)],
            "validation": [f"validation-0000{i}-of-00002.tfrecord" for i in range(2)],
        },
    }
    named = [name for names in metadata["files"].values() for name in names]
    assert sorted(files(output)) == sorted([*named, "metadata.json"])


def test_the_same_arguments_give_the_same_bytes_and_another_seed_another_order(output, folders, tmp_path, capsys):
    prepare_data.main(arguments(folders, tmp_path / "same", threads=7))
    assert files(tmp_path / "same") == files(output)
    expected = "training + validation: 12 + 6 images of 3 classes, 0 + 0 of them converted to JPEG in RGB; 0 + 0 bad records; "
    assert f"{tmp_path / 'same'}: {expected}" in capsys.readouterr().out
    prepare_data.main(arguments(folders, tmp_path / "other", seed=1))
    for split in ("train", "validation"):
        ours, theirs = (list(itertools.chain(*records(folder, split))) for folder in (output, tmp_path / "other"))
        assert ours != theirs and sorted(ours) == sorted(theirs)


def test_an_earlier_preparation_is_replaced(folders, tmp_path):
    for shards in (5, 2):
        prepare_data.main(arguments(folders, tmp_path, shards=shards))
    assert {name for name in files(tmp_path) if name.startswith("train")} == {
        f"train-0000{i}-of-00002.tfrecord" for i in (0, 1)
    }
    assert not list(tmp_path.glob("*.partial"))


# As it is in ImageNet, and more of the kind; what comes out may differ by the rounding of the colours and the JPEG's.
CONVERTED = {
    "PNG": lambda pixels: encoded(pixels, "PNG"),
    "CMYK": lambda pixels: encoded(pixels, mode="CMYK"),
    "GIF": lambda pixels: encoded(pixels, "GIF"),
    "PNG with transparency": lambda pixels: encoded(pixels, "PNG", mode="RGBA"),
    "PNG in greyscale": lambda pixels: encoded(pixels, "PNG", mode="L"),
    "BMP": lambda pixels: encoded(pixels, "BMP"),
}


@pytest.mark.parametrize("kind", CONVERTED)
def test_what_is_no_jpeg_in_rgb_or_greyscale_is_converted_and_counted(own_folders, tmp_path, kind):
    odd = CONVERTED[kind](noise(50, 40))
    path = own_folders / "validation" / "bee" / "01.JPEG"
    path.write_bytes(odd)
    prepare_data.main(arguments(own_folders, tmp_path / "out"))
    assert prepared.read_metadata(tmp_path / "out", "imagenet")["converted"] == {"train": 0, "validation": 1}
    before = dict.fromkeys(image for image, _ in in_folders(own_folders, "validation"))
    ((image, label),) = [r for r in itertools.chain(*records(tmp_path / "out", "validation")) if r[0] not in before]
    opened = Image.open(io.BytesIO(image))
    assert (opened.format, opened.mode, label) == ("JPEG", "RGB", 1)
    # Quality 100 quantises nothing.
    assert {value for table in opened.quantization.values() for value in table} == {1}
    differences = np.abs(decoded(image) - decoded(odd))
    assert differences.max() <= 5 and differences.mean() < 1
    assert np.array_equal(np.shape(tf.io.decode_jpeg(image)), (40, 50, 3))


@pytest.mark.parametrize(
    "image",
    [
        encoded(noise(30, 20), subsampling=2, quality=70),
        encoded(noise(30, 20)[..., 0]),
        encoded(noise(30, 20), progressive=True),
        encoded(noise(30, 20), "MPO", save_all=True, append_images=[Image.fromarray(noise(30, 20, 1))]),
    ],
    ids=["fewer colours", "greyscale", "progressive", "several images"],
)
def test_a_jpeg_in_rgb_or_greyscale_stays_as_it_is(image):
    assert imagenet_sources.as_jpeg(image) is image
    assert tf.io.decode_jpeg(image, channels=3).shape == (20, 30, 3)


BAD = {
    "truncated": (lambda: encoded(noise(40, 40))[:-200], "it cannot be decoded: "),
    "only a header": (lambda: encoded(noise(40, 40))[:300], "it cannot be decoded: "),
    "empty": (lambda: b"", "it cannot be decoded: cannot identify image file"),
    "text": (lambda: b"<html>404 Not Found</html>", "it cannot be decoded: cannot identify image file"),
    "truncated PNG": (lambda: encoded(noise(40, 40), "PNG")[:-300], "it cannot be decoded: "),
    "16 bits": (
        lambda: encoded(np.full((9, 9), 40_000, np.uint16), "PNG"),
        "its mode is I;16, expected one with 8 bits a channel",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_decoded_is_named_and_counted(own_folders, tmp_path, kind):
    image, reason = BAD[kind]
    path = own_folders / "train" / "cow" / "02.JPEG"
    path.write_bytes(image())
    prepare_data.main(arguments(own_folders, tmp_path / "out", **{"bad-share": 0.1}))
    metadata = prepared.read_metadata(tmp_path / "out", "imagenet")
    assert metadata["bad_records"] == {"train": 1, "validation": 0} and metadata["examples"]["train"] == TRAIN - 1
    assert sum(map(len, records(tmp_path / "out", "train"))) == TRAIN - 1
    (line,) = (tmp_path / "out" / "bad_records.txt").read_text().splitlines()
    assert line.startswith(f"{path}: ") and reason in line


def test_what_stands_where_no_image_should_is_named(own_folders, tmp_path):
    (own_folders / "train" / "list.csv").write_bytes(encoded(noise(9, 9)))
    (own_folders / "validation" / "ant" / "more").mkdir()
    prepare_data.main(arguments(own_folders, tmp_path / "out", **{"bad-share": 0.2}))
    stray, folder = (tmp_path / "out" / "bad_records.txt").read_text().splitlines()
    assert stray == f"{own_folders / 'train' / 'list.csv'}: it belongs to none of the 3 classes (label -1)"
    assert folder.startswith(f"{own_folders / 'validation' / 'ant' / 'more'}: ") and "directory" in folder
    assert prepared.read_metadata(tmp_path / "out", "imagenet")["bad_records"] == {"train": 1, "validation": 1}


def test_too_many_bad_records_are_refused_and_an_earlier_preparation_stays(own_folders, tmp_path, capsys):
    prepare_data.main(arguments(own_folders, tmp_path / "out"))
    before = files(tmp_path / "out")
    capsys.readouterr()
    for number in (0, 3):
        (own_folders / "train" / "ant" / f"{number:02d}.JPEG").write_bytes(b"")
    error = refused(prepare_data.main, capsys, *arguments(own_folders, tmp_path / "out"))
    all_of_them = tmp_path / "out" / "bad_records.txt.partial"
    assert "2 of 12 records cannot be used, more than the accepted share of 0.001: " in error
    assert "00.JPEG: it cannot be decoded" in error and f"; all of them: {all_of_them}" in error
    assert len(all_of_them.read_text().splitlines()) == 2
    all_of_them.unlink()
    assert files(tmp_path / "out") == before


def test_other_classes_are_refused(own_folders, tmp_path, capsys):
    (own_folders / "validation" / "cow").rename(own_folders / "validation" / "dog")
    error = refused(prepare_data.main, capsys, *arguments(own_folders, tmp_path / "out"))
    expected = f"cow only in {own_folders / 'train'}; dog only in {own_folders / 'validation'}"
    assert f"both splits must have the same classes, as folders: {expected}" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": 0}, "--shards 0: expected 1 or more"),
        ({"validation-shards": 0}, "--validation-shards 0: expected 1 or more"),
        ({"threads": 0}, "--threads 0: expected 1 or more"),
        ({"shards": 13}, "--shards 13: there are 12 images for train; use fewer files"),
        ({"validation-shards": 7}, "--validation-shards 7: there are 6 images for validation; use fewer files"),
        ({"bad-share": 2}, "a share of bad records of 2.0: expected 0 to 1"),
        ({"train": None}, "expected either --train and --validation, or --tfds"),
        ({"validation": None}, "expected either --train and --validation, or --tfds"),
        ({"tfds": "mnist"}, "expected either --train and --validation, or --tfds"),
        ({"train": "nothing/there"}, "No such file or directory"),
        ({"train": None, "validation": None, "tfds": "mnist", "tfds-splits": "train"}, "--tfds-splits train: expected two"),
    ],
)
def test_arguments_are_refused(folders, tmp_path, capsys, options, message):
    assert message in refused(prepare_data.main, capsys, *arguments(folders, tmp_path / "out", **options))
    assert not (tmp_path / "out").exists()


def test_folders_without_images_are_refused(own_folders, tmp_path, capsys):
    (own_folders / "train" / "dog").mkdir()
    (own_folders / "validation" / "dog").mkdir()
    assert f"{own_folders / 'train' / 'dog'} is empty" in refused(
        prepare_data.main, capsys, *arguments(own_folders, tmp_path / "o")
    )
    options = {"train": own_folders / "train" / "ant"}
    error = refused(prepare_data.main, capsys, *arguments(own_folders, tmp_path / "o", **options))
    assert f"{own_folders / 'train' / 'ant'} holds no folders: expected one for each class, with its images for train" in error


def test_data_of_another_kind_are_not_replaced(folders, tmp_path, capsys):
    (tmp_path / "metadata.json").write_text('{"kind": "squad"}')
    before = files(tmp_path)
    assert "holds prepared data of the kind squad" in refused(prepare_data.main, capsys, *arguments(folders, tmp_path))
    assert files(tmp_path) == before


def test_a_few_images_only_are_read_ahead():
    from tools.prepare import imagenet

    begun = []
    results = imagenet.in_order(lambda item: -item, (begun.append(i) or i for i in range(1000)), threads=2)
    assert [next(results) for _ in range(3)] == [0, -1, -2]
    assert len(begun) < 20
    assert list(results) == [-i for i in range(3, 1000)]


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
    """With a data set of TFDS, tiny_images, whose images are those of ``coordinates``, one of them as a PNG."""
    import tensorflow_datasets as tfds

    class TinyImages(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        # TFDS looks for files beside a module of a package, for which it needs a library that it does not install.
        __module__ = "tiny_images"

        def _info(self):
            features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(names=["wasp", "ant"])}
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(9), "test": self._generate_examples(4)}

        def _generate_examples(self, examples):
            for number in range(examples):
                image = encoded(coordinates(20, 30, number), *(["PNG"] if number == 3 else []))
                yield number, {"image": io.BytesIO(image), "label": number % 2}

    folder = tmp_path_factory.mktemp("tfds")
    TinyImages(data_dir=folder).download_and_prepare()
    return folder


def test_a_data_set_of_tfds_is_read_byte_by_byte(tfds_dir, tmp_path, capsys):
    options = {"train": None, "validation": None, "tfds": "tiny_images", "tfds-dir": tfds_dir, "tfds-splits": "train,test"}
    for name in ("first", "second"):
        prepare_data.main(arguments(tmp_path, tmp_path / name, **options))
    assert files(tmp_path / "first") == files(tmp_path / "second")
    metadata = prepared.read_metadata(tmp_path / "first", "imagenet")
    assert (metadata["classes"], metadata["class_names"]) == (2, ["wasp", "ant"])
    assert metadata["examples"] == {"train": 9, "validation": 4} and metadata["converted"] == {"train": 1, "validation": 1}
    for split, examples in (("train", 9), ("validation", 4)):
        found = list(itertools.chain(*records(tmp_path / "first", split)))
        expected = [(encoded(coordinates(20, 30, n)), n % 2) for n in range(examples)]
        as_they_were = [pair for n, pair in enumerate(expected) if n != 3]
        assert sorted(pair for pair in found if pair in as_they_were) == sorted(as_they_were)
        ((converted, label),) = [pair for pair in found if pair not in as_they_were]
        assert label == 1 and np.abs(decoded(converted) - coordinates(20, 30, 3)).max() <= 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tfds": "no_such_data_set"}, "--tfds no_such_data_set: Dataset no_such_data_set not found."),
        ({"tfds": "mnist"}, "mnist has none: tfds build mnist makes them"),
        ({"tfds": "tiny_images"}, "--tfds-splits train,validation: tiny_images has train, test"),
        ({"tfds": "squad"}, "--tfds squad: expected the features image and label, found id, title, context, question, answers"),
        ({"tfds": "tiny_images:7.0.0"}, "--tfds tiny_images:7.0.0: "),
    ],
)
def test_other_data_sets_of_tfds_are_refused(tfds_dir, tmp_path, capsys, options, message):
    options = {"train": None, "validation": None, "tfds-dir": tfds_dir, **options}
    assert message in refused(prepare_data.main, capsys, *arguments(tmp_path, tmp_path / "out", **options))
    assert not (tmp_path / "out").exists()


def test_a_data_set_of_tfds_that_is_sorted_is_refused():
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict({"image": tfds.features.Image(), "label": tfds.features.ClassLabel(num_classes=2)})
    info = types.SimpleNamespace(features=features, disable_shuffling=True)
    with pytest.raises(ValueError, match="--tfds sorted: its examples are in an order of its own"):
        imagenet_sources._classes_of(info, "sorted")


def test_labels_outside_of_the_classes_are_bad_records():
    """Those of TFDS's test split of ImageNet."""
    for label in (-1, 3):
        found = imagenet_sources.read(imagenet_sources.Source("place", label, encoded(noise(9, 9))), classes=3)
        assert str(found) == f"place: it belongs to none of the 3 classes (label {label})"
