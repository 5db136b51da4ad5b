"""The command line from end to end: results, resuming after a kill, and one line for what is wrong."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.tools.command_line import refused
from tf_simigrad.compat import keras_private
from tf_simigrad.report import history
from tools import runs, train

ROOT = Path(__file__).resolve().parents[2]
MIRRORED = ("--strategy", "mirrored", "--devices", "2")
SMALL = ("--set", "epochs=6", "--set", "deterministic=true")
NUMBERS = ("accuracy", "best_accuracy", "updates", "examples_seen", "mean_batch_size", "max_batch_size", "batch_changes")
SUMMARY = {*NUMBERS, "skipped_updates", "discarded_examples", "traces", "seconds", "keras", "strategy", "replicas", "versions",
           "workers", "vrgd_multiplier", "updates_off_bounds", "loss"}  # fmt: skip
FILES = {"config.json", "history.csv", "epochs.csv", "summary.json", "training.png"}
FOLDERS = {"saved_model", "checkpoints", "weights"}
CHECK = Path("saved_model") / "assets.extra" / "serving_check.npz"


def command(*arguments):
    return [sys.executable, "-m", "tools.train", "quickstart_digits", *map(str, arguments)]


def run(*arguments):
    done = subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def config_of(experiment, data_dir=None, initial_weights=None):
    return runs.config_of(experiment, data_dir, initial_weights)


def summary(output):
    return json.loads((output / "summary.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short run on two replicas, whole."""
    output = tmp_path_factory.mktemp("finished")
    run(*MIRRORED, *SMALL, "--output", output)
    return output


def test_a_run_leaves_its_results(finished):
    assert {path.name for path in finished.iterdir()} == FILES | FOLDERS
    found = summary(finished)
    assert set(found) == SUMMARY
    assert (found["strategy"], found["replicas"], found["traces"]) == ("mirrored", 2, 1)
    assert found["keras"] == ("keras3" if keras_private.KERAS_3 else "tf_keras")
    assert 0.5 < found["accuracy"] <= found["best_accuracy"] <= 1


def test_the_tables_agree_with_the_summary(finished):
    found, records = summary(finished), history.read_history(finished / "history.csv")
    assert {name: found[name] for name in history.summarise(records)} == history.summarise(records)
    epochs = history.read_epochs(finished / "epochs.csv")
    assert [row["epoch"] for row in epochs] == [1, 2, 3, 4, 5, 6]
    assert epochs[-1]["val_accuracy"] == found["accuracy"]
    # 22 elements of 64 examples an epoch.
    assert epochs[-1]["examples_seen"] == records[-1].examples_seen == 6 * 22 * 64


def test_the_saved_model_serves_without_the_package(finished):
    check = [sys.executable, "-m", "tools.check_saved_model", str(finished)]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 examples by TensorFlow alone (serving_default): equal" in done.stdout


@pytest.mark.one_keras
def test_a_saved_model_that_predicts_otherwise_is_noticed(finished, tmp_path):
    shutil.copytree(finished / "saved_model", tmp_path / "saved_model")
    with np.load(finished / CHECK) as arrays:
        changed = {name: array + 1e-3 if name.endswith("output/logits") else array for name, array in arrays.items()}
    np.savez(tmp_path / CHECK, **changed)
    check = [sys.executable, "-m", "tools.check_saved_model", str(tmp_path)]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "NOT EQUAL" in done.stdout


# In both Kerases it is tested for EpochCheckpoint itself.
@pytest.mark.one_keras
def test_a_killed_run_is_resumed_to_the_same_end(finished, tmp_path):
    process = subprocess.Popen(command(*MIRRORED, *SMALL, "--output", tmp_path), cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        table, deadline = tmp_path / "epochs.csv", time.monotonic() + 200
        while not (table.is_file() and len(history.read_epochs(table)) >= 3):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "summary.json").exists()
    assert " 0 epochs done" not in run(*MIRRORED, *SMALL, "--output", tmp_path, "--resume")
    assert (tmp_path / "history.csv").read_text() == (finished / "history.csv").read_text()
    assert (tmp_path / "epochs.csv").read_text() == (finished / "epochs.csv").read_text()
    logits = [np.load(folder / CHECK)["serving_default/output/logits"] for folder in (tmp_path, finished)]
    np.testing.assert_array_equal(*logits)


def test_one_replica_two_updates_then_more(tmp_path):
    fixed = ("--set", "policy=FixedBatch(batch_size=64)", "--set", "deterministic=true", "--output", tmp_path)
    run(*fixed, "--set", "max_updates=2")
    found = summary(tmp_path)
    assert (found["updates"], found["examples_seen"], found["mean_batch_size"], found["replicas"]) == (2, 128, 64.0, 1)
    assert (found["strategy"], found["batch_changes"]) == ("default", 0)
    assert "already complete" in run(*fixed, "--set", "max_updates=2", "--resume")
    assert summary(tmp_path) == found
    # The first epoch was cut short, so it is begun anew.
    two = history.read_history(tmp_path / "history.csv")
    assert " 0 epochs done" in run(*fixed, "--set", "max_updates=3", "--set", "epochs=20", "--resume")
    assert history.read_history(tmp_path / "history.csv")[:2] == two
    assert summary(tmp_path)["updates"] == 3


def test_workers_write_one_run_the_same_as_that_of_replicas(finished, tmp_path):
    worker = [*command("--strategy", "multiworker", *SMALL, "--output", tmp_path)]
    launch = [sys.executable, "-m", "tools.launch", "--workers", "2", "--", *worker]
    done = subprocess.run(launch, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:]
    assert {path.name for path in tmp_path.iterdir()} == FILES | FOLDERS
    assert done.stdout.count("elements of 64 examples an epoch") == 1, "one of them speaks"
    found = summary(tmp_path)
    assert (found["strategy"], found["workers"], found["replicas"]) == ("multiworker", 2, 2)
    left, right = (history.read_history(folder / "history.csv") for folder in (tmp_path, finished))
    assert [r[:3] for r in left] == [r[:3] for r in right]
    assert [r.similarity for r in left] == pytest.approx([r.similarity for r in right], abs=1e-4)
    assert found["accuracy"] == summary(finished)["accuracy"]


def test_lars_with_vrgd(tmp_path):
    lars = ("optimizer=lars", "learning_rate=5", "l2=0.0", "weight_decay=1e-4")
    settings = (*lars, "vrgd_gamma=0.1", "policy=FixedBatch(batch_size=256)", "epochs=2")
    run(*(argument for setting in settings for argument in ("--set", setting)), "--output", tmp_path)
    assert 0.1 < summary(tmp_path)["vrgd_multiplier"] < 1
    assert history.read_epochs(tmp_path / "epochs.csv")[-1]["vrgd_groups"] >= 4


@pytest.mark.one_keras
def test_a_tpu_that_is_not_there_is_one_line(tmp_path):
    done = subprocess.run(
        command("--strategy", "tpu", "--output", tmp_path), cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("tools.train: error:")]
    assert done.returncode == 2 and len(said) == 1
    assert "no TPU local can be used" in said[0] and "python -m tools.tpu_check" in said[0]
    assert not any(tmp_path.iterdir())


@pytest.mark.one_keras
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quickstart_digit"], "did you mean quickstart_digits?"),
        (["experiment"], "no experiment experiment"),
        (["missing.py"], "no experiment missing.py"),
        ([], "the following arguments are required: CONFIG"),
        (["quickstart_digits", "--strategy", "best"], "invalid choice: 'best'"),
        (["quickstart_digits", "--strategy", "multiworker"], "--strategy multiworker: TF_CONFIG is not set"),
        (["quickstart_digits", "--strategy", "tpu", "--devices", "8"], "a TPU is used whole"),
        (["quickstart_digits", "--data-dir", "a"], "the digits come with scikit-learn; leave it out"),
        (["quickstart_digits", "--initial-weights", "a"], "--initial-weights a: expected the folder of a run, or one that"),
        (["bert_squad_small"], "--data-dir is missing: expected a folder of the kind squad; python"),
        (["quickstart_digits", "--tpu", "a"], "--tpu a: --strategy default has none"),
        (["quickstart_digits", "--strategy", "tpu", "--keras", "keras3"], "under tf_keras only"),
        (["quickstart_digits", "--devices", "2"], "--devices 2: --strategy default has one"),
        (["quickstart_digits", "--strategy", "mirrored", "--devices", "0"], "--devices 0: expected 1 or more"),
        (["quickstart_digits", "--set", "epoch=1"], "no field epoch; did you mean epochs"),
        (["quickstart_digits", "--set", "epochs=many"], "epochs=many: expected int"),
    ],
)
def test_what_is_wrong_is_one_line(capsys, arguments, message):
    assert message in refused(train.main, capsys, *arguments)


@pytest.mark.one_keras
def test_missing_data_is_one_line(capsys, tmp_path):
    error = refused(train.main, capsys, "cifar10_simigrad_small", "--data-dir", tmp_path)
    assert f"no CIFAR-10 in {tmp_path}; looked for cifar10_train_1.npz" in error


@pytest.mark.one_keras
def test_a_file_without_an_experiment_is_one_line(capsys, tmp_path):
    (tmp_path / "mine.py").write_text("def get_config():\n    return {}\n")
    assert "has no get_config() that returns" in refused(train.main, capsys, tmp_path / "mine.py")


@pytest.mark.one_keras
def test_errors_come_before_tensorflow():
    code = (
        "import sys; from tools import train\n"
        "try: train.main(['cifar10_simigrad_small', '--data-dir', 'nowhere'])\n"
        "except SystemExit as exit_: sys.exit(exit_.code if 'tensorflow' not in sys.modules else 3)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60).returncode == 2


@pytest.mark.one_keras
def test_another_run_is_not_resumed(tmp_path):
    before = train.load_config("quickstart_digits")
    train.prepare_output(config_of(before), tmp_path, resume=False)
    train.prepare_output(config_of(train.apply_overrides(before, ["epochs=99", "max_updates=5"])), tmp_path, resume=True)
    changed = train.apply_overrides(before, ["seed=7", "policy=FixedBatch(batch_size=64)"])
    with pytest.raises(ValueError, match="holds another run: policy was .*; seed was 0, is 7. Only epochs and max_updates"):
        train.check_resume(config_of(changed), tmp_path)
    with pytest.raises(ValueError, match="initial_weights was None, is .*/elsewhere. Only epochs"):
        train.check_resume(config_of(before, initial_weights="elsewhere"), tmp_path)


@pytest.mark.one_keras
def test_a_run_on_other_data_or_of_the_other_keras_is_not_resumed(tmp_path, monkeypatch):
    squad = train.load_config("bert_squad_small")
    (tmp_path / "metadata.json").write_text('{"kind": "squad"}')
    train.prepare_output(config_of(squad, data_dir=tmp_path), tmp_path / "run", resume=False)
    train.check_resume(config_of(squad, data_dir=tmp_path), tmp_path / "run")
    (tmp_path / "metadata.json").write_text('{"kind": "squad", "seed": 1}')
    with pytest.raises(ValueError, match="holds another run: data was .*, is "):
        train.check_resume(config_of(squad, data_dir=tmp_path), tmp_path / "run")
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
    digits = train.load_config("quickstart_digits")
    train.prepare_output(config_of(digits), tmp_path / "digits", resume=False)
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    with pytest.raises(ValueError, match="keras was keras3, is tf_keras"):
        train.check_resume(config_of(digits), tmp_path / "digits")


@pytest.mark.one_keras
def test_a_longer_run_is_not_resumed_into_a_shorter_one(tmp_path):
    before = train.load_config("quickstart_digits")
    train.prepare_output(config_of(before), tmp_path, resume=False)
    (tmp_path / "checkpoints" / "epoch-00003").mkdir(parents=True)
    with pytest.raises(ValueError, match="holds a run of 3 epochs, more than epochs=2"):
        train.check_resume(config_of(train.apply_overrides(before, ["epochs=2"])), tmp_path)
    train.check_resume(config_of(train.apply_overrides(before, ["epochs=3"])), tmp_path)


@pytest.mark.one_keras
def test_a_fresh_run_replaces_an_earlier_one_and_nothing_else(tmp_path):
    for name in ("summary.json", "notes.txt"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "checkpoints").mkdir()
    train.prepare_output(config_of(train.load_config("quickstart_digits")), tmp_path, resume=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "notes.txt"]
