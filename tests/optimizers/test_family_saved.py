"""LARS, LAMB and Adam saved and loaded in every way there is: the arguments return, training goes on with the same steps."""

import subprocess
import sys

import numpy as np
import pytest

import tf_simigrad as sg
from tests.fit import cases
from tests.optimizers.family import FAMILY
from tests.optimizers.test_family_in_fit import CASES
from tf_simigrad.compat import keras_private

CASE, BATCH = CASES["normalised"], 8
DATA = cases.arrays(6 * BATCH)
only_tf_keras = pytest.mark.skipif(keras_private.KERAS_3, reason="a format of tf_keras")

COMMON = {"exclude_from_decay": ["bias$", "beta"], "clipnorm": 0.7, "use_ema": True, "ema_momentum": 0.6, "name": "own"}
ADAPTED = {"exclude_from_adaptation": ["kernel"], "trust_ratio_bounds": (0.01, 0.4)}
# every argument of our own, none at its default
ARGUMENTS = {
    "lars": {"momentum": 0.8, "weight_decay": 0.01, "trust_coefficient": 0.03, "epsilon": 0.1, "nesterov": True, **ADAPTED},
    "lamb": {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4, "weight_decay": 0.01, **ADAPTED},
    "adam": {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4, "weight_decay": 0.01},
}


def make(name, rate=0.125, **kwargs):
    return FAMILY[name].kind(rate, **{**ARGUMENTS[name], **COMMON, **kwargs})


def go_on(model, first, last):
    """Trains on the batches from ``first`` to ``last``."""
    x, y = DATA
    for start in range(first * BATCH, last * BATCH, BATCH):
        model.train_on_batch(x[start : start + BATCH], y[start : start + BATCH])


def fresh(tf, name, seed=7, **kwargs):
    model = cases.compiled(tf.keras, CASE, make(name, **kwargs), seed)
    model.optimizer.build(model.trainable_variables)
    return model


def by_checkpoint(tf, model, folder, name):
    loaded = fresh(tf, name, seed=99)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(folder / "checkpoint")
    tf.train.Checkpoint(model=loaded, optimizer=loaded.optimizer).restore(path).assert_consumed()
    return loaded


def by_weights(tf, model, folder, name):
    """Keras 3 puts the optimizer into the file of weights; tf_keras's HDF5 leaves it out, its checkpoint does not."""
    path = str(folder / ("all.weights.h5" if keras_private.KERAS_3 else "weights"))
    model.save_weights(path)
    loaded = fresh(tf, name, seed=99)
    loaded.load_weights(path)
    return loaded


def by_keras_file(tf, model, folder, name):
    model.save(folder / "model.keras")
    return tf.keras.models.load_model(folder / "model.keras")


def by_hdf5(tf, model, folder, name):
    """Keras 3 loses the slots of every optimizer there."""
    model.save(folder / "model.h5")
    return tf.keras.models.load_model(folder / "model.h5")


def by_saved_model(tf, model, folder, name):
    """tf_keras loads the arguments of every optimizer and the state of none; the state lies in the SavedModel's checkpoint."""
    model.save(folder / "saved", save_format="tf")
    loaded = tf.keras.models.load_model(folder / "saved")
    assert int(loaded.optimizer.iterations.numpy()) == 0
    loaded.optimizer.build(loaded.trainable_variables)
    tf.train.Checkpoint(loaded).restore(str(folder / "saved/variables/variables")).expect_partial()
    return loaded


WAYS = {
    "keras": by_keras_file,
    "hdf5": by_hdf5,
    "saved_model": by_saved_model,
    "checkpoint": by_checkpoint,
    "weights": by_weights,
}


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("way", [pytest.param(w, marks=only_tf_keras if w in ("hdf5", "saved_model") else ()) for w in WAYS])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_training_goes_on_as_if_never_saved(tf, tmp_path, name, way):
    whole, broken = fresh(tf, name), fresh(tf, name)
    go_on(whole, 0, 6)
    go_on(broken, 0, 3)
    loaded = WAYS[way](tf, broken, tmp_path, name)
    assert type(loaded.optimizer) is type(broken.optimizer)
    assert int(loaded.optimizer.iterations.numpy()) == 3
    go_on(loaded, 3, 6)
    cases.assert_same_weights(loaded, whole, 0)
    left, right = ([np.array(v) for v in model.optimizer.variables] for model in (loaded, whole))
    assert len(left) == len(right) >= 1 + 6 * (len(whole.optimizer.slot_names) + 1)  # the moving averages, too
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)
    assert loaded.optimizer.get_config() == whole.optimizer.get_config()


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_configuration_is_complete(tf, name, scheduled):
    rate = tf.keras.optimizers.schedules.PolynomialDecay(0.1, decay_steps=10) if scheduled else 0.125
    optimizer = make(name, rate)
    config = optimizer.get_config()
    for argument, value in {**ARGUMENTS[name], **COMMON}.items():
        assert config[argument] == (list(value) if isinstance(value, tuple) else value)
    assert scheduled or config["learning_rate"] == 0.125
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.get_config() == config
    assert tf.keras.optimizers.deserialize(tf.keras.optimizers.serialize(optimizer)).get_config() == config


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_base_class_does_not_decay_as_well(tf, name):
    """``weight_decay`` of Keras's own would act outside of the step: it stays None, also after loading."""
    optimizer = make(name)
    assert optimizer.weight_decay is None
    assert type(optimizer).from_config(optimizer.get_config()).weight_decay is None
    assert (optimizer.decay, optimizer.get_config()["weight_decay"]) == (0.01, 0.01)


def test_an_epoch_checkpoint_of_the_callback(tf, strategies, tmp_path):
    """``EpochCheckpoint`` restores slots and iterations: the second half of a run is that of a whole one."""

    def run(folder, epochs):
        with strategies(2).scope():
            model = fresh(tf, "lars")
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(2 * BATCH))
        checkpoint = sg.EpochCheckpoint(folder, adaptive)
        begun = checkpoint.restore(model)
        cases.fit(model, DATA, batch_size=BATCH, epochs=epochs, initial_epoch=begun, callbacks=[adaptive, checkpoint])
        return model

    whole = run(tmp_path / "whole", 4)
    run(tmp_path / "broken", 2)
    cases.assert_same_weights(run(tmp_path / "broken", 4), whole, 0)


def test_a_new_process_finds_the_class_once_it_is_named(tf, tmp_path):
    model = fresh(tf, "lamb")
    path = tmp_path / "model.keras"
    model.save(path)
    load = f"print(type(tf.keras.models.load_model({str(path)!r}).optimizer))"
    source = f"import tensorflow as tf, tf_simigrad as sg; sg.LAMB; {load}"
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120)
    assert "LAMB" in result.stdout, result.stderr[-2000:]
