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


def launch(folder, *scenarios, workers=2, grace=60):
    command = [sys.executable, "-m", "tools.launch", "--workers", str(workers), "--grace", str(grace), "--",
               sys.executable, "-m", "tests.workers.train", str(folder), *scenarios]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def trained(request, tf, tmp_path_factory):
    """Number of workers, the folder of their results, and what they printed."""
    folder = tmp_path_factory.mktemp("workers")
    finished = launch(
        folder, "plain", "execution", "uneven", "shared", "parting", "vrgd", "whole", "table", workers=request.param
    )
    assert finished.returncode == 0, finished.stdout[-3000:]
    return request.param, folder, finished.stdout


def results(folder, name):
    return json.loads((folder / f"{name}.json").read_text()), weights(folder, name)


def weights(folder, name):
    with np.load(folder / f"{name}.npz") as arrays:
        return [arrays[key] for key in arrays.files]


def assert_weights(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def in_one_process(tf, strategy, workers, adaptive=None, **arguments):
    """The same training on one process with as many replicas: history, logs, model."""
    model = train.model_under(strategy, **arguments)
    adaptive = adaptive or sg.AdaptiveBatch(train.policy(workers))
    data = tf.data.Dataset.from_tensor_slices(cases.arrays(train.COUNT)).batch(train.MICRO * workers, drop_remainder=True)
    logs = model.fit(data, epochs=train.EPOCHS, verbose=0, callbacks=[adaptive], validation_data=train.validation()).history
    return adaptive.history, logs, model


def assert_updates(got, expected):
    for row, record in zip(got, expected, strict=True):
        assert row[:3] == list(record[:3])
        assert row[3] == pytest.approx(record.similarity, abs=2e-6)


def test_workers_take_the_steps_of_one_process_with_as_many_replicas(tf, strategies, trained):
    workers, folder, _ = trained
    history, logs, model = in_one_process(tf, strategies(workers), workers)
    got, values = results(folder, "plain")
    assert len({r.micro_steps for r in history}) == 3
    assert_updates(got["updates"], history)
    assert_weights(values, model.get_weights())  # with the moving statistics
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert got["logs"][name] == pytest.approx(logs[name], rel=1e-5), name

    assert_weights(weights(folder, "restored"), values)
    assert [p.name for p in (folder / "checkpoints").iterdir()] == ["epoch-00002"]
    x, _ = cases.arrays(16, seed=2)
    loaded = tf.saved_model.load(str(folder / "saved_model"))
    np.testing.assert_allclose(loaded.serve(tf.constant(x)), model.predict(x, verbose=0), rtol=0, atol=1e-5)


def test_several_elements_per_call(tf, strategies, trained):
    workers, folder, _ = trained
    history, _, model = in_one_process(tf, strategies(workers), workers, steps_per_execution=3)
    got, values = results(folder, "execution")
    assert_updates(got["updates"], history)
    assert_weights(values, model.get_weights())


def test_vrgd_over_workers(tf, strategies, trained):
    workers, folder, _ = trained
    policy = sg.FixedBatch(4 * train.MICRO * workers)
    adaptive = sg.AdaptiveBatch(policy, transform=sg.VRGD(ratio_momentum=0.9))
    history, logs, model = in_one_process(tf, strategies(workers), workers, adaptive, normalised=False, optimizer=train.vr_lamb)
    got, values = results(folder, "vrgd")
    assert_updates(got["updates"], history)
    assert got["logs"]["vrgd_multiplier"] == pytest.approx(logs["vrgd_multiplier"], rel=1e-5)
    assert_weights(values, model.get_weights())


def test_rows_of_a_table_over_workers(tf, strategies, trained):
    """Against the dense gradient in one process."""
    workers, folder, _ = trained
    model = train.table_under(strategies(workers))
    adaptive = sg.AdaptiveBatch(train.policy(workers), dense_table_elements=None)
    x, y = cases.arrays(train.COUNT)
    data = tf.data.Dataset.from_tensor_slices((train.ids(x), y)).batch(train.MICRO * workers, drop_remainder=True)
    model.fit(data, epochs=train.EPOCHS, verbose=0, callbacks=[adaptive])
    got, values = results(folder, "table")
    assert_updates(got["updates"], adaptive.history)
    assert_weights(values, model.get_weights())


def test_workers_that_run_out_of_data_at_different_moments(tf, trained):
    """Against plain Keras on batches of what the workers of each update had left; what an epoch leaves enters the next."""
    workers, folder, _ = trained
    counts = train.UNEVEN[:workers]
    micro_steps = [
        [np.concatenate(a) for a in zip(*((x[i : i + train.MICRO][: max(n - i, 0)], y[i : i + train.MICRO][: max(n - i, 0)])
                                          for (x, y), n in zip(train.shares(workers), counts, strict=True)), strict=True)]
        for i in range(0, max(counts), train.MICRO)
    ] * train.EPOCHS  # fmt: skip
    updates = [[np.concatenate(a) for a in zip(*micro_steps[i : i + 2], strict=True)] for i in range(0, len(micro_steps), 2)]
    model = train.model_under(tf.distribute.get_strategy(), normalised=False)
    for x, y in updates:
        model.train_on_batch(x, y)
    got, values = results(folder, "uneven")
    sizes = [len(x) for x, _ in updates]
    assert len(set(sizes)) > 1
    assert [row[1] for row in got["updates"]] == sizes
    assert_weights(values, model.get_weights())


def test_replicas_that_read_identical_data_are_named(trained):
    workers, folder, printed = trained
    named = ", ".join(map(str, range(workers)))
    assert printed.count(f"The replicas {named} read identical data") == workers  # each worker says it, in one scenario, once
    similarities = [row[3] for row in results(folder, "shared")[0]["updates"]]
    assert similarities == pytest.approx([1.0] * len(similarities), abs=1e-6)


def test_workers_with_different_numbers_of_steps_are_refused(trained):
    workers, folder, _ = trained
    for worker in range(workers):
        message = (folder / f"parting-{worker}.txt").read_text()
        assert "steps per epoch (0: unknown): 3 on worker 0, 4 on worker 1" in message and "dataset.repeat()" in message


def test_a_worker_with_another_plan_stops_all_with_its_name(tmp_path):
    finished = launch(tmp_path, "desync")
    assert finished.returncode == 1
    for worker in (0, 1):
        assert re.search(rf"\[worker {worker}\] RuntimeError: The workers disagree.*worker 1 has", finished.stdout)


def test_a_killed_worker_ends_the_others_with_an_error_and_all_can_resume(trained):
    """With pending sums in the checkpoint, to the bits of a run that was never interrupted."""
    workers, folder, _ = trained
    started = time.monotonic()
    broken = launch(folder, "broken", workers=workers, grace=90)
    assert broken.returncode == 1 and time.monotonic() - started < 150
    assert "worker 1 ended with exit code -9" in broken.stdout
    assert "still running" not in broken.stdout, "the others must end by themselves"
    assert re.search(r"\[worker 0\].*(aborted|Error|UNAVAILABLE)", broken.stdout)

    resumed = launch(folder, "resumed", workers=workers)
    assert resumed.returncode == 0, resumed.stdout[-3000:]
    saved = json.loads((folder / "checkpoints-whole" / "epoch-00002" / "adaptive.json").read_text())
    assert saved["loop"]["pending_steps"] > 0 and saved["workers"] == workers
    left, right = (results(folder, name) for name in ("whole", "resumed"))
    assert (left[0]["epochs_done"], right[0]["epochs_done"]) == (0, 2)
    assert left[0]["updates"] == right[0]["updates"]
    for a, b in zip(left[1], right[1], strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_worker_that_does_not_come_is_waited_for_until_the_timeout(tmp_path):
    finished = launch(tmp_path, "stall", grace=1)
    assert finished.returncode == 1
    assert re.search(r"\[worker 0\].*tf_simigrad: .* has waited 5 s for the other workers", finished.stdout)
    assert "worker 1 was still running and has been ended" in finished.stdout
