"""Labelled images, of folders or of TFDS, to encoded JPEG in TFRecord files."""

import collections
import concurrent.futures
import contextlib
import itertools
import json
import os
import time
from pathlib import Path

from models import imagenet_sources, prepared
from models.bad_records import BadRecords, write_bad_records
from tools.progress import Progress

KIND = "imagenet"
BAD = "bad_records.txt"
PARTIAL = ".partial"
SPLITS = ("train", "validation")


def add_arguments(parser):
    parser.add_argument("--train", type=Path, metavar="DIR", help="images for training, in a folder for each class")
    parser.add_argument("--validation", type=Path, metavar="DIR", help="images for validation, in folders of the same names")
    parser.add_argument("--tfds", metavar="NAME", help="in place of both: one of TFDS with image and label: imagenet2012")
    parser.add_argument("--tfds-dir", type=Path, metavar="DIR", help="where TFDS has it (default: its own)")
    splits = "for training and validation (default: %(default)s)"
    parser.add_argument("--tfds-splits", default="train,validation", metavar="A,B", help=splits)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a preparation found there is replaced")
    parser.add_argument("--shards", type=int, default=128, help="files for training (default: 128)")
    parser.add_argument("--validation-shards", type=int, default=8, help="files for validation (default: 8)")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which images are dealt to the files")
    parser.add_argument("--bad-share", type=float, default=0.001, help="of a split, accepted as unusable (default: 0.001)")
    threads = "how many check and convert images, which changes nothing in the files (default: one a core, %(default)s)"
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help=threads)


def prepare(args):
    started = time.monotonic()
    source = open_source(args)
    bad = {split: BadRecords(args.bad_share) for split in SPLITS}
    prepared.check_replaceable(args.output, KIND)
    args.output.mkdir(parents=True, exist_ok=True)
    remove(args.output, f"*{PARTIAL}")
    names = {"train": shard_names("train", args.shards), "validation": shard_names("validation", args.validation_shards)}
    leave_gpus_alone()
    try:
        counts = {split: write(source, split, names[split], bad[split], args) for split in SPLITS}
        check(bad, args.output)
    except BaseException:
        # An earlier preparation stays as it was.
        remove(args.output, f"*.tfrecord{PARTIAL}")
        raise
    metadata = {
        "kind": KIND,
        "classes": len(source.classes),
        "class_names": source.classes,
        "seed": args.seed,
        "examples": {split: counts[split]["examples"] for split in SPLITS},
        "converted": {split: counts[split]["converted"] for split in SPLITS},
        "bad_records": {split: len(bad[split].found) for split in SPLITS},
        "files": names,
    }
    publish(args.output, names, metadata)
    print(f"{args.output}: {summary(metadata)}; {time.monotonic() - started:.0f} s")


def open_source(args):
    """The images, after a check of all arguments that say which and how many files they become."""
    for name in ("shards", "validation_shards", "threads"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: expected 1 or more")
    if (args.tfds is None) == (args.train is None) or (args.train is None) != (args.validation is None):
        raise ValueError("expected either --train and --validation, or --tfds")
    if args.tfds is None:
        source = imagenet_sources.Folders(args.train, args.validation, args.seed)
    else:
        splits = args.tfds_splits.split(",")
        if len(splits) != 2:
            raise ValueError(f"--tfds-splits {args.tfds_splits}: expected two with a comma between")
        source = imagenet_sources.Tfds(args.tfds, args.tfds_dir, splits, args.seed)
    for split, shards, argument in (
        ("train", args.shards, "shards"),
        ("validation", args.validation_shards, "validation-shards"),
    ):
        if source.examples[split] < shards:
            raise ValueError(f"--{argument} {shards}: there are {source.examples[split]} images for {split}; use fewer files")
    return source


def shard_names(split, shards):
    return [f"{split}-{shard:05d}-of-{shards:05d}.tfrecord" for shard in range(shards)]


def remove(folder, pattern):
    for path in folder.glob(pattern):
        path.unlink()


def leave_gpus_alone():
    """TensorFlow would take all memory of every GPU for itself."""
    import tensorflow as tf

    # Where something else has made use of TensorFlow in this process, it is too late.
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")


def write(source, split, names, bad, args):
    """Deals the images of a split, which come in random order, to files, and counts them."""
    import tensorflow as tf

    from models import imagenet_data

    counts = collections.Counter(examples=0, converted=0)
    images, total, shards = source.images(split), source.examples[split], len(names)
    with Progress(split, total, "images") as progress:
        for shard, name in enumerate(names):
            share = (shard + 1) * total // shards - shard * total // shards
            found = in_order(
                lambda image: imagenet_sources.read(image, len(source.classes)), itertools.islice(images, share), args.threads
            )
            with tf.io.TFRecordWriter(str(args.output / f"{name}{PARTIAL}")) as writer:
                for image in bad.drop(told(found, progress)):
                    writer.write(imagenet_data.serialized(image.image, image.label))
                    counts.update(examples=1, converted=image.converted)
    return counts


def in_order(function, items, threads):
    """The results for items in their order; a few are computed ahead, by threads, so that not all need fit into memory."""
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        ahead = collections.deque()
        for item in items:
            ahead.append(pool.submit(function, item))
            if len(ahead) > 4 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def told(images, progress):
    for image in images:
        progress.add()
        yield image


def check(bad, folder):
    """Too many bad records of a split are an error, which says where all of them are named."""
    path = folder / f"{BAD}{PARTIAL}"
    write_bad_records(bad.values(), path)
    for of_split in bad.values():
        try:
            of_split.check()
        except ValueError as error:
            raise ValueError(f"{error}; all of them: {path}") from None


def publish(folder, names, metadata):
    """What has been written takes the place of an earlier preparation."""
    for old in (prepared.METADATA, BAD, *(f"{split}-*-of-*.tfrecord" for split in SPLITS)):
        remove(folder, old)
    for path in folder.glob(f"*{PARTIAL}"):
        path.rename(path.with_suffix(""))
    # The last one: where it is, the rest is whole.
    (folder / prepared.METADATA).write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")


def summary(metadata):
    def both(name):
        return " + ".join(f"{metadata[name][split]:,}" for split in SPLITS)

    return (
        f"training + validation: {both('examples')} images of {metadata['classes']:,} classes, {both('converted')} of them "
        f"converted to JPEG in RGB; {both('bad_records')} bad records"
    )
