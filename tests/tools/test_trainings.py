"""Trainings for tables: the command of each, those that are kept, and those that are not whole or of other settings."""

import argparse
import json
import subprocess
import sys

import pytest

from tests.tools.finished_trainings import SUMMARY, Trainings
from tools import train, trainings

pytestmark = pytest.mark.one_keras


@pytest.fixture
def started(monkeypatch):
    found = Trainings()
    monkeypatch.setattr(trainings.subprocess, "run", found)
    return found


def options(output, *arguments):
    parser = argparse.ArgumentParser()
    trainings.add_arguments(parser)
    return parser.parse_args(["quickstart_digits", "--output", str(output), *arguments])


def test_the_command_of_a_training(started, tmp_path, capsys):
    given = options(tmp_path / "table", "--set", "epochs=1", "--set", "seed=4")
    assert trainings.train("one", ["l2=0.5", "seed=5"], given) == SUMMARY
    expected = [
        sys.executable,
        "-m",
        "tools.train",
        "quickstart_digits",
        "--output",
        str(tmp_path / "table" / "one"),
        "--resume",
    ]
    # What is set for one training is what it is about, and comes last.
    expected += ["--set", "epochs=1", "--set", "seed=4", "--set", "l2=0.5", "--set", "seed=5"]
    assert started.commands == [expected]
    assert capsys.readouterr().out == "== one\n"


def test_folders_are_handed_on(started, tmp_path):
    trainings.train("one", [], options(tmp_path, "--data-dir", "some/data", "--initial-weights", "some/run"))
    (command,) = started.commands
    assert command[command.index("--resume") + 1 :] == ["--data-dir", "some/data", "--initial-weights", "some/run"]


def test_what_is_complete_is_kept(started, tmp_path, capsys):
    given = options(tmp_path, "--set", "epochs=1", "--data-dir", "some/data")
    for _ in range(2):
        assert trainings.train("one", ["l2=0.5"], given) == SUMMARY
    # Data may be found in another place.
    assert trainings.train("one", ["l2=0.5"], options(tmp_path, "--set", "epochs=1")) == SUMMARY
    assert len(started.commands) == 1
    trainings.train("two", ["l2=0.5"], given)
    assert len(started.commands) == 2
    assert capsys.readouterr().out == "== one\n== two\n"


def test_what_is_not_complete_is_resumed(started, tmp_path):
    given = options(tmp_path)
    trainings.train("one", [], given)
    (tmp_path / "one" / "summary.json").unlink()
    assert trainings.train("one", [], given) == SUMMARY
    assert len(started.commands) == 2 and started.commands[0] == started.commands[1]


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (["--set", "epochs=2"], ["l2=0.5"]),
        (["--set", "epochs=1", "--set", "max_updates=3"], ["l2=0.5"]),
        (["--set", "epochs=1"], ["l2=0.25"]),
        (["--set", "epochs=1", "--set", "policy.min_batch_size=32"], ["l2=0.5"]),
        (["--set", "epochs=1", "--initial-weights", "some/run"], ["l2=0.5"]),
    ],
    ids=str,
)
def test_what_was_complete_with_other_settings_is_not_taken_for_it(started, tmp_path, arguments, settings):
    trainings.train("one", ["l2=0.5"], options(tmp_path, "--set", "epochs=1"))
    trainings.train("one", settings, options(tmp_path, *arguments))
    assert len(started.commands) == 2


def test_tools_train_refuses_other_settings_in_a_folder(started, tmp_path, capsys):
    """To which the second command of the test above leaves it."""
    trainings.train("one", ["l2=0.5"], options(tmp_path))
    arguments = ["quickstart_digits", "--output", str(tmp_path / "one"), "--resume", "--set", "l2=0.25"]
    with pytest.raises(SystemExit):
        train.main(arguments)
    assert "holds another run: l2 was 0.5, is 0.25" in capsys.readouterr().err


def test_a_training_that_fails_is_an_error(monkeypatch, tmp_path):
    def run(command, check):
        raise subprocess.CalledProcessError(2, command)

    monkeypatch.setattr(trainings.subprocess, "run", run)
    with pytest.raises(subprocess.CalledProcessError):
        trainings.train("one", [], options(tmp_path))


def test_settings_that_are_none_are_refused_before_anything_starts(started, tmp_path):
    with pytest.raises(ValueError, match="no field epoch"):
        trainings.train("one", ["epoch=1"], options(tmp_path))
    assert started.commands == []


def test_a_table_is_written_and_printed(tmp_path, capsys):
    trainings.write_table(["a  b", "1  2"], options(tmp_path / "new" / "folder"))
    assert (tmp_path / "new" / "folder" / "table.txt").read_text() == "a  b\n1  2\n" == capsys.readouterr().out


@pytest.mark.parametrize("config", ["quickstart_digits", "somewhere/quickstart_digits.py"])
def test_the_folder_is_named_after_the_experiment(monkeypatch, tmp_path, config):
    monkeypatch.chdir(tmp_path)
    output = trainings.output_of(argparse.Namespace(output=None, config=config))
    assert output.resolve() == tmp_path / "run" / "quickstart_digits_table" and output.is_dir()


def test_a_summary_is_read_as_it_is(started, tmp_path):
    given = options(tmp_path)
    trainings.train("one", [], given)
    (tmp_path / "one" / "summary.json").write_text(json.dumps({"accuracy": 0.25}))
    assert trainings.train("one", [], given) == {"accuracy": 0.25}
