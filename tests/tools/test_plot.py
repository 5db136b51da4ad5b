"""Runs are drawn from what they left on disk."""

import json

import pytest

from tf_simigrad.records import UpdateRecord
from tf_simigrad.report import history
from tools import plot

pytestmark = pytest.mark.one_keras


@pytest.fixture
def runs(tmp_path):
    for name, policy in (
        ("a", {"type": "SimiGrad", "target_similarity": 0.2}),
        ("b", {"type": "FixedBatch", "batch_size": 64}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"task": {"type": "Digits"}, "policy": policy}))
        records = [UpdateRecord(64 * (i + 1), 64, 2, None, None, 0.1, 0.1, False) for i in range(20)]
        history.write_history(folder / "history.csv", records)
        history.write_epochs(folder / "epochs.csv", [{"epoch": 1, "examples_seen": 1280, "val_accuracy": 0.5}])
    return [tmp_path / "a", tmp_path / "b"]


@pytest.mark.parametrize("count", [1, 2])
def test_runs_are_drawn(runs, tmp_path, count):
    plot.main([*map(str, runs[:count]), "--output", str(tmp_path / "out.png")])
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_without_a_run_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        plot.main([str(tmp_path), "--output", str(tmp_path / "out.png")])
    assert exit_.value.code == 2
    assert (
        capsys.readouterr().err == f"tools.plot: error: {tmp_path} holds no run: config.json, history.csv, epochs.csv missing\n"
    )
