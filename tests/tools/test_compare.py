"""The adaptive training beside fixed batches, and grids: what is trained, the table, and refusals before the first of them."""

import subprocess
from pathlib import Path

import pytest

from tests.tools.command_line import refused
from tests.tools.finished_trainings import Trainings
from tools import compare, trainings

pytestmark = pytest.mark.one_keras

ROOT = Path(__file__).resolve().parents[2]
SUMMARIES = {
    "adaptive": {"accuracy": 0.98765, "best_accuracy": 0.99, "mean_batch_size": 100.6},
    "fixed_101": {"accuracy": 0.5, "best_accuracy": 0.5, "updates_off_bounds": None, "seconds": 3661.4},
}


@pytest.fixture
def started(monkeypatch):
    found = Trainings(SUMMARIES)
    monkeypatch.setattr(trainings.subprocess, "run", found)
    return found


def run(output, *arguments):
    compare.main(["quickstart_digits", "--output", str(output), *arguments])


def test_the_adaptive_training_beside_the_batch_of_its_mean_size(started, tmp_path, capsys):
    run(tmp_path)
    assert started.settings == [("adaptive", []), ("fixed_101", ["policy=FixedBatch(batch_size=101)"])]
    expected = [
        "run        accuracy  best  updates  mean batch  largest  off bounds  changes  seconds",
        "adaptive     0.9877  0.99    1,234         101    2,048        26 %       17       62",
        "fixed 101       0.5   0.5    1,234         101    2,048           -       17    3,661",
    ]
    assert (tmp_path / "table.txt").read_text().splitlines() == expected
    assert capsys.readouterr().out.splitlines()[-3:] == expected


def test_further_fixed_batches(started, tmp_path):
    run(tmp_path, "--fixed", "64", "2048", "--set", "epochs=3")
    assert [name for name, _ in started.settings] == ["adaptive", "fixed_101", "fixed_64", "fixed_2048"]
    assert started.settings[2][1] == ["epochs=3", "policy=FixedBatch(batch_size=64)"]
    names = [line[:11] for line in (tmp_path / "table.txt").read_text().splitlines()]
    assert names == ["run        ", "adaptive   ", "fixed 101  ", "fixed 64   ", "fixed 2,048"]


def test_what_is_set_of_the_adaptive_policy_is_not_set_of_a_fixed_batch(started, tmp_path):
    run(tmp_path, "--set", "epochs=3", "--set", "policy.target_similarity=0.3", "--set", "policy.max_batch_size=256")
    assert started.settings == [
        ("adaptive", ["epochs=3", "policy.target_similarity=0.3", "policy.max_batch_size=256"]),
        ("fixed_101", ["epochs=3", "policy=FixedBatch(batch_size=101)"]),
    ]
    policy = "policy=NoiseScale(target_similarity=0.3,min_batch_size=64,max_batch_size=128)"
    run(tmp_path / "other", "--set", policy)
    assert started.settings[2:] == [("adaptive", [policy]), ("fixed_101", ["policy=FixedBatch(batch_size=101)"])]


def test_a_grid_is_every_combination(started, tmp_path):
    run(tmp_path, "--grid", "policy.target_similarity=0.1,0.3", "--grid", "seed=0,1", "--set", "epochs=3")
    combinations = [(similarity, seed) for similarity in ("0.1", "0.3") for seed in "01"]
    assert started.settings == [
        (f"target_similarity={similarity}_seed={seed}", ["epochs=3", f"policy.target_similarity={similarity}", f"seed={seed}"])
        for similarity, seed in combinations
    ]
    names = [line.split()[0] for line in (tmp_path / "table.txt").read_text().splitlines()]
    assert names == ["run", *(name for name, _ in started.settings)]


def test_parts_of_a_grid_need_not_fit_alone(started, tmp_path):
    """AdamW has no L2 penalty, which the experiment has, and momentum has no other."""
    run(tmp_path, "--set", "l2=0", "--set", "weight_decay=0.01", "--grid", "optimizer=adamw,lamb")
    assert [name for name, _ in started.settings] == ["optimizer=adamw", "optimizer=lamb"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "seed"], "--grid seed: expected name=value,value,..."),
        (["--grid", "seed="], "--grid seed=: expected name=value,value,..."),
        (["--grid", "seed=0,one"], "seed=one: expected int"),
        (["--grid", "seed=0", "--grid", "epoch=1"], "no field epoch; did you mean epochs"),
        (["--grid", "policy.min_batch_size=64,1024"], "min_batch_size"),
        (["--grid", "seed=0,1", "--fixed", "64"], "--fixed is beside an adaptive training: leave it out, or --grid"),
        (["--grid", "task=Digits(),Squad(encoder='tiny')"], "some trainings are judged by accuracy, others by f1"),
        (["--fixed", "64", "0"], "batch_size"),
        (["--set", "epoch=1"], "no field epoch; did you mean epochs"),
        (["--fixed", "many"], "argument --fixed: invalid int value: 'many'"),
    ],
    ids=str,
)
def test_arguments_are_refused_before_the_first_training(started, tmp_path, capsys, arguments, message):
    assert message in refused(compare.main, capsys, "quickstart_digits", "--output", tmp_path, *arguments)
    assert started.commands == []


def test_an_unknown_experiment_is_refused(started, tmp_path, capsys):
    error = refused(compare.main, capsys, "quickstart_digit", "--output", tmp_path)
    assert "no experiment quickstart_digit; did you mean quickstart_digits" in error


def test_a_training_that_fails_ends_the_command_in_one_line(monkeypatch, tmp_path, capsys):
    def fail(command, check):
        raise subprocess.CalledProcessError(2, command)

    monkeypatch.setattr(trainings.subprocess, "run", fail)
    with pytest.raises(SystemExit) as exit_:
        run(tmp_path)
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and error.count("\n") == 1 and "tools.train" in error and "exit status 2" in error
    assert not (tmp_path / "table.txt").exists()


def test_a_training_of_the_digits_is_shown_and_kept(monkeypatch, tmp_path, capsys):
    """In a process of its own, once: the second time its folder is all that is needed."""
    monkeypatch.chdir(ROOT)
    arguments = ["--grid", "policy.target_similarity=0.25", "--set", "epochs=1", "--set", "max_updates=3"]
    run(tmp_path, *arguments)
    first = capsys.readouterr().out.splitlines()
    monkeypatch.setattr(trainings.subprocess, "run", None)
    run(tmp_path, *arguments)
    assert capsys.readouterr().out.splitlines() == first[-2:]
    header, line = first[-2:]
    assert header.split()[:3] == ["run", "accuracy", "best"]
    name, accuracy, best, updates, mean, largest, *_ = line.split()
    assert (name, updates, mean, largest) == ("target_similarity=0.25", "3", "64", "64")
    assert 0 < float(accuracy) == float(best) < 1
