"""CIFAR-10 as folders of JPEG files, which are what the kind imagenet is made of: for small runs of ImageNet's training."""

import time
from pathlib import Path

import numpy as np

from models import cifar_data
from tools.progress import Progress

# In alphabetical order: the numbers of the sorted folders are the labels of CIFAR-10.
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def add_arguments(parser):
    data = "CIFAR-10, in any of its layouts (default: Keras downloads it)"
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help=data)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new or empty: train/CLASS/N.jpeg and more")
    parser.add_argument("--pixels", type=int, default=64, help="of a side, by bicubic interpolation (default: 64)")
    parser.add_argument("--examples", type=int, default=0, metavar="N", help="the first ones for training (default: all)")
    parser.add_argument("--validation-examples", type=int, default=0, metavar="N", help="the same for validation")
    parser.add_argument("--quality", type=int, default=95, help="of the JPEG files, 1 to 100 (default: 95)")


def prepare(args):
    started = time.monotonic()
    if args.pixels < 1 or not 1 <= args.quality <= 100:
        raise ValueError(f"--pixels {args.pixels}, --quality {args.quality}: expected 1 or more, and 1 to 100")
    if args.output.exists() and any(args.output.iterdir()):
        raise ValueError(f"--output {args.output} is not empty: use another folder, or remove it first")
    train, test = cifar_data.load(args.data_dir)
    splits = {
        "train": first(*train, args.examples, "--examples"),
        "validation": first(*test, args.validation_examples, "--validation-examples"),
    }
    for split, (images, labels) in splits.items():
        write(images, labels, args.output / split, args.pixels, args.quality)
    counts = " + ".join(f"{len(labels):,}" for _, labels in splits.values())
    print(
        f"{args.output}: training + validation: {counts} images of {args.pixels} x {args.pixels} pixels; "
        f"{time.monotonic() - started:.0f} s"
    )


def first(images, labels, examples, argument):
    """So many of a split, 0 for all: of every class at least one."""
    if not 0 <= examples <= len(images):
        raise ValueError(f"{argument} {examples}: expected 0, for all, to {len(images):,}")
    count = examples or len(images)
    missing = [name for label, name in enumerate(CLASSES) if label not in labels[:count]]
    if missing:
        raise ValueError(f"{argument} {examples}: no {', '.join(missing)} among them; use more")
    return images[:count], labels[:count]


def write(images, labels, folder, pixels, quality):
    """Each image as folder/class/number.jpeg, numbered from 0 over all classes."""
    from PIL import Image

    for name in CLASSES:
        (folder / name).mkdir(parents=True)
    with Progress(folder.name, len(images), "images") as progress:
        for number, (image, label) in enumerate(zip(images, np.asarray(labels), strict=True)):
            enlarged = Image.fromarray(image).resize((pixels, pixels), Image.Resampling.BICUBIC)
            enlarged.save(folder / CLASSES[label] / f"{number:05d}.jpeg", "JPEG", quality=quality)
            progress.add()
