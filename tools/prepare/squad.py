"""SQuAD 1.1 questions to windows of tokens, in TFRecord files."""

import gzip
import hashlib
import json
import random
import time
from pathlib import Path

from models import bert_data, prepared, squad
from models.bad_records import BadRecords
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


def read(path, windows, bad, what):
    """(question, its windows) of every usable question."""
    records = list(squad.read(path))
    found = []
    with Progress(what, len(records), "questions") as progress:
        for question in bad.drop(records):
            found.append((question, windows.of(question)))
            progress.add()
    return found


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


def prepare(args):
    started = time.monotonic()
    if args.shards < 1:
        raise ValueError(f"--shards {args.shards}: expected 1 or more")
    # Before anything is removed: it may be the one of the preparation that is replaced.
    vocabulary, words = args.vocabulary.read_bytes(), len(bert_data.read_vocabulary(args.vocabulary))
    prepared.check_replaceable(args.output, KIND)
    windows = squad.Windows(args.vocabulary, args.length, args.stride)
    train_bad, validation_bad = BadRecords(args.bad_share), BadRecords(args.bad_share)
    train = read(args.train, windows, train_bad, "training")
    validation = read(args.validation, windows, validation_bad, "validation")
    for bad in (train_bad, validation_bad):
        bad.check()
    if args.shards > len(train) or not validation:
        raise ValueError(
            f"{len(train)} questions for training, {len(validation)} for validation: expected at least --shards={args.shards} "
            "and 1"
        )
    args.output.mkdir(parents=True, exist_ok=True)
    for old in (prepared.METADATA, BAD, *(path.name for path in args.output.glob("train-*.tfrecord"))):
        (args.output / old).unlink(missing_ok=True)
    (args.output / VOCABULARY).write_bytes(vocabulary)
    write_validation(validation, args.output / VALIDATION)
    labelled = sum(window.end > 0 for _, of_question in train for window in of_question)
    metadata = {
        "kind": KIND,
        "length": args.length,
        "stride": args.stride,
        "seed": args.seed,
        "vocabulary_size": words,
        "vocabulary_sha256": hashlib.sha256(vocabulary).hexdigest(),
        "questions": {"train": len(train), "validation": len(validation)},
        "examples": {"train": count(train), "validation": count(validation)},
        "windows_with_answer": labelled,
        "bad_records": {"train": len(train_bad.found), "validation": len(validation_bad.found)},
        "files": {
            "train": write_training(train, args.shards, args.seed, args.output),
            "validation": [VALIDATION],
            "vocabulary": [VOCABULARY],
        },
    }
    train_bad.found += validation_bad.found
    train_bad.write(args.output / BAD)
    # The last one: where it is, the rest is whole.
    (args.output / prepared.METADATA).write_text(json.dumps(metadata, indent=2) + "\n")
    print(
        f"{args.output}: {len(train):,} questions for training in {count(train):,} windows ({labelled:,} with the answer), "
        f"{len(validation):,} for validation in {count(validation):,}; {len(train_bad.found)} bad records; "
        f"{time.monotonic() - started:.0f} s"
    )
