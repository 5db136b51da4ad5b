"""Criteo's lines as numbers, against plain Python; what is no line is named; rows of tables are those of the hash."""

import io
import math
import random
import re

import numpy as np
import pytest

from models import criteo

pytestmark = pytest.mark.one_keras

INTEGERS = ["", "0", "1", "7", "-1", "-12", "99999999", "100000000", "9999999999999999", "00012", "-0", "123456"]
CODES = ["", "0", "f", "00000000", "ffffffff", "FFFFFFFF", "68fd1e64", "AbCdEf09", "80000000", "1a2b"]


def line(label="0", dense=(), categories=()):
    """Features that are not given are empty."""
    dense = [*dense, *[""] * (criteo.DENSE - len(dense))]
    return "\t".join([label, *dense, *categories, *[""] * (criteo.CATEGORICAL - len(categories))])


def random_line(rng):
    dense = [rng.choice([*INTEGERS, str(rng.randrange(10**6))]) for _ in range(criteo.DENSE)]
    categories = [rng.choice([*CODES, f"{rng.randrange(2**32):08x}"]) for _ in range(criteo.CATEGORICAL)]
    return line(rng.choice("01"), dense, categories)


def expected(text):
    """(label, dense, categories) by nothing but Python's own parsers; None where the line is bad."""
    fields = text.split("\t")
    label, dense, codes = fields[:1], fields[1:14], fields[14:]
    good = len(fields) == 40 and label[0] in ("0", "1")
    good = good and all(re.fullmatch("(-?[0-9]+)?", field, re.ASCII) for field in dense)
    if not good or not all(re.fullmatch("[0-9a-fA-F]{0,8}", field) for field in codes):
        return None
    logs = [math.log1p(max(int(field), 0)) if field else 0.0 for field in dense]
    return float(label[0]), logs, [int(code, 16) if code else -1 for code in codes]


def assert_parsed(lines, end="\n"):
    examples, bad = criteo.parse((end.join(lines) + end).encode(), "f", 5)
    found = [expected(text) for text in lines]
    good = [values for values in found if values is not None]
    assert examples.labels.tolist() == [label for label, _, _ in good]
    np.testing.assert_allclose(examples.dense, np.reshape([dense for _, dense, _ in good], (-1, 13)), rtol=1e-7)
    np.testing.assert_array_equal(examples.categories, np.reshape([codes for _, _, codes in good], (-1, 26)))
    assert [array.dtype for array in examples] == [np.float32, np.float32, np.int64]
    assert [record.place for record in bad] == [f"f:{5 + i}" for i, values in enumerate(found) if values is None]


def test_lines_are_what_python_reads():
    rng = random.Random(1)
    assert_parsed([random_line(rng) for _ in range(300)])


def test_any_byte_anywhere_is_good_or_bad_as_in_python():
    """Each byte in the label, in an integer and at each place of a category."""
    rng = random.Random(2)
    lines = []
    for byte in set(range(1, 128)) - {9, 10, 13}:
        c = chr(byte)
        lines += [line(c), line("1", [c]), line("1", ["1" + c]), line("0", ["", c + "2"]), line("0", [f"-{c}"])]
        places = ["68fd1e64"[:i] + c + "68fd1e64"[i + 1 :] for i in range(8)]
        lines += [line("0", [], ["", *places]), *(line("0", [], [place]) for place in places)]
    rng.shuffle(lines)
    good = [text for text in lines if expected(text)]
    assert len(good) > 200 and len(lines) - len(good) > 1000
    assert_parsed(lines)


@pytest.mark.parametrize("byte", [b"\x00", b"\x80", b"\xb1", b"\xff"])
def test_what_is_no_text_is_bad(byte):
    for text in (line("?"), line("1", ["?"]), line("1", ["1?"]), line("1", [], ["68fd1e6?"])):
        examples, bad = criteo.parse(text.encode().replace(b"?", byte))
        assert len(bad) == 1 and len(examples.labels) == 0


def test_mutilated_lines_are_good_or_bad_as_in_python():
    rng = random.Random(3)
    lines = []
    for _ in range(600):
        text = random_line(rng)
        at = rng.randrange(len(text))
        lines.append(rng.choice([text, text[:at] + text[at + 1 :], text[:at], text[:at] + rng.choice("\t-g 0") + text[at:]]))
    assert 100 < sum(expected(text) is None for text in lines) < 500
    assert_parsed(lines)


@pytest.mark.parametrize("digits", [*range(1, 25), 300])
@pytest.mark.parametrize("sign", ["", "-"])
def test_integers_of_any_length(digits, sign):
    assert_parsed([line("1", [sign + "9876543210"[: digits % 10] + "1234567890" * (digits // 10), "4"]), line("0", ["5"])])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "1 fields, expected 40"),
        (line() + "\t", "41 fields, expected 40"),
        (line("2"), "the label '2' is neither 0 nor 1"),
        (line(""), "the label '' is neither 0 nor 1"),
        (line("01"), "the label '01' is neither"),
        (line("0", ["", "1.5"]), "the dense feature 1, '1.5', is no integer"),
        (line("0", ["-"]), "the dense feature 0, '-', is no integer"),
        (line("0", ["+1"]), "'+1', is no integer"),
        (line("0", ["--1"]), "'--1', is no integer"),
        (line("0", ["1f"]), "'1f', is no integer"),
        (line("0", [], ["", "68fd1e6g"]), "the category 1, '68fd1e6g', is no hexadecimal number of up to 8 digits"),
        (line("0", [], ["68fd1e640"]), "the category 0, '68fd1e640', is no hexadecimal number of up to 8 digits"),
        (line("0", [], [" 1"]), "the category 0, ' 1', is no"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(text, reason):
    lines = [line("1", ["3"], ["a"]), text, line("0", ["4"], ["b"])]
    examples, (bad,) = criteo.parse("\n".join(lines).encode(), "day_0", 11)
    assert bad.place == "day_0:12" and reason in bad.reason
    assert examples.labels.tolist() == [1, 0] and examples.categories[:, 0].tolist() == [10, 11]


def test_lines_may_end_as_in_windows_or_not_at_all():
    rng = random.Random(4)
    lines = [random_line(rng) for _ in range(5)]
    whole, _ = criteo.parse("\n".join(lines).encode() + b"\n")
    for text in ("\r\n".join(lines) + "\r\n", "\n".join(lines)):
        examples, bad = criteo.parse(text.encode())
        assert not bad
        for found, wanted in zip(examples, whole, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_nothing_is_no_examples():
    examples, bad = criteo.parse(b"")
    assert not bad and [array.shape for array in examples] == [(0,), (0, 13), (0, 26)]
    assert criteo.packed(examples, criteo.TERABYTE_TABLES).shape == (0, 40)


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("size", [1, 3, 10, 24, 25, 1000])
def test_blocks_hold_whole_lines(size, end):
    lines = [b"a", b"bcd", b"", b"efghijkl", b"m" * 9]
    text = b"\n".join(lines) + end
    found = list(criteo.blocks(io.BytesIO(text), size))
    assert b"".join(found) == text
    assert all(block.endswith(b"\n") for block in found[:-1]) and all(found)
    assert all(len(block) <= size + 10 for block in found)


def splitmix64(number):
    """The finalizer, as its authors wrote it."""
    mask = 2**64 - 1
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & mask
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & mask
    return number ^ (number >> 31)


def test_rows_are_those_of_the_hash():
    rng = np.random.default_rng(0)
    categories = rng.integers(-1, 2**32, (50, 26))
    categories[:3] = [[-1], [0], [2**32 - 1]]
    sizes = tuple(int(size) for size in rng.integers(2, 10_000_000, 26))
    found = criteo.table_rows(categories, sizes)
    assert found.dtype == np.int32
    for example in range(50):
        for column, size in enumerate(sizes):
            category = int(categories[example, column])
            upper = splitmix64((column + 1) * 2**32 + category) >> 32
            assert found[example, column] == (0 if category == -1 else 1 + upper * (size - 1) // 2**32)


def test_rows_of_a_table_are_equally_likely_and_all_but_the_first_are_used():
    categories = np.tile(np.arange(20_000)[:, None], 26)
    rows = criteo.table_rows(categories, [11] * 26)
    assert rows.min() == 1 and rows.max() == 10
    for column in range(26):
        counts = np.bincount(rows[:, column], minlength=11)[1:]
        # Chi-square with 9 degrees of freedom: above 40 once in 10^5.
        assert ((counts - 2000) ** 2 / 2000).sum() < 40
    # Columns share no collisions: two categories on the same row of one table are on the same row of another once in 10.
    assert np.mean(rows[:, 0] == rows[:, 1]) == pytest.approx(0.1, abs=0.02)


def test_a_row_does_not_change_from_version_to_version():
    """What was prepared and trained stays right only as long as the hash is the same."""
    rows = criteo.table_rows(np.full((1, 26), 0x68FD1E64), criteo.TERABYTE_TABLES)
    upper = [splitmix64(column * 2**32 + 0x68FD1E64) >> 32 for column in (1, 2)]
    assert rows[0, :2].tolist() == [1 + upper[0] * 9_999_999 // 2**32, 1 + upper[1] * 39_042 // 2**32]
    assert rows[0, :2].tolist() == [7_666_061, 14_526]


def test_packed_examples_are_forty_numbers():
    (examples, _) = criteo.parse((line("1", ["3", "-2"], ["ff", ""]) + "\n").encode())
    found = criteo.packed(examples, [100] * 26)
    assert found.shape == (1, 40) and found.dtype == np.dtype("<i4")
    floats = np.frombuffer(found.tobytes()[: 14 * 4], "<f4")
    np.testing.assert_allclose(floats[:3], [1.0, math.log(4), 0.0], rtol=1e-7)
    np.testing.assert_array_equal(found[:, 14:], criteo.table_rows(examples.categories, [100] * 26))


def test_one_number_stands_for_all_tables():
    assert criteo.every_table(7) == (7,) * 26
    assert criteo.every_table([2, *[3] * 25]) == (2, *[3] * 25)
    assert criteo.every_table(criteo.TERABYTE_TABLES) == criteo.TERABYTE_TABLES
    assert max(criteo.TERABYTE_TABLES) == 10_000_000 and len(criteo.TERABYTE_TABLES) == 26


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (1, "1 among the table sizes"),
        (True, "True among the table sizes"),
        (3.0, "3.0 among the table sizes"),
        ([3] * 25, "25 table sizes: expected 26 whole numbers"),
        ([*[3] * 25, 2**31], "2147483648 among the table sizes"),
        ("many", "'many' among the table sizes"),
    ],
)
def test_table_sizes_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        criteo.every_table(sizes)
