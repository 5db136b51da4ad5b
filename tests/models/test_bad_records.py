"""Records that cannot be used are taken out, named and counted; more than the accepted share of them is an error."""

import math
import re

import pytest

from models.bad_records import BadRecord, BadRecords, write_bad_records

pytestmark = pytest.mark.one_keras


def bad(number):
    return BadRecord(f"file:{number}", "no text")


def collected(most, good, wrong):
    """The bad records of a data set that begins with the good ones."""
    found = BadRecords(most)
    list(found.drop([*range(good), *map(bad, range(wrong))]))
    return found


def test_good_records_go_on_in_order_and_bad_ones_are_collected():
    found = BadRecords(0.5)
    assert list(found.drop(["a", bad(1), "b", bad(3), "c"])) == ["a", "b", "c"]
    assert found.found == [bad(1), bad(3)] and found.records == 5


def test_falsy_records_are_good_ones():
    found = BadRecords(0)
    assert list(found.drop(["", 0, None, ()])) == ["", 0, None, ()]
    assert (found.found, found.records) == ([], 4)


def test_records_are_counted_as_they_are_read_and_several_sources_together():
    found = BadRecords(0.5)
    records = found.drop(iter(["a", bad(1), "b"]))
    assert found.records == 0 and next(records) == "a" and found.records == 1
    assert [*records, *found.drop([bad(0)])] == ["b"]
    assert (found.found, found.records) == ([bad(1), bad(0)], 4)


@pytest.mark.parametrize(("most", "good", "wrong"), [(0, 5, 0), (0, 0, 0), (0.25, 3, 1), (1, 0, 4), (1, 0, 0), (0.001, 999, 1)])
def test_a_share_that_is_reached_is_accepted(most, good, wrong):
    collected(most, good, wrong).check()


@pytest.mark.parametrize(("most", "good", "wrong"), [(0, 5, 1), (0.24, 3, 1), (0.001, 998, 1), (0.5, 0, 1)])
def test_a_larger_share_is_an_error(most, good, wrong):
    expected = f"{wrong} of {good + wrong} records cannot be used, more than the accepted share of {most}: file:0: no text"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        collected(most, good, wrong).check()


@pytest.mark.parametrize("wrong", [5, 6, 100])
def test_the_error_names_the_first_five(wrong):
    with pytest.raises(ValueError) as error:
        collected(0, 0, wrong).check()
    named = "; ".join(f"file:{i}: no text" for i in range(5))
    assert str(error.value).endswith(f"share of 0: {named}" + (", ..." if wrong > 5 else ""))


@pytest.mark.parametrize("most", [-0.1, 1.1, 2, math.nan, math.inf])
def test_what_is_no_share_is_refused(most):
    with pytest.raises(ValueError, match=f"a share of bad records of {most}: expected 0 to 1"):
        BadRecords(most)


def test_all_are_written_a_line_each(tmp_path):
    path = tmp_path / "bad.txt"
    path.write_text("of an earlier time")
    found = collected(1, 2, 7)
    found.found.append(BadRecord("größe.txt:1", "'ü'"))
    write_bad_records([collected(1, 1, 1), found], path)
    assert path.read_text(encoding="utf-8").splitlines() == [
        "file:0: no text",
        *(f"file:{i}: no text" for i in range(7)),
        "größe.txt:1: 'ü'",
    ]


def test_where_there_are_none_there_is_no_file(tmp_path):
    path = tmp_path / "bad.txt"
    path.write_text("of an earlier time")
    for _ in range(2):
        write_bad_records([collected(1, 3, 0)], str(path))
        assert not path.exists()
