"""LARS, LAMB and Adam in plain ``fit`` and inside the callback, on one replica and on two: the same weights."""

import numpy as np
import pytest

import tf_simigrad as sg
from tests.fit import cases
from tests.optimizers.family import FAMILY
from tests.policies import Cycle

BATCH, UPDATES = 24, 10


def normalised(keras):
    k = keras.layers
    return keras.Sequential(
        [keras.Input((cases.FEATURES,)), k.Dense(8, activation="tanh"), k.LayerNormalization(), k.Dense(cases.CLASSES)]
    )


CASES = {"normalised": cases.Case(normalised), **{name: cases.CASES[name] for name in ("embedding", "unused_variable")}}


def trained(tf, strategies, case, optimizer, replicas=1, batch_size=BATCH, callbacks=(), updates=UPDATES):
    with strategies(replicas).scope():
        model = cases.compiled(tf.keras, case, optimizer())
    cases.fit(model, case.data(updates * BATCH), batch_size=batch_size, callbacks=list(callbacks))
    return model


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize(
    ("name", "case"),
    [*((name, "normalised") for name in FAMILY), *((name, case) for name in ("lars", "lamb") for case in list(CASES)[1:])],
)
def test_the_same_weights_however_the_batch_is_made(tf, strategies, name, case):
    """Plain on two replicas, and accumulated over 3 micro-steps on one and on two, against plain on one."""
    make, case = FAMILY[name].make, CASES[case]
    plain = trained(tf, strategies, case, make)
    start = cases.compiled(tf.keras, case, make())
    cases.fit(start, case.data(BATCH), batch_size=BATCH)
    assert max(np.abs(a - b).max() for a, b in zip(start.get_weights(), plain.get_weights(), strict=True)) > 1e-3
    cases.assert_same_weights(trained(tf, strategies, case, make, replicas=2), plain)
    for replicas in (1, 2):
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(BATCH))
        model = trained(tf, strategies, case, make, replicas, BATCH // 3, [adaptive])
        assert [r.micro_steps for r in adaptive.history] == [3] * UPDATES
        assert adaptive.traces == 1
        cases.assert_same_weights(model, plain)
        assert int(model.optimizer.iterations.numpy()) == UPDATES


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("name", ["lars_nesterov", "lamb"])
def test_the_effective_rate_reaches_the_step(tf, strategies, name, replicas):
    """As the batch changes the rule multiplies the rate: the velocity holds steps of several rates."""
    member, case = FAMILY[name], CASES["normalised"]
    sizes = [8, 24, 16, 40] * 3
    x, y = case.data(sum(sizes))
    plain, start = cases.compiled(tf.keras, case, member.make()), 0
    for size in sizes:
        plain.optimizer.learning_rate = member.rate * (size / 8) ** 0.5
        plain.train_on_batch(x[start : start + size], y[start : start + size])
        start += size
    with strategies(replicas).scope():
        model = cases.compiled(tf.keras, case, member.make())
    adaptive = sg.AdaptiveBatch(Cycle(tuple(sizes[:4])), learning_rate_rule="sqrt")
    cases.fit(model, (x, y), batch_size=8, callbacks=[adaptive])
    assert [r.batch_size for r in adaptive.history] == sizes
    cases.assert_same_weights(model, plain)
    assert float(np.array(model.optimizer.learning_rate)) == pytest.approx(member.rate)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_a_schedule_in_fit(tf, strategies, name):
    member, case = FAMILY[name], CASES["normalised"]

    def make():
        return member.make(tf.keras.optimizers.schedules.PolynomialDecay(member.rate, decay_steps=UPDATES, power=2.0))

    plain = trained(tf, strategies, case, make)
    assert float(np.array(plain.optimizer.learning_rate)) < member.rate / 10
    cases.assert_same_weights(trained(tf, strategies, case, make, replicas=2), plain)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(BATCH))
    cases.assert_same_weights(trained(tf, strategies, case, make, 2, BATCH // 3, [adaptive]), plain)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_clipping_and_the_average_of_the_weights_in_fit(tf, strategies, name):
    """Plain ``fit`` on two replicas is left out: Keras 3 clips there before it adds the gradients up."""
    case = CASES["normalised"]

    def make():
        return FAMILY[name].make(global_clipnorm=0.2, use_ema=True, ema_momentum=0.5)

    plain = trained(tf, strategies, case, make)
    unclipped = trained(tf, strategies, case, FAMILY[name].make)
    assert max(np.abs(a - b).max() for a, b in zip(plain.get_weights(), unclipped.get_weights(), strict=True)) > 1e-4
    for replicas in (1, 2):
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(BATCH))
        cases.assert_same_weights(trained(tf, strategies, case, make, replicas, BATCH // 3, [adaptive]), plain)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_mixed_precision(tf, strategies, name):
    """Float16 in the layers: nearly the weights of float32, and the same slots."""
    member, case = FAMILY[name], CASES["normalised"]
    exact = trained(tf, strategies, case, member.make)
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        models = [
            trained(tf, strategies, case, member.make),
            trained(tf, strategies, case, member.make, 2, BATCH // 3, [sg.AdaptiveBatch(sg.FixedBatch(BATCH))]),
        ]
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    for model in models:
        assert type(model.optimizer).__name__.startswith("LossScaleOptimizer")
        cases.assert_same_weights(model, exact, 2e-2)
        inner = model.optimizer.inner_optimizer
        assert {tf.as_dtype(v.dtype) for v in inner.variables if v.shape.rank != 0} == {tf.float32}
