"""Images whose pixels say which they are and where they have been cut out, as JPEG files in folders of classes."""

import io

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cow")
MEAN, STD = np.array([0.485, 0.456, 0.406]) * 255, np.array([0.229, 0.224, 0.225]) * 255
# Steps of blue from one image to the next.
STEP = 8


def coordinates(width, height, number=0):
    """uint8 [height, width, 3]: red grows from 0 to 255 from left to right, green from the top down, blue is the number."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return np.stack([x, y, np.full_like(x, STEP * number)], axis=-1).round().astype(np.uint8)


def noise(width, height, seed=0):
    """uint8 [height, width, 3] with some structure."""
    few = np.random.default_rng(seed).integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(few).resize((width, height), Image.Resampling.BICUBIC))


def encoded(pixels, kind="JPEG", mode=None, **options):
    """An image as a file's bytes; a JPEG as faithful as can be: without less of the colours than of the brightness."""
    image, file = Image.fromarray(pixels), io.BytesIO()
    if kind == "JPEG":
        options = {"quality": 100, "subsampling": 0, **options}
    (image.convert(mode) if mode else image).save(file, kind, **options)
    return file.getvalue()


def decoded(image):
    """float64 [height, width, 3], by Pillow."""
    return np.asarray(Image.open(io.BytesIO(image)).convert("RGB"), np.float64)


def write_folders(root, train=12, validation=6):
    """Folders root/train and root/validation of so many images; the number of an image says its class."""
    for split, images in (("train", train), ("validation", validation)):
        for name in CLASSES:
            (root / split / name).mkdir(parents=True)
        for number in range(images):
            pixels = coordinates(40 + number, 64 - number, number)
            (root / split / CLASSES[number % 3] / f"{number:02d}.JPEG").write_bytes(encoded(pixels))
    return root


def arguments(root, output, **options):
    """Those of tools.prepare_data for such folders."""
    options = {"train": root / "train", "validation": root / "validation", "shards": 3, "validation-shards": 2, **options}
    return ["imagenet", "--output", str(output), *(f"--{name}={value}" for name, value in options.items() if value is not None)]


def numbers_of(images):
    """Of standardised images [n, size, size, 3], the numbers of what they were cut out of."""
    return np.rint((np.asarray(images)[..., 2] * STD[2] + MEAN[2]).mean(axis=(1, 2)) / STEP).astype(int).tolist()
