"""Makes BERT's pretraining examples of text: masked pairs of sentences in TFRecord files."""

import concurrent.futures
import hashlib
import json
import multiprocessing
import os
import random
import time
from pathlib import Path

from models import bert_data, prepared
from models.bad_records import BadRecords, write_bad_records
from tools.progress import Progress

KIND = "bert-pretraining"
VOCABULARY = "vocab.txt"
BAD_RECORDS = "bad_records.txt"
# The metadata first: without it nobody takes the folder for a whole preparation.
OWN_FILES = (f"{prepared.METADATA}*", VOCABULARY, "train-*-of-*.tfrecord*", "validation-*-of-*.tfrecord*")
# Its examples are few, and more files would need more documents.
VALIDATION_SHARDS = 1


def add_arguments(parser):
    text = "plain or .gz, UTF-8: a paragraph a line, a blank line after each document"
    parser.add_argument("--text", nargs="+", type=Path, required=True, metavar="FILE", help=f"training text, {text}")
    parser.add_argument("--validation-text", nargs="+", type=Path, required=True, metavar="FILE", help="the same")
    parser.add_argument("--vocabulary", type=Path, required=True, metavar="FILE", help="uncased WordPieces, one a line")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="an earlier preparation there is replaced")
    parser.add_argument("--length", type=int, required=True, metavar="TOKENS", help="of a sequence")
    predictions = "masked ones of a sequence at most; default: 20 for a length of 128, 76 for 512, else 15 %%"
    parser.add_argument("--predictions", type=int, metavar="TOKENS", help=predictions)
    copies = "how often to go through the training text, with other masks each time; default: %(default)s"
    parser.add_argument("--copies", type=int, default=1, metavar="N", help=copies)
    parser.add_argument("--shards", type=int, default=16, metavar="N", help="training files; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: %(default)s")
    processes = "how many work at once, which changes nothing in what they make; default: one a core, %(default)s"
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N", help=processes)
    bad_share = "of the lines of either text that may be unusable; default: %(default)s"
    parser.add_argument("--bad-share", type=float, default=0.001, metavar="SHARE", help=bad_share)


def prepare(args):
    started = time.monotonic()
    settings = read_settings(args)
    vocabulary, words = args.vocabulary.read_bytes(), len(bert_data.read_vocabulary(args.vocabulary))
    prepared.check_replaceable(args.output, KIND)
    texts, bad_records = read_texts(args)
    shards = [
        *deal(texts["train"], "train", args.shards, settings, args.output),
        *deal(texts["validation"], "validation", VALIDATION_SHARDS, settings._replace(copies=1), args.output),
    ]
    clear(args.output)
    (args.output / VOCABULARY).write_bytes(vocabulary)
    written = write(shards, args.processes)
    metadata = {
        "kind": KIND,
        **settings._asdict(),
        "vocabulary_size": words,
        "vocabulary_sha256": hashlib.sha256(vocabulary).hexdigest(),
        "bad_records": bad_records,
        **summary(shards, written),
    }
    partial = args.output / f"{prepared.METADATA}.partial"
    partial.write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")
    partial.replace(args.output / prepared.METADATA)
    print(in_one_line(metadata, time.monotonic() - started))


def read_settings(args):
    """What examples are to be like, after a check of all arguments that are no files."""
    predictions = bert_data.default_predictions(args.length) if args.predictions is None else args.predictions
    settings = bert_data.Settings(args.length, predictions, args.copies, args.seed)
    bert_data.check(settings)
    for name in ("shards", "processes"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} {getattr(args, name)}: expected 1 or more")
    return settings


def read_texts(args):
    """The documents of both splits, and how many lines of each cannot be used; too many of either are an error."""
    texts, bad = {}, {}
    for split, paths in {"train": args.text, "validation": args.validation_text}.items():
        texts[split], bad[split] = [], BadRecords(args.bad_share)
        with Progress(f"reading the {split} text", None, "documents") as progress:
            for path in paths:
                for document in bert_data.documents(bad[split].drop(bert_data.read_lines(path))):
                    texts[split].append(document)
                    progress.add()
    args.output.mkdir(parents=True, exist_ok=True)
    # Before the check, so that all of them can be seen.
    write_bad_records(bad.values(), args.output / BAD_RECORDS)
    for of_split in bad.values():
        of_split.check()
    return texts, {split: len(of_split.found) for split, of_split in bad.items()}


def clear(output):
    """Removes what an earlier preparation left, and nothing else."""
    for pattern in OWN_FILES:
        for path in output.glob(pattern):
            path.unlink()


def deal(documents, split, count, settings, output):
    """Deals the documents of a split to its shards, in an order that depends on the seed and the split."""
    if len(documents) < 2 * count:
        raise ValueError(
            f"the {split} text has {len(documents)} documents for {count} shards, each of which needs at least 2 for a random "
            f"next sentence: use fewer --shards, or text with more documents (a blank line ends one)"
        )
    order = list(documents)
    random.Random(f"{settings.seed}/{split}").shuffle(order)
    paths = [output / f"{split}-{index:05}-of-{count:05}.tfrecord" for index in range(count)]
    vocabulary = str(output / VOCABULARY)
    return [
        bert_data.Shard(split, index, str(path), order[index::count], settings, vocabulary) for index, path in enumerate(paths)
    ]


def leave_gpus_alone():
    """For every process: TensorFlow would take all memory of every GPU for itself."""
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")


def write(shards, processes):
    """Writes all shards; what each holds, in their order. When one fails, those that have not begun are not written."""
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(min(processes, len(shards)), context, leave_gpus_alone)
    try:
        futures = {pool.submit(bert_data.write, shard): shard for shard in shards}
        with Progress("writing", sum(len(shard.documents) for shard in shards), "documents") as progress:
            for future in concurrent.futures.as_completed(futures):
                future.result()
                progress.add(len(futures[future].documents))
        return [future.result() for future in futures]
    except concurrent.futures.BrokenExecutor as error:
        raise ValueError("a process died, most likely as memory ran out: use fewer --processes or more --shards") from error
    finally:
        pool.shutdown(cancel_futures=True)


def summary(shards, written):
    """Counts of each split, its files, and the entropies of single tokens."""
    splits = {"train": [], "validation": []}
    for shard, found in zip(shards, written, strict=True):
        splits[shard.split].append((shard, found))
    counts = {split: sum(found.token_counts for _, found in pairs) for split, pairs in splits.items()}

    def totals(name):
        return {split: sum(int(getattr(found, name)) for _, found in pairs) for split, pairs in splits.items()}

    return {
        "files": {
            **{split: [Path(shard.path).name for shard, _ in pairs] for split, pairs in splits.items()},
            "vocabulary": [VOCABULARY],
        },
        "examples": totals("examples"),
        "documents": {split: sum(len(shard.documents) for shard, _ in pairs) for split, pairs in splits.items()},
        # Of these.
        "short_documents": totals("short_documents"),
        "tokens": {split: int(of_split.sum()) for split, of_split in counts.items()},
        "masked_words": totals("masked"),
        "random_next": totals("random_next"),
        "unigram_entropy_nats": bert_data.cross_entropy(counts["validation"], counts["validation"]),
        "unigram_cross_entropy_nats": bert_data.cross_entropy(counts["validation"], counts["train"] + 1),
    }


def in_one_line(metadata, seconds):
    def both(name):
        train, validation = metadata[name]["train"], metadata[name]["validation"]
        return f"{train:,} + {validation:,} {name.replace('_', ' ')}"

    return (
        f"training + validation: {both('examples')} of {metadata['length']} tokens, from {both('documents')} (of them "
        f"{both('short_documents')}) with {both('tokens')}, {both('bad_records')}; entropy of the validation tokens "
        f"{metadata['unigram_entropy_nats']:.3f} nats, {metadata['unigram_cross_entropy_nats']:.3f} under the training text's "
        f"shares; {seconds:.0f} s"
    )
