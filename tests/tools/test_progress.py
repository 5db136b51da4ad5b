"""Progress: nothing of what is quick, a line every ten seconds elsewhere, a bar on a terminal."""

import sys

import pytest

from tools import progress
from tools.progress import Progress

pytestmark = pytest.mark.one_keras


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock


def on_terminal(monkeypatch):
    """To be called in a test: for fixtures pytest captures another standard error."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def lines(capsys):
    out, error = capsys.readouterr()
    assert out == ""
    return error.splitlines()


def test_what_is_quick_says_nothing(capsys, clock):
    with Progress("reading", 100, "lines") as shown:
        for _ in range(99):
            clock.now += 0.1
            shown.add()
    assert lines(capsys) == []


def test_a_line_every_ten_seconds_and_a_last_one(capsys, clock):
    with Progress("training", 400, "examples") as shown:
        for _ in range(35):
            clock.now += 1
            shown.add(8)
    found = lines(capsys)
    # Of 8 examples a second, after 10, 20 and 30 seconds, and at the end.
    assert found == [
        "training:  20%|80/400 [00:10<00:40,  8.00 examples/s]",
        "training:  40%|160/400 [00:20<00:30,  8.00 examples/s]",
        "training:  60%|240/400 [00:30<00:20,  8.00 examples/s]",
        "training:  70%|280/400 [00:35<00:15,  8.00 examples/s]",
    ]


def test_nothing_is_printed_between_two_lines(capsys, clock):
    shown = Progress("training", 100, "examples")
    expected = {9.9: 0, 10.0: 1, 19.9: 0, 20.0: 1, 75.0: 1, 84.9: 0, 85.0: 1}
    for seconds, count in expected.items():
        clock.now = 1000.0 + seconds
        shown.add()
        assert len(lines(capsys)) == count, seconds
    shown.close()


def test_notes_stay_until_there_are_others(capsys, clock):
    shown = Progress("training", 100, "examples")
    shown.add(1, loss="0.5", updates=1)
    for notes in ({}, {"updates": 7}, {"loss": "0.25"}):
        clock.now += 10
        shown.add(1, **notes)
    assert [line.partition(", loss=")[2] for line in lines(capsys)] == [
        "0.5, updates=1]",
        "0.5, updates=7]",
        "0.25, updates=7]",
    ]
    shown.close()


def test_what_was_done_before_does_not_count_for_the_rate(capsys, clock):
    with Progress("training", 400, "examples", done=300) as shown:
        clock.now += 10
        shown.add(20)
    assert lines(capsys)[0] == "training:  80%|320/400 [00:10<00:40,  2.00 examples/s]"


def test_slow_ones_are_in_seconds_a_unit(capsys, clock):
    with Progress("training", 4, "epochs") as shown:
        clock.now += 3600
        shown.add()
    assert lines(capsys)[0] == "training:  25%|1/4 [1:00:00<3:00:00, 3600.00s/ epochs]"


def test_without_a_total_there_is_no_time_left(capsys, clock):
    with Progress("reading", None, "documents", done=5) as shown:
        clock.now += 20
        shown.add(40, bad=3)
    assert lines(capsys)[0] == "reading: 45 documents [00:20,  2.00 documents/s, bad=3]"


def test_what_has_been_said_is_not_said_again_at_the_end(capsys, clock):
    with Progress("training", 20, "examples") as shown:
        for _ in range(2):
            clock.now += 10
            shown.add(10)
    assert [line.split(" [")[0] for line in lines(capsys)] == ["training:  50%|10/20", "training: 100%|20/20"]


def test_the_last_line_comes_once_and_after_an_error_too(capsys, clock):
    with pytest.raises(KeyError), Progress("training", 100, "examples") as shown:
        clock.now += 10
        shown.add(10)
        clock.now += 1
        shown.add(1)
        raise KeyError
    shown.close()
    assert [line.split(" [")[0] for line in lines(capsys)] == ["training:  10%|10/100", "training:  11%|11/100"]


def test_what_is_said_goes_to_standard_output_at_once(capsys, clock):
    with Progress("training", 100, "examples") as shown:
        shown.say("epoch 1/2: loss 0.5")
        assert capsys.readouterr() == ("epoch 1/2: loss 0.5\n", "")


def test_what_is_not_shown_prints_nothing(capsys, clock):
    with Progress("training", 100, "examples", shown=False) as shown:
        clock.now += 60
        shown.add(10, loss=1)
        shown.say("epoch 1/2")
    assert capsys.readouterr() == ("", "")


def test_what_is_not_shown_prints_nothing_on_a_terminal(capsys, clock, monkeypatch):
    on_terminal(monkeypatch)
    test_what_is_not_shown_prints_nothing(capsys, clock)


def test_a_bar_on_a_terminal(capsys, monkeypatch):
    on_terminal(monkeypatch)
    with Progress("training", 400, "examples", done=100) as shown:
        shown.add(100, loss="0.5")
        shown.add(200)
    (first, *_, last) = capsys.readouterr().err.split("\r")[1:]
    assert first.startswith("training:  25%|") and " 100/400 [" in first
    assert last.startswith("training: 100%|██") and " 400/400 [" in last and "examples/s" in last
    # Notes stay on the bar too. It ends its line, so that what comes next has one of its own.
    assert last.endswith(", loss=0.5]\n")


def test_a_bar_counts_what_was_added(capsys, monkeypatch):
    """One whose end is not reached: nothing makes up for what was not counted."""
    on_terminal(monkeypatch)
    with Progress("training", 400, "examples") as shown:
        shown.add(30)
        shown.add(7)
    assert " 37/400 [" in capsys.readouterr().err.split("\r")[-1]


def test_there_are_no_lines_beside_a_bar(capsys, clock, monkeypatch):
    on_terminal(monkeypatch)
    with Progress("training", 400, "examples") as shown:
        clock.now += 60
        shown.add(100)
    assert capsys.readouterr().err.count("\n") == 1


def test_what_is_said_does_not_spoil_the_bar(capsys, monkeypatch):
    on_terminal(monkeypatch)
    with Progress("training", 400, "examples") as shown:
        shown.add(100)
        capsys.readouterr()
        shown.say("epoch 1/2")
        out, error = capsys.readouterr()
    assert out == "epoch 1/2\n"
    # The bar is wiped before, and drawn again after.
    wiped, drawn = error.rsplit("\r", 1)
    assert wiped.strip(" \r") == "" and drawn.startswith("training:  ")
