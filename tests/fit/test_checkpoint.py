"""A killed run, resumed, ends with the bits of one that was never killed."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

import tf_simigrad as sg
from tests.fit import cases
from tests.fit.cases import CASES
from tf_simigrad.compat import keras_private


def run(folder, replicas, kill_at=0):
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.fit.resumable_run", str(folder), str(replicas), str(kill_at)]
    return subprocess.run(command, timeout=240, capture_output=True, text=True)


@pytest.mark.parametrize("replicas", [1, 2])
def test_bit_identical_after_kill_9(tmp_path, replicas):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run(whole, replicas).returncode == 0
    assert run(broken, replicas, kill_at=17).returncode == -signal.SIGKILL  # in the third epoch, inside an accumulation
    saved = json.loads(sorted((broken / "checkpoints").glob("epoch-*/adaptive.json"))[-1].read_text())
    assert saved["epochs"] == 2
    finished = run(broken, replicas)
    assert finished.returncode == 0, finished.stderr[-2000:]
    left, right = (json.loads((folder / "history.json").read_text()) for folder in (whole, broken))
    assert left == right and len({row[1] for row in left}) > 1
    with np.load(whole / "result.npz") as a, np.load(broken / "result.npz") as b:
        for name in a.files:
            np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.skipif(keras_private.KERAS_3, reason="Keras 3 keeps the state of all its random numbers in variables")
def test_layers_whose_random_numbers_cannot_be_saved_are_named(tf, tmp_path, caplog):
    model = cases.compiled(tf.keras, cases.Case(cases.with_dropout), "sgd")
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8))
    cases.fit(model, cases.arrays(8), batch_size=4, callbacks=[adaptive, sg.EpochCheckpoint(tmp_path, adaptive)])
    (dropout,) = (layer for layer in model.layers if isinstance(layer, tf.keras.layers.Dropout))
    assert f"other random numbers in the layers {dropout.name}: tf_keras" in caplog.text
    assert "enable_tf_random_generator() before the model is built" in caplog.text


def test_pending_sums_and_retention(tf, strategies, tmp_path):
    """3 elements an epoch, 2 an update: one micro-step is pending at the end of each odd epoch, and is saved."""
    with strategies(2).scope():
        model = cases.compiled(tf.keras, CASES["sequential"], "sgd")
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8))
    checkpoint = sg.EpochCheckpoint(tmp_path, adaptive, keep=3)
    cases.fit(model, cases.arrays(12), batch_size=4, epochs=5, callbacks=[adaptive, checkpoint])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["epoch-00003", "epoch-00004", "epoch-00005"]
    pending = json.loads((tmp_path / "epoch-00003" / "adaptive.json").read_text())
    assert pending["loop"]["pending_steps"] == 1
    with np.load(tmp_path / "epoch-00003" / "arrays-00000.npz") as arrays:
        assert any(np.abs(arrays[name]).max() > 0 for name in arrays.files)


def test_nothing_saved_is_epoch_0_and_a_wrong_model_is_refused(tf, strategies, tmp_path):
    model = cases.compiled(tf.keras, CASES["sequential"], "sgd")
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8))
    checkpoint = sg.EpochCheckpoint(tmp_path / "none", adaptive)
    assert checkpoint.restore(model) == 0
    cases.fit(model, cases.arrays(16), batch_size=4, callbacks=[adaptive, checkpoint])
    other = tf.keras.Sequential([tf.keras.Input((5,)), tf.keras.layers.Dense(2)])
    other.compile("sgd", "mse")
    with pytest.raises(ValueError, match="another model"):
        checkpoint.restore(other)
    with pytest.raises(ValueError, match="built model"):
        checkpoint.restore(tf.keras.Sequential([tf.keras.layers.Dense(2)]))


def test_another_number_of_replicas_is_refused_where_sums_are_pending(tf, strategies, tmp_path):
    data = cases.arrays(12)
    with strategies(2).scope():
        model = cases.compiled(tf.keras, CASES["sequential"], "sgd")
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8))
    stop = type(
        "Stop",
        (tf.keras.callbacks.Callback,),
        {"on_epoch_end": lambda self, epoch, logs=None: setattr(self.model, "stop_training", True)},
    )()
    checkpoint = sg.EpochCheckpoint(tmp_path, adaptive)
    cases.fit(model, data, batch_size=4, epochs=3, callbacks=[adaptive, checkpoint, stop])
    single = cases.compiled(tf.keras, CASES["sequential"], "sgd")
    resumed = sg.AdaptiveBatch(sg.FixedBatch(8))
    done = sg.EpochCheckpoint(tmp_path, resumed).restore(single)
    with pytest.raises(ValueError, match="number of replicas"):
        cases.fit(single, data, batch_size=4, epochs=3, initial_epoch=done, callbacks=[resumed])


def test_the_adaptive_callback_must_be_in_the_same_fit(tf, tmp_path):
    model = cases.compiled(tf.keras, CASES["sequential"], "sgd")
    checkpoint = sg.EpochCheckpoint(tmp_path, sg.AdaptiveBatch(sg.FixedBatch(8)))
    with pytest.raises(ValueError, match="not among the callbacks"):
        cases.fit(model, cases.arrays(16), batch_size=4, callbacks=[checkpoint])


def test_resuming_with_another_policy_keeps_the_batch_size_and_the_clock(tf, tmp_path, caplog):
    data = cases.arrays(32)
    model = cases.compiled(tf.keras, CASES["sequential"], "sgd")
    adaptive = sg.AdaptiveBatch(sg.SimiGrad(target_similarity=0.9, min_batch_size=8, max_batch_size=16, initial_batch_size=12))
    cases.fit(model, data, batch_size=4, callbacks=[adaptive, sg.EpochCheckpoint(tmp_path, adaptive)])
    wanted, seen = adaptive.batch_size, adaptive.examples_seen
    other = sg.AdaptiveBatch(sg.NoiseScale(target_similarity=0.3, min_batch_size=8, max_batch_size=16))
    done = sg.EpochCheckpoint(tmp_path, other).restore(model)
    model.compile("sgd", cases.cross_entropy(tf.keras))  # a new optimizer does not begin anew right after restore
    cases.fit(model, data, batch_size=4, epochs=2, initial_epoch=done, callbacks=[other])
    assert "Resumed from a SimiGrad" in caplog.text
    assert other.history[: len(adaptive.history)] == adaptive.history and other.examples_seen == seen + 32
    assert other.history[len(adaptive.history)].batch_size == wanted


def test_arguments(tf, tmp_path):
    with pytest.raises(ValueError, match="no AdaptiveBatch"):
        sg.EpochCheckpoint(tmp_path, "adaptive")
    with pytest.raises(ValueError, match="keep=0"):
        sg.EpochCheckpoint(tmp_path, sg.AdaptiveBatch(sg.FixedBatch(8)), keep=0)


def test_shards_of_vrgd_are_not_given_to_another_kind_of_device(tf, strategies, tmp_path):
    """A TPU numbers them otherwise, and their shapes may be equal."""
    model = cases.compiled(tf.keras, CASES["sequential"], "sgd")
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(16), transform=sg.VRGD(ratio_momentum=0.9))
    checkpoint = sg.EpochCheckpoint(tmp_path, adaptive)
    cases.fit(model, cases.arrays(32), batch_size=4, callbacks=[adaptive, checkpoint])
    (state,) = tmp_path.glob("epoch-*/adaptive.json")
    state.write_text(json.dumps({**json.loads(state.read_text()), "order": "TPU cores"}))
    with pytest.raises(ValueError, match="in the order of TPU cores, this strategy has that of replicas"):
        checkpoint.restore(model)
