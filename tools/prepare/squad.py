"""SQuAD 1.1 questions to windows of tokens, in TFRecord files."""

import gzip
import hashlib
import json
import random
import time
from pathlib import Path

from models import bert_data, prepared, squad
from models.bad_records import BadRecords, write_bad_records
from tools.progress import Progress

KIND = "squad"
VALIDATION, VOCABULARY, BAD = "validation.json.gz", "vocab.txt", "bad_records.txt"


def add_arguments(parser):
    parser.add_argument("--train", type=Path, required=True, metavar="FILE", help="questions for training, .json or .json.gz")
    parser.add_argument("--validation", type=Path, required=True, metavar="FILE", help="questions for validation, the same")
    parser.add_argument("--vocabulary", type=Path, required=True, metavar="FILE", help="a WordPiece a line, uncased")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a preparation found there is replaced")
    parser.add_argument("--length", type=int, default=384, help="tokens of a window (default: 384)")
    parser.add_argument("--stride", type=int, default=128, help="tokens from one window to the next (default: 128)")
    parser.add_argument("--shards", type=int, default=8, help="files for training (default: 8)")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which questions are dealt to the files")
    parser.add_argument("--bad-share", type=float, default=0.001, help="of the records, accepted as unusable (default: 0.001)")


def read(args, windows):
    """(question, its windows) of every usable question of either split, and the bad records of both.

    Raises:
        ValueError: If a split has more bad records than are accepted.
    """
    found, bad = {}, {}
    for split, path in (("train", args.train), ("validation", args.validation)):
        records = list(squad.read(path))
        found[split], bad[split] = [], BadRecords(args.bad_share)
        with Progress(split, len(records), "questions") as progress:
            for question in bad[split].drop(records):
                found[split].append((question, windows.of(question)))
                progress.add()
    for of_split in bad.values():
        of_split.check()
    return found, bad


def count(questions):
    return sum(len(windows) for _, windows in questions)


def write_validation(questions, path):
    """The questions in the official layout, each with its paragraph. Without the bad ones: they are what is evaluated."""
    paragraphs = [
        {
            "context": question.context,
            "qas": [
                {
                    "id": question.id,
                    "question": question.question,
                    "answers": [{"text": text, "answer_start": start} for text, start in question.answers],
                }
            ],
        }
        for question, _ in questions
    ]
    # Without the time of writing, so that the same questions are the same bytes.
    path.write_bytes(gzip.compress(json.dumps({"version": "1.1", "data": [{"paragraphs": paragraphs}]}).encode(), mtime=0))


def write_training(questions, shards, seed, folder):
    """Deals the questions to files in an order of their own, and returns the files' names."""
    from models import squad_records

    random.Random(seed).shuffle(questions)
    names = [f"train-{shard:05d}-of-{shards:05d}.tfrecord" for shard in range(shards)]
    for shard, name in enumerate(names):
        squad_records.write((window for _, windows in questions[shard::shards] for window in windows), folder / name)
    return names


def replace(folder):
    """Makes the folder, without what an earlier preparation has left there."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in (prepared.METADATA, BAD, *(path.name for path in folder.glob("train-*.tfrecord"))):
        (folder / old).unlink(missing_ok=True)


def prepare(args):
    started = time.monotonic()
    if args.shards < 1:
        raise ValueError(f"--shards {args.shards}: expected 1 or more")
    # Before anything is removed: it may be the one of the preparation that is replaced.
    vocabulary, words = args.vocabulary.read_bytes(), len(bert_data.read_vocabulary(args.vocabulary))
    windows = squad.Windows(args.vocabulary, args.length, args.stride)
    prepared.check_replaceable(args.output, KIND)
    questions, bad = read(args, windows)
    train, validation = questions["train"], questions["validation"]
    if args.shards > len(train) or not validation:
        raise ValueError(
            f"{len(train)} questions for training, {len(validation)} for validation: expected at least --shards={args.shards} "
            "and 1"
        )
    replace(args.output)
    (args.output / VOCABULARY).write_bytes(vocabulary)
    write_bad_records(bad.values(), args.output / BAD)
    write_validation(validation, args.output / VALIDATION)
    metadata = {
        "kind": KIND,
        "length": args.length,
        "stride": args.stride,
        "seed": args.seed,
        "vocabulary_size": words,
        "vocabulary_sha256": hashlib.sha256(vocabulary).hexdigest(),
        "questions": {"train": len(train), "validation": len(validation)},
        "examples": {"train": count(train), "validation": count(validation)},
        "windows_with_answer": sum(window.end > 0 for _, of_question in train for window in of_question),
        "bad_records": {split: len(of_split.found) for split, of_split in bad.items()},
        "files": {
            "train": write_training(train, args.shards, args.seed, args.output),
            "validation": [VALIDATION],
            "vocabulary": [VOCABULARY],
        },
    }
    # The last one: where it is, the rest is whole.
    (args.output / prepared.METADATA).write_text(json.dumps(metadata, indent=2) + "\n")
    print(f"{args.output}: {summary(metadata)}; {time.monotonic() - started:.0f} s")


def summary(metadata):
    asked, examples, bad = metadata["questions"], metadata["examples"], metadata["bad_records"]
    return (
        f"{asked['train']:,} questions for training in {examples['train']:,} windows ({metadata['windows_with_answer']:,} with "
        f"the answer), {asked['validation']:,} for validation in {examples['validation']:,}; {sum(bad.values())} bad records"
    )
