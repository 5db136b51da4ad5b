"""Real processes as workers, on the loopback address: the steps of one process with as many replicas, or a clear error."""

import json
import re
import subprocess
import sys
import time

import numpy as np
import pytest

import tf_simigrad as sg
from tests.fit import cases
from tests.workers import train


def launch(folder, mode, workers, grace=60):
    command = [sys.executable, "-m", "tools.launch", "--workers", str(workers), "--grace", str(grace), "--",
               sys.executable, "-m", "tests.workers.train", str(folder), mode]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_workers_take_the_steps_of_one_process_with_as_many_replicas(tf, strategies, tmp_path, workers):
    finished = launch(tmp_path, "plain", workers)
    assert finished.returncode == 0, finished.stdout[-3000:]
    model = train.model_under(strategies(workers))
    adaptive = sg.AdaptiveBatch(train.policy(workers))
    data = tf.data.Dataset.from_tensor_slices(cases.arrays(train.COUNT)).batch(train.MICRO * workers, drop_remainder=True)
    logs = model.fit(data, epochs=train.EPOCHS, verbose=0, callbacks=[adaptive]).history

    got = json.loads((tmp_path / "history.json").read_text())
    assert len({r.micro_steps for r in adaptive.history}) == 3
    for row, record in zip(got["updates"], adaptive.history, strict=True):
        assert row[:3] == list(record[:3])
        assert row[3] == pytest.approx(record.similarity, abs=2e-6)
    with np.load(tmp_path / "weights.npz") as weights:
        for name, expected in zip(weights.files, model.get_weights(), strict=True):
            np.testing.assert_allclose(weights[name], expected, rtol=0, atol=1e-6)
    assert got["loss"] == pytest.approx(logs["loss"], rel=1e-5) and got["accuracy"] == pytest.approx(logs["accuracy"])


def test_a_worker_with_another_plan_stops_all_with_its_name(tmp_path):
    finished = launch(tmp_path, "desync", 2)
    assert finished.returncode == 1
    for worker in (0, 1):
        assert re.search(rf"\[worker {worker}\] RuntimeError: The workers disagree.*worker 1 has", finished.stdout)


def test_a_killed_worker_ends_the_others_with_an_error(tmp_path):
    started = time.monotonic()
    finished = launch(tmp_path, "kill", 2, grace=90)
    assert finished.returncode == 1 and time.monotonic() - started < 150
    assert "worker 1 ended with exit code -9" in finished.stdout
    assert "still running" not in finished.stdout, "worker 0 must end by itself"
    assert re.search(r"\[worker 0\].*(aborted|Error|UNAVAILABLE)", finished.stdout)
