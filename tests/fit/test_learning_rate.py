"""The base rate belongs to the user: schedules and stock callbacks act on it, the rule multiplies it."""

import numpy as np
import pytest

import tf_simigrad as sg
from tests.fit import cases
from tests.fit.cases import CASES

RATE, BATCH = 0.1, 8


def schedules(keras):
    s = keras.optimizers.schedules
    return {
        "exponential": s.ExponentialDecay(RATE, decay_steps=2, decay_rate=0.5),
        "piecewise": s.PiecewiseConstantDecay([2, 5], [RATE, RATE / 2, RATE / 4]),
        "polynomial": s.PolynomialDecay(RATE, decay_steps=6, end_learning_rate=0.001, power=2.0),
        "inverse_time": s.InverseTimeDecay(RATE, decay_steps=2, decay_rate=0.5, staircase=True),
        "cosine": s.CosineDecay(RATE / 10, decay_steps=6, warmup_target=RATE, warmup_steps=2),
        "cosine_restarts": s.CosineDecayRestarts(RATE, first_decay_steps=3),
    }


SCHEDULES = ["exponential", "piecewise", "polynomial", "inverse_time", "cosine", "cosine_restarts"]


def sgd_model(tf, strategies, rate, replicas=1, **optimizer):
    with strategies(replicas).scope():
        return cases.compiled(tf.keras, CASES["sequential"], tf.keras.optimizers.SGD(rate, momentum=0.9, **optimizer))


def test_every_schedule_class_is_listed(tf):
    s = tf.keras.optimizers.schedules
    known = {type(v) for v in schedules(tf.keras).values()}
    public = {getattr(s, name) for name in dir(s) if isinstance(getattr(s, name), type)} - {s.LearningRateSchedule}
    assert {c.__name__ for c in public} == {c.__name__ for c in known}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("replicas", [1, 2])
def test_schedule_is_plain_where_the_batch_is_the_reference(tf, strategies, name, replicas):
    data = cases.arrays(7 * BATCH)
    plain = sgd_model(tf, strategies, schedules(tf.keras)[name])
    cases.fit(plain, data, batch_size=BATCH)
    model = sgd_model(tf, strategies, schedules(tf.keras)[name], replicas)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(BATCH), reference_batch_size=BATCH)
    cases.fit(model, data, batch_size=BATCH // 2, callbacks=[adaptive])
    expected = [float(schedules(tf.keras)[name](step)) for step in range(7)]
    assert [r.learning_rate for r in adaptive.history] == pytest.approx(expected, rel=1e-6)
    assert [r.effective_learning_rate for r in adaptive.history] == [r.learning_rate for r in adaptive.history]
    cases.assert_same_weights(model, plain)


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_schedule_runs_on_examples_seen(tf, strategies, steps_per_execution):
    schedule = tf.keras.optimizers.schedules.PolynomialDecay(1.0, decay_steps=100, end_learning_rate=0.0)
    with strategies(2).scope():
        model = cases.compiled(
            tf.keras, CASES["sequential"], tf.keras.optimizers.SGD(schedule), steps_per_execution=steps_per_execution
        )
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(3 * BATCH), reference_batch_size=BATCH, learning_rate_rule="linear")
    cases.fit(model, cases.arrays(9 * BATCH), batch_size=BATCH, callbacks=[adaptive])
    assert [r.learning_rate for r in adaptive.history] == pytest.approx([1.0, 0.97, 0.94])
    assert [r.effective_learning_rate for r in adaptive.history] == pytest.approx([3.0, 2.91, 2.82])
    assert int(model.optimizer.iterations.numpy()) == 3


def test_schedule_goes_on_from_the_steps_of_an_earlier_plain_fit(tf, strategies):
    schedule = tf.keras.optimizers.schedules.PolynomialDecay(1.0, decay_steps=100, end_learning_rate=0.0)
    model = cases.compiled(tf.keras, CASES["sequential"], tf.keras.optimizers.SGD(schedule))
    cases.fit(model, cases.arrays(5 * BATCH), batch_size=BATCH)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(BATCH))
    cases.fit(model, cases.arrays(2 * BATCH), batch_size=BATCH, callbacks=[adaptive])
    assert [r.learning_rate for r in adaptive.history] == pytest.approx([0.95, 0.94])


def test_schedule_goes_on_where_backup_and_restore_sets_the_iterations(tf, strategies, tmp_path):
    """It does so when training begins, after ``set_model``."""
    schedule = tf.keras.optimizers.schedules.PolynomialDecay(1.0, decay_steps=100, end_learning_rate=0.0)
    model = cases.compiled(tf.keras, CASES["sequential"], tf.keras.optimizers.SGD(schedule))
    restored = lambda self, logs=None: self.model.optimizer.iterations.assign(40)  # noqa: E731
    restore = type("Restore", (tf.keras.callbacks.Callback,), {"on_train_begin": restored})()
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(BATCH))
    cases.fit(model, cases.arrays(2 * BATCH), batch_size=BATCH, callbacks=[adaptive, restore])
    assert [r.learning_rate for r in adaptive.history] == pytest.approx([0.6, 0.59])


@pytest.mark.parametrize("replicas", [1, 2])
def test_reduce_on_plateau_and_scheduler_act_on_the_base_rate(tf, strategies, replicas):
    """Same rates and weights as plain Keras; `optimizer.learning_rate` shows the base rate, whatever the multiplier is."""
    data = cases.arrays(4 * BATCH)
    stock = {
        "plateau": lambda: tf.keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=100.0),
        "scheduler": lambda: tf.keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7),
    }
    for make in stock.values():
        plain = sgd_model(tf, strategies, RATE)
        cases.fit(plain, data, batch_size=BATCH, epochs=4, callbacks=[make()])
        model = sgd_model(tf, strategies, RATE, replicas)
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(BATCH))
        cases.fit(model, data, batch_size=BATCH // 2, epochs=4, callbacks=[adaptive, make()])
        rate = float(np.array(plain.optimizer.learning_rate))
        assert rate < RATE and float(np.array(model.optimizer.learning_rate)) == pytest.approx(rate)
        cases.assert_same_weights(model, plain, 2e-6)

        scaled = sgd_model(tf, strategies, RATE, replicas)
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(2 * BATCH), reference_batch_size=BATCH, learning_rate_rule="linear")
        cases.fit(scaled, data, batch_size=BATCH // 2, epochs=4, callbacks=[adaptive, make()])
        assert float(np.array(scaled.optimizer.learning_rate)) == pytest.approx(rate)
        assert adaptive.history[-1].effective_learning_rate == pytest.approx(2 * adaptive.history[-1].learning_rate)


@pytest.mark.parametrize("replicas", [1, 2])
def test_decay_of_the_optimizer_follows_the_effective_rate(tf, strategies, replicas):
    """AdamW with its rate doubled by the rule is AdamW with twice the rate."""
    data, models = cases.arrays(4 * BATCH), []
    for rate, reference, n in ((0.02, 2 * BATCH, 1), (0.01, BATCH, replicas)):
        with strategies(n).scope():
            model = cases.compiled(tf.keras, CASES["sequential"], tf.keras.optimizers.AdamW(rate, weight_decay=0.3))
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(2 * BATCH), reference_batch_size=reference, learning_rate_rule="linear")
        cases.fit(model, data, batch_size=BATCH, epochs=2, callbacks=[adaptive])
        models.append(model)
    cases.assert_same_weights(*models, tolerance=1e-5)


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_legacy_optimizers(tf, strategies, kind):
    if not hasattr(tf.keras.optimizers, "legacy") or tf.keras.Model.__module__.startswith("keras.src.models"):
        pytest.skip("Keras 3 has no legacy optimizers")
    data = cases.arrays(5 * BATCH)

    def make():
        return getattr(tf.keras.optimizers.legacy, kind)(RATE, decay=0.1)

    plain = cases.compiled(tf.keras, CASES["sequential"], make())
    cases.fit(plain, data, batch_size=BATCH)
    with strategies(2).scope():
        model = cases.compiled(tf.keras, CASES["sequential"], make())
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(BATCH))
    cases.fit(model, data, batch_size=BATCH // 2, callbacks=[adaptive])
    cases.assert_same_weights(model, plain, 1e-5)
    assert adaptive.history[-1].learning_rate == pytest.approx(RATE / (1 + 0.1 * 4))


def test_rule_gets_the_average_noise_scale_up_to_the_previous_update(tf, strategies):
    calls = []

    def rule(batch_size, reference_batch_size, noise_scale):
        calls.append((batch_size, reference_batch_size, noise_scale))
        return 1.0

    model = sgd_model(tf, strategies, RATE, 2)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(2 * BATCH), learning_rate_rule=rule, statistic="all_pairs")
    cases.fit(model, cases.arrays(6 * BATCH), batch_size=BATCH, callbacks=[adaptive])
    first = adaptive.history[0]
    assert calls[:2] == [(2 * BATCH, 2 * BATCH, None)] * 2  # for the logs before the first update, and for the first update
    assert calls[2][2] == (None if first.noise_scale is None else pytest.approx(first.noise_scale))


@pytest.mark.parametrize("replicas", [1, 2])
def test_clipping_acts_once_on_the_mean_gradient(tf, strategies, replicas):
    data = cases.arrays(4 * BATCH)
    for clip in ({"clipnorm": 0.05}, {"clipvalue": 0.02}, {"global_clipnorm": 0.1}):
        plain = sgd_model(tf, strategies, RATE, **clip)
        cases.fit(plain, data, batch_size=BATCH)
        model = sgd_model(tf, strategies, RATE, replicas, **clip)
        cases.fit(model, data, batch_size=BATCH // 2, callbacks=[sg.AdaptiveBatch(sg.FixedBatch(BATCH))])
        cases.assert_same_weights(model, plain)
