"""Click logs in Criteo's layout to rows of embedding tables, in TFRecord files of blocks of examples."""

import collections
import concurrent.futures
import contextlib
import gzip
import json
import multiprocessing
import os
import time
import zlib
from pathlib import Path

import numpy as np

from models import criteo, prepared
from models.bad_records import BadRecords, write_bad_records
from tools.progress import Progress

KIND = "criteo"
BAD, PARTIAL = "bad_records.txt", ".partial"
# The metadata first: without it nobody takes the folder for a whole preparation.
OWN_FILES = (prepared.METADATA, BAD, "train-*-of-*.tfrecord", "validation-*-of-*.tfrecord")
# What is computed of so many bytes stays in a core's cache.
BYTES_OF_A_BLOCK = 2**19
# Lines of a split after which the share of bad ones is checked along the way: a wrong file shall not be read for hours.
CHECKED_FROM = 1_000_000
# Of each process.
BLOCKS_WAITING = 4


def add_arguments(parser):
    lines = "a label, 13 integers and 26 hexadecimal categories between tabs; .tsv or .tsv.gz"
    parser.add_argument("--train", nargs="+", type=Path, required=True, metavar="FILE", help=lines)
    parser.add_argument("--validation", nargs="+", type=Path, required=True, metavar="FILE", help="the same")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a preparation found there is replaced")
    sizes = "rows of all embedding tables, or of each of the 26; default: Criteo Terabyte's categories, 1,000 to 10,000,000"
    parser.add_argument("--table-sizes", nargs="+", type=int, default=criteo.TERABYTE_TABLES, metavar="N", help=sizes)
    ceiling = "ceiling.json of tools.prepare_data clicks, where the lines for validation are its"
    parser.add_argument("--ceiling", type=Path, metavar="FILE", help=ceiling)
    parser.add_argument("--shards", type=int, default=16, metavar="N", help="files for training; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the dealing to these files; default: %(default)s")
    share = "of the lines of either split that may be unusable; default: %(default)s"
    parser.add_argument("--bad-share", type=float, default=0.001, metavar="X", help=share)
    processes = "how many read lines at once, which changes nothing in what is written; default: one a core, %(default)s"
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N", help=processes)


def prepare(args):
    started = time.monotonic()
    table_sizes = check(args)
    ceiling = None if args.ceiling is None else read_ceiling(args.ceiling)
    prepared.check_replaceable(args.output, KIND)
    args.output.mkdir(parents=True, exist_ok=True)
    bad = {split: BadRecords(args.bad_share) for split in ("train", "validation")}
    try:
        splits = {
            "train": write_split("train", args.train, args.shards, args.seed, table_sizes, bad["train"], args),
            # One file in the order of its lines.
            "validation": write_split("validation", args.validation, 1, None, table_sizes, bad["validation"], args),
        }
        if ceiling is not None:
            check_ceiling(ceiling, splits["validation"], args.ceiling)
        replace(args.output)
    finally:
        for path in args.output.glob(f"*{PARTIAL}"):
            path.unlink()
    write_bad_records(bad.values(), args.output / BAD)
    metadata = {
        "kind": KIND,
        "table_sizes": list(table_sizes),
        "seed": args.seed,
        "examples": {split: found["examples"] for split, found in splits.items()},
        "click_rate": {split: found["clicks"] / found["examples"] for split, found in splits.items()},
        "bad_records": {split: len(of_split.found) for split, of_split in bad.items()},
        "ceiling": ceiling,
        "files": {split: found["files"] for split, found in splits.items()},
    }
    # The last one: where it is, the rest is whole.
    (args.output / prepared.METADATA).write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
    print(summary(args.output, metadata, time.monotonic() - started))


def check(args):
    """The rows of every table, after a check of all arguments."""
    for name, least in (("shards", 1), ("processes", 1), ("seed", 0)):
        if getattr(args, name) < least:
            raise ValueError(f"--{name} {getattr(args, name)}: expected {least} or more")
    for path in (*args.train, *args.validation):
        if not path.is_file():
            raise ValueError(f"{path} is no file")
    return criteo.every_table(args.table_sizes[0] if len(args.table_sizes) == 1 else list(args.table_sizes))


def read_ceiling(path):
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {name: found[name] for name in ("expected_auc", "expected_loss", "empirical_auc", "examples", "clicks")}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--ceiling {path} is not what tools.prepare_data clicks writes ({error!r})") from error


def check_ceiling(ceiling, validation, path):
    """Raises a ValueError where the ceiling is of other examples than those for validation."""
    differing = [f"{validation[name]} {name}, expected {ceiling[name]}" for name in ("examples", "clicks")
                 if validation[name] != ceiling[name]]  # fmt: skip
    if differing:
        raise ValueError(f"--ceiling {path} is not of these lines for validation, which hold {'; '.join(differing)}")


def write_split(split, paths, shards, seed, table_sizes, bad, args):
    """Writes a split to files whose names end in .partial.

    Args:
        split: Its name.
        paths: Of its lines.
        shards: Files, to which examples are dealt in a random order, as many to each.
        seed: Of that order; None: the examples stay in theirs.
        table_sizes: Rows of each table.
        bad: Collects the bad records.
        args: Of the command.

    Returns:
        "examples", "clicks" and the names of the "files", without .partial.

    Raises:
        ValueError: If there are more bad records than are accepted, or fewer examples than files.
    """
    from models import criteo_pipeline

    files = [f"{split}-{shard:05d}-of-{shards:05d}.tfrecord" for shard in range(shards)]
    rng = None if seed is None else np.random.default_rng(seed)
    examples = clicks = 0
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(criteo_pipeline.BlockWriter(args.output / f"{name}{PARTIAL}")) for name in files]
        progress = stack.enter_context(Progress(split, sum(path.stat().st_size for path in paths) >> 20, "MB"))
        blocks = read(paths, table_sizes, progress)
        for packed, found_bad in stack.enter_context(contextlib.closing(parsed(blocks, args.processes))):
            bad.records += len(packed) + len(found_bad)
            bad.found += found_bad
            if bad.records >= CHECKED_FROM:
                bad.check()
            packed = packed if rng is None else packed[rng.permutation(len(packed))]
            for shard, writer in enumerate(writers):
                writer.add(packed[(shard - examples) % shards :: shards])
            examples += len(packed)
            clicks += int(packed[:, 0].view(np.float32).sum(dtype=np.float64))
    bad.check()
    if examples < shards:
        raise ValueError(f"{examples} examples for {split}: expected {shards} or more, one for each file")
    return {"examples": examples, "clicks": clicks, "files": files}


def read(paths, table_sizes, progress):
    """Blocks of the lines of some files, as `parse` takes them."""
    done = 0
    for path in paths:
        line, before = 1, done
        with open(path, "rb") as raw, gzip.open(raw) if path.suffix == ".gz" else raw as file:
            try:
                for block in criteo.blocks(file, BYTES_OF_A_BLOCK):
                    yield block, str(path), line, table_sizes
                    line += block.count(b"\n")
                    progress.add(((before + raw.tell()) >> 20) - (done >> 20), lines=f"{line - 1:,}")
                    done = before + raw.tell()
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ValueError(f"{path} is no whole gzip file: {error}") from error


def parse(work):
    """The examples of a block of lines as they are stored, and its bad records."""
    block, path, line, table_sizes = work
    examples, bad = criteo.parse(block, path, line)
    return criteo.packed(examples, table_sizes), bad


def parsed(works, processes):
    """What `parse` gives of each, in their order."""
    if processes == 1:
        yield from map(parse, works)
        return
    pool = concurrent.futures.ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    waiting = collections.deque()
    try:
        for work in works:
            waiting.append(pool.submit(parse, work))
            if len(waiting) > BLOCKS_WAITING * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except concurrent.futures.BrokenExecutor as error:
        raise ValueError("a process died, most likely as memory ran out: use fewer --processes") from error
    finally:
        pool.shutdown(cancel_futures=True)


def replace(folder):
    """Puts the new files in the place of what an earlier preparation has left."""
    for pattern in OWN_FILES:
        for old in folder.glob(pattern):
            old.unlink()
    for path in folder.glob(f"*{PARTIAL}"):
        path.rename(path.with_name(path.name.removesuffix(PARTIAL)))


def summary(folder, metadata, seconds):
    def both(name, form):
        return " and ".join(format(metadata[name][split], form) for split in ("train", "validation"))

    ceiling = metadata["ceiling"]
    best = "" if ceiling is None else f"; no model's AUC is above {ceiling['expected_auc']:.5f} on average"
    return (
        f"{folder}: {both('examples', ',')} examples for training and for validation, of which {both('click_rate', '.2%')} are "
        f"clicks; {sum(metadata['bad_records'].values())} bad records{best}; {seconds:.0f} s"
    )
