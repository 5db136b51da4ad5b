"""The table trains each line three times, the third at the rate times what the second has measured, and keeps what is there."""

import json
import types

import pytest

from tools import trainings, vrgd_table

pytestmark = pytest.mark.one_keras


@pytest.fixture
def options(tmp_path):
    return types.SimpleNamespace(output=tmp_path, data_dir=None, set=["epochs=1"])


def test_a_line_is_three_trainings(monkeypatch, options):
    asked = []

    def train(name, settings, given):
        assert given is options
        asked.append((name, settings))
        multiplier = 0.5 if "vrgd" in name else None
        return {"accuracy": 0.5 + len(asked) / 10, "updates": 74, "vrgd_multiplier": multiplier, "seconds": 7}

    monkeypatch.setattr(vrgd_table, "train", train)
    line = vrgd_table.row("lars", 4096, options)
    assert line.split() == ["lars", "4,096", "74", "60.0", "%", "70.0", "%", "80.0", "%", "0.50", "7", "7", "7"]
    common = ["optimizer=lars", "policy=FixedBatch(batch_size=4096)"]
    assert asked == [
        ("lars_4096_plain", [*common, "learning_rate=5.0"]),
        ("lars_4096_vrgd", [*common, "learning_rate=5.0", "vrgd_gamma=0.1"]),
        ("lars_4096_shorter", [*common, "learning_rate=2.5"]),
    ]


def test_what_is_complete_is_kept(monkeypatch, options):
    commands = []

    def run(command, **arguments):
        commands.append(command)
        folder = options.output / "name"
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps({"accuracy": 0.25}))

    monkeypatch.setattr(vrgd_table.subprocess, "run", run)
    for _ in range(2):
        assert vrgd_table.train("name", ["optimizer=lars"], options) == {"accuracy": 0.25}
    assert len(commands) == 1
    assert commands[0][1:4] == ["-m", "tools.train", "cifar10_vrgd"]
    assert commands[0][-4:] == ["--set", "optimizer=lars", "--set", "epochs=1"]
