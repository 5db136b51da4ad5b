"""The rest of Keras keeps working around the callback: logs, stock callbacks, EMA, BatchNormalization, export."""

import csv
import subprocess
import sys

import numpy as np
import pytest

import tf_simigrad as sg
from tests.fit import cases
from tests.fit.cases import CASES

OURS = {
    "batch_size",
    "micro_steps",
    "similarity",
    "noise_scale",
    "learning_rate",
    "learning_rate_multiplier",
    "effective_learning_rate",
    "examples_seen",
    "skipped_updates",
}


def is_keras_3(tf):
    return tf.keras.Model.__module__.startswith("keras.src.models")


def test_logs_hold_metrics_and_what_the_update_did(tf, strategies, tmp_path):
    with strategies(2).scope():
        model = cases.compiled(
            tf.keras, CASES["sequential"], "sgd", metrics=[tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        )
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8), verbose=1)
    data = cases.arrays(40)
    history = cases.fit(
        model,
        data,
        batch_size=4,
        epochs=2,
        validation_data=data,
        callbacks=[adaptive, tf.keras.callbacks.CSVLogger(tmp_path / "log.csv")],
    ).history
    assert set(history) == OURS | {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert history["examples_seen"] == [40.0, 80.0] and history["batch_size"] == [8.0, 8.0]
    assert history["similarity"][-1] == pytest.approx(adaptive.history[-1].similarity)
    with open(tmp_path / "log.csv") as file:
        assert set(csv.DictReader(file).fieldnames) >= OURS


@pytest.mark.parametrize("replicas", [1, 2])
def test_loss_and_accuracy_are_over_all_replicas(tf, strategies, replicas):
    """With a rate of 0 they are what evaluate says."""
    data = cases.arrays(24)
    with strategies(replicas).scope():
        model = cases.compiled(
            tf.keras,
            CASES["sequential"],
            tf.keras.optimizers.SGD(0.0),
            metrics=[tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )
    logs = cases.fit(model, data, batch_size=4, callbacks=[sg.AdaptiveBatch(sg.FixedBatch(8))]).history
    x, y = data
    single = cases.compiled(tf.keras, CASES["sequential"], "sgd", metrics=["accuracy"])
    single.set_weights(model.get_weights())
    loss, accuracy = single.evaluate(x, y, verbose=0)
    assert logs["loss"][0] == pytest.approx(loss, rel=1e-5) and logs["accuracy"][0] == pytest.approx(accuracy)


@pytest.mark.parametrize("replicas", [1, 2])
def test_validation_with_several_steps_per_execution(tf, strategies, replicas):
    """5 elements, 3 to a call: Keras 3's own loop fails on replicas."""
    data = cases.arrays(20)
    losses = []
    for kwargs in ({}, {"steps_per_execution": 3}):
        with strategies(replicas).scope():
            model = cases.compiled(tf.keras, CASES["sequential"], tf.keras.optimizers.SGD(0.1), **kwargs)
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(8))
        logs = cases.fit(model, data, batch_size=4, epochs=2, validation_data=data, callbacks=[adaptive]).history
        losses.append(logs["val_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_early_stopping_restores_and_checkpoints_hold_flushed_weights(tf, strategies, tmp_path):
    data = cases.arrays(40)
    with strategies(2).scope():
        model = cases.compiled(tf.keras, CASES["sequential"], tf.keras.optimizers.SGD(0.1))
    path = str(tmp_path / "best.weights.h5")
    callbacks = [
        sg.AdaptiveBatch(sg.FixedBatch(12)),
        tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
        tf.keras.callbacks.EarlyStopping(monitor="val_loss", patience=0, min_delta=100.0, restore_best_weights=True),
    ]
    history = cases.fit(model, data, batch_size=4, epochs=9, validation_data=data, callbacks=callbacks).history
    assert len(history["loss"]) == 2
    again = cases.compiled(tf.keras, CASES["sequential"], "sgd")
    again.load_weights(path)
    x, y = data
    assert again.evaluate(x, y, verbose=0) == pytest.approx(history["val_loss"][-1], rel=1e-5)
    assert model.evaluate(x, y, batch_size=4, verbose=0) == pytest.approx(history["val_loss"][0], rel=1e-5)


@pytest.mark.parametrize("replicas", [1, 2])
def test_exponential_moving_average_of_weights_counts_updates(tf, strategies, replicas):
    data = cases.arrays(5 * 8)
    models = []
    for n, batch, callbacks in ((1, 8, []), (replicas, 4, [sg.AdaptiveBatch(sg.FixedBatch(8))])):
        with strategies(n).scope():
            optimizer = tf.keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.7)
            model = cases.compiled(tf.keras, CASES["sequential"], optimizer)
        cases.fit(model, data, batch_size=batch, callbacks=callbacks)
        models.append(model)
    cases.assert_same_weights(*models)


def normalised(tf):
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(7)
    model = tf.keras.Sequential(
        [
            tf.keras.Input((cases.FEATURES,)),
            layers.Dense(8),
            layers.BatchNormalization(momentum=0.5),
            layers.Dense(cases.CLASSES),
        ]
    )
    model.compile(tf.keras.optimizers.SGD(0.0), cases.cross_entropy(tf.keras))
    return model


def moving_statistics(x, kernel, bias, replicas, elements):
    """Mean over replicas of each replica's moving mean and variance, written out: momentum 0.5 from 0 and 1."""
    mean, variance = np.zeros((replicas, 8)), np.ones((replicas, 8))
    for element in x.reshape(elements, replicas, -1, cases.FEATURES).astype("float64"):
        hidden = element @ kernel + bias
        mean, variance = (mean + hidden.mean(1)) / 2, (variance + hidden.var(1)) / 2
    return mean.mean(0), variance.mean(0)


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("elements", [6, 5])
def test_moving_statistics_are_the_mean_over_replicas(tf, strategies, replicas, elements):
    """In validation, also inside an accumulation that the next epoch continues, and in the weights afterwards."""
    count = elements * replicas * 4
    x, y = cases.arrays(count)
    with strategies(replicas).scope():
        model = normalised(tf)
    kernel, bias = model.get_weights()[:2]
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(replicas * 4, drop_remainder=True)
    seen = []
    watch = type(
        "Watch",
        (tf.keras.callbacks.Callback,),
        {"on_test_begin": lambda self, logs=None: seen.append([w.numpy() for w in self.model.layers[1].non_trainable_weights])},
    )()
    model.fit(
        dataset,
        epochs=1,
        verbose=0,
        validation_data=dataset.take(1),
        callbacks=[watch, sg.AdaptiveBatch(sg.FixedBatch(2 * 4 * replicas))],
    )
    expected = moving_statistics(x, kernel, bias, replicas, elements)
    for got in (seen[0], [w.numpy() for w in model.layers[1].non_trainable_weights]):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_synchronised_batch_normalization(tf, strategies, caplog, drop_remainder):
    """It waits for all replicas, so no replica may be left out of a micro-step."""
    with strategies(2).scope():
        layers = tf.keras.layers
        make = layers.BatchNormalization if is_keras_3(tf) else layers.experimental.SyncBatchNormalization
        options = {"synchronized": True} if is_keras_3(tf) else {}
        model = tf.keras.Sequential([tf.keras.Input((cases.FEATURES,)), make(**options), layers.Dense(cases.CLASSES)])
        model.compile("sgd", cases.cross_entropy(tf.keras))
    data = tf.data.Dataset.from_tensor_slices(cases.arrays(24)).batch(4, drop_remainder=drop_remainder)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8))
    model.fit(data, verbose=0, callbacks=[adaptive])
    assert [r.batch_size for r in adaptive.history] == [8] * 3
    if is_keras_3(tf):
        assert "normalise over the micro-batch" not in caplog.text


def test_export_loads_without_the_plugin_and_predicts_the_same(tf, strategies, tmp_path):
    with strategies(2).scope():
        model = normalised(tf)
    x, y = cases.arrays(32)
    cases.fit(model, (x, y), batch_size=8, epochs=2, callbacks=[sg.AdaptiveBatch(sg.FixedBatch(16))])
    model.export(str(tmp_path / "saved"))
    np.savez(tmp_path / "expected.npz", x=x, y=model.predict(x, batch_size=8, verbose=0))
    script = (
        "import sys; sys.modules['tf_simigrad'] = None\n"
        "import numpy as np, tensorflow as tf\n"
        f"data = np.load(r'{tmp_path}/expected.npz'); saved = tf.saved_model.load(r'{tmp_path}/saved')\n"
        "signature = saved.signatures['serving_default']\n"
        "name = list(signature.structured_input_signature[1])[0]\n"
        "out = list(signature(**{name: tf.constant(data['x'])}).values())[0]\n"
        "assert abs(out.numpy() - data['y']).max() < 1e-5, abs(out.numpy() - data['y']).max()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
