"""Criteo's click logs: lines of text to numbers, and numbers to rows of embedding tables. NumPy only.

A line holds a label, 13 integers and 26 hexadecimal categories between tabs; each of the features may be empty.

References:
    Criteo AI Lab, "Criteo 1TB Click Logs": https://ailab.criteo.com/download-criteo-1tb-click-logs-dataset.
"""

import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from models.bad_records import BadRecord

DENSE, CATEGORICAL = 13, 26
FIELDS = 1 + DENSE + CATEGORICAL
EMPTY = -1
# Distinct categories of each column of Criteo Terabyte, as facebook's dlrm and tf-models-official count them.
TERABYTE_CATEGORIES = (
    39_884_406, 39_043, 17_289, 7_420, 20_263, 3, 7_120, 1_543, 63, 38_532_951, 2_953_546, 403_346, 10, 2_208, 11_938, 155, 4,
    976, 14, 39_979_771, 25_641_295, 39_664_984, 585_935, 12_972, 108, 36,
)  # fmt: skip
# --max-ind-range of facebook's dlrm.
LARGEST_TABLE = 10_000_000
# All columns are hashed: a table of as many rows as a column has categories would mix up many of a few.
SMALLEST_TABLE = 1_000
TERABYTE_TABLES = tuple(min(max(categories, SMALLEST_TABLE), LARGEST_TABLE) for categories in TERABYTE_CATEGORIES)

_TAB, _NEWLINE, _MINUS = b"\t\n-"
_DIGITS_AT_ONCE = 8
_NO_DIGIT = 0xFF
# What each byte is worth as a hexadecimal digit.
_WORTH = bytes(int(chr(c), 16) if chr(c) in "0123456789abcdefABCDEF" else _NO_DIGIT for c in range(256))
_INTEGER, _HEXADECIMAL = re.compile(rb"-?[0-9]+"), re.compile(rb"[0-9a-fA-F]{1,8}")


class Examples(NamedTuple):
    """Lines as numbers.

    Attributes:
        labels: 0 or 1, float32 [examples].
        dense: log(1 + max(x, 0)), 0 for an empty x, float32 [examples, 13].
        categories: 0 to 2^32 - 1, `EMPTY` for an empty one, int64 [examples, 26].
    """

    labels: np.ndarray
    dense: np.ndarray
    categories: np.ndarray


def blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The whole lines of a file, about `size` bytes of them at a time; only the last one may lack its newline."""
    rest = b""
    while read := file.read(size):
        block, newline, tail = read.rpartition(b"\n")
        if newline:
            yield rest + block + newline
            rest = tail
        else:
            rest += read
    if rest:
        yield rest


def parse_line(line: bytes) -> tuple[int, list[int], list[int]] | str:
    """Label, max(x, 0) of the integers and the categories of one line; or why it cannot be used."""
    fields = line.split(b"\t")
    if len(fields) != FIELDS:
        return f"{len(fields)} fields, expected {FIELDS}"
    label, integers, categories = fields[0], fields[1 : 1 + DENSE], fields[1 + DENSE :]
    if label not in (b"0", b"1"):
        return f"the label {_shown(label)} is neither 0 nor 1"
    for number, field in enumerate(integers):
        if field and not _INTEGER.fullmatch(field):
            return f"the dense feature {number}, {_shown(field)}, is no integer"
    for number, field in enumerate(categories):
        if field and not _HEXADECIMAL.fullmatch(field):
            return f"the category {number}, {_shown(field)}, is no hexadecimal number of up to 8 digits"
    return int(label), [max(int(f or 0), 0) for f in integers], [int(f, 16) if f else EMPTY for f in categories]


def _shown(field: bytes) -> str:
    return repr(field[:40].decode(errors="backslashreplace"))


def parse(block: bytes, path: str = "", first_line: int = 1) -> tuple[Examples, list[BadRecord]]:
    """The examples of whole lines, and the lines that are none.

    Nearly all lines are read as arrays, all at once; what that cannot vouch for is read again by `parse_line`.

    Args:
        block: Lines; the last one may lack its newline.
        path: Names the bad records.
        first_line: The number of the first line, counted from 1.

    Returns:
        (examples, bad records), both in the order of the lines.
    """
    # To look for one byte is ten times as fast as to look for two.
    block = block.replace(b"\r\n", b"\n") if b"\r" in block else block
    if not block.endswith(b"\n"):
        block += b"\n" if block else b""
    examples, ends, is_sure = _parse_at_once(block)
    kept, bad = is_sure.copy(), []
    for line in np.flatnonzero(~is_sure).tolist():
        found = parse_line(block[ends[line - 1] + 1 if line else 0 : ends[line]])
        if isinstance(found, str):
            bad.append(BadRecord(f"{path}:{first_line + line}", found))
        else:
            kept[line] = True
            label, integers, categories = found
            examples.labels[line], examples.categories[line] = label, categories
            # An integer may be too large for any type of NumPy's.
            examples.dense[line] = np.log1p([float(integer) for integer in integers])
    return (examples if kept.all() else Examples(*(array[kept] for array in examples))), bad


def _parse_at_once(block: bytes) -> tuple[Examples, np.ndarray, np.ndarray]:
    """Examples of all lines; where each line ends; and which ones are surely good: the others' values mean nothing."""
    text = np.frombuffer(block, np.uint8)
    separators = np.flatnonzero((text == _TAB) | (text == _NEWLINE))
    last = np.flatnonzero(text[separators] == _NEWLINE)
    fields = np.diff(last, prepend=-1)
    whole = fields == FIELDS
    examples = Examples(
        np.zeros(len(last), np.float32), np.zeros((len(last), DENSE), np.float32), np.zeros((len(last), CATEGORICAL), np.int64)
    )
    is_sure = np.zeros(len(last), bool)
    starts = np.append(0, separators[:-1] + 1) if len(separators) else separators
    in_whole = slice(None) if whole.all() else np.repeat(whole, fields)
    starts, ends = (places[in_whole].reshape(-1, FIELDS).T for places in (starts, separators))
    *values, sure = _numbers(block, text, np.ascontiguousarray(starts), np.ascontiguousarray(ends - starts))
    for array, value in zip(examples, values, strict=True):
        array[whole] = value
    is_sure[whole] = sure
    return examples, separators[last], is_sure


def _numbers(block: bytes, text: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple:
    """Labels, transformed integers, categories and whether all are surely right, of fields [40, lines]."""
    worth = np.frombuffer(block.translate(_WORTH) + bytes(_DIGITS_AT_ONCE), np.uint8)
    labels = worth[starts[0]]
    sure = (labels <= 1) & (lengths[0] == 1)
    dense = slice(1, 1 + DENSE)
    negative = (text[starts[dense]] == _MINUS) & (lengths[dense] > 0)
    integers, is_integer = _integers(worth, starts[dense] + negative, lengths[dense] - negative)
    sure &= (is_integer & ~(negative & (lengths[dense] == 1))).all(axis=0)
    values = np.log1p(np.where(negative, 0, integers).astype(np.float64))
    codes, is_code = _numbers_of(worth, starts[1 + DENSE :], lengths[1 + DENSE :], 16)
    sure &= is_code.all(axis=0)
    categories = np.where(lengths[1 + DENSE :] == 0, EMPTY, codes.astype(np.int64))
    return labels, values.T, categories.T, sure


def _integers(worth: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `_numbers_of` in base 10, of up to 16 digits."""
    low_digits = np.minimum(lengths, _DIGITS_AT_ONCE)
    values, is_number = _numbers_of(worth, starts + lengths - low_digits, low_digits, 10)
    long = np.nonzero(lengths > _DIGITS_AT_ONCE)
    if len(long[0]):
        high, is_high = _numbers_of(worth, starts[long], lengths[long] - _DIGITS_AT_ONCE, 10)
        values[long] += high * np.uint64(10**_DIGITS_AT_ONCE)
        is_number[long] &= is_high
    return values, is_number


def _numbers_of(worth: np.ndarray, starts: np.ndarray, lengths: np.ndarray, base: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of up to 8 digits, uint64, and whether they are some; no digits are the number 0.

    The 8 digits of a number are the 8 bytes of one integer, whose neighbours are joined: digits to pairs, to fours, to eight.

    Args:
        worth: What each byte of the text is worth, and 8 bytes more.
        starts: Where each number starts.
        lengths: How many bytes it has.
        base: 10 or 16.
    """
    at_every_byte = np.ndarray(len(worth) - _DIGITS_AT_ONCE + 1, "<u8", worth, strides=(1,))
    fits = lengths <= _DIGITS_AT_ONCE
    digits = at_every_byte[starts]
    # The first digit is the lowest byte: shifted up, what follows the number falls out, and zeros stand before it.
    digits <<= ((_DIGITS_AT_ONCE - np.clip(lengths, 1, _DIGITS_AT_ONCE)) * 8).astype(np.uint64)
    digits *= lengths > 0
    carries = digits + np.uint64((16 - base) * 0x0101010101010101)
    is_number = fits & (((digits | carries) & np.uint64(0xF0F0F0F0F0F0F0F0)) == 0)
    for power, bits, mask in ((1, 8, 0x00FF00FF00FF00FF), (2, 16, 0x0000FFFF0000FFFF), (4, 32, 0x00000000FFFFFFFF)):
        digits = (digits * np.uint64(base**power) + (digits >> np.uint64(bits))) & np.uint64(mask)
    return digits, is_number


def every_table(sizes: int | Sequence[int]) -> tuple[int, ...]:
    """The rows of each of the 26 tables, of which a single number stands for all.

    Raises:
        ValueError: If they are not 26, or one has less than 2 rows: the first is for an empty category.
    """
    every = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,) * CATEGORICAL
    unusable = [size for size in every if type(size) is not int or not 2 <= size < 2**31]
    if len(every) != CATEGORICAL or unusable:
        wrong = f"{unusable[0]!r} among the table sizes" if unusable else f"{len(every)} table sizes"
        raise ValueError(f"{wrong}: expected {CATEGORICAL} whole numbers, 2 or more and below 2^31, or one for all tables")
    return every


def table_rows(categories: np.ndarray, table_sizes: Sequence[int]) -> np.ndarray:
    """Rows of the tables: 0 for an empty category, the others hashed to 1 to size - 1.

    The hash is the finalizer of SplitMix64, a bijection of 64 bits, applied to (column + 1) * 2^32 + category; its upper 32
    bits h give the row 1 + floor(h * (size - 1) / 2^32). The column is part of it, so that two categories that share a row in
    one table do not share one in each table of that size.

    Args:
        categories: As `Examples` has them [examples, 26].
        table_sizes: Rows of each of the 26 tables.

    Returns:
        int32, same shape.
    """
    columns = np.arange(1, CATEGORICAL + 1, dtype=np.uint64) << np.uint64(32)
    hashed = categories.astype(np.uint64) & np.uint64(0xFFFFFFFF)
    hashed |= columns
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        hashed ^= hashed >> np.uint64(shift)
        hashed *= np.uint64(factor)
    hashed ^= hashed >> np.uint64(31)
    hashed >>= np.uint64(32)
    hashed *= np.asarray(table_sizes, np.uint64) - np.uint64(1)
    hashed >>= np.uint64(32)
    return np.where(categories == EMPTY, 0, hashed + np.uint64(1)).astype(np.int32)


def packed(examples: Examples, table_sizes: Sequence[int]) -> np.ndarray:
    """As they are stored: 40 numbers of 4 bytes an example, little-endian.

    Returns:
        int32 [examples, 40]: the bits of the float32 label and of the 13 float32 dense features, then 26 rows of tables.
    """
    floats = np.concatenate([examples.labels[:, None], examples.dense], axis=1, dtype="<f4")
    return np.concatenate([floats.view("<i4"), table_rows(examples.categories, table_sizes)], axis=1, dtype="<i4")
