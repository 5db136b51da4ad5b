"""From an experiment to optimizer, schedule and transforms, under either Keras, beside what they ought to do in plain numpy."""

import math

import numpy as np
import pytest

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import Digits
from tests import oracles
from tf_simigrad.compat import keras_private
from tools import building

pytestmark = pytest.mark.usefixtures("tf")

PEAK, EPOCHS, PER_EPOCH, REFERENCE = 0.4, 10, 1000, 64


def experiment(**changes):
    given = {
        "name": "test",
        "task": Digits(),
        "policy": sg.FixedBatch(batch_size=64),
        "epochs": EPOCHS,
        "micro_batch_size": 32,
        "reference_batch_size": REFERENCE,
        "learning_rate": PEAK,
        "schedule": "constant",
        **changes,
    }
    return Experiment(**given)


def expected_rate(examples_seen, schedule, warmup, step_epochs=()):
    """By examples: what is counted in whole reference batches is the schedule's."""
    step, rise, end = examples_seen // REFERENCE, int(warmup * PER_EPOCH) // REFERENCE, EPOCHS * PER_EPOCH // REFERENCE
    if step < rise:
        return PEAK * step / rise
    share = min((step - rise) / (end - rise), 1.0)
    passed = [epoch for epoch in step_epochs if step >= epoch * PER_EPOCH // REFERENCE]
    return {
        "constant": PEAK,
        "cosine": PEAK * (1 + math.cos(math.pi * share)) / 2,
        "linear": PEAK * (1 - share),
        "steps": PEAK * 0.1 ** len(passed),
    }[schedule]


SCHEDULES = [("constant", ()), ("cosine", ()), ("linear", ()), ("steps", (4,)), ("steps", (3, 5.5, 9))]
# Coarsely over all of it and beyond its end, and each reference batch around an epoch at which something changes.
SEEN = sorted(
    {*range(0, 12 * PER_EPOCH, 330), *(1000 * e + d * REFERENCE for e in (1.5, 4, 5.5, 9, 10) for d in (-2, -1, 0, 1))}
)


@pytest.mark.parametrize("warmup", [0, 1.5])
@pytest.mark.parametrize(("schedule", "step_epochs"), SCHEDULES, ids=str)
def test_the_rate_follows_the_examples(tf, schedule, step_epochs, warmup):
    made = experiment(schedule=schedule, step_epochs=step_epochs, warmup_epochs=warmup)
    rate = building.learning_rate(made, PER_EPOCH)
    seen = [int(examples) for examples in SEEN]
    found = [float(rate(tf.constant(n // REFERENCE, tf.int64)) if callable(rate) else rate) for n in seen]
    np.testing.assert_allclose(found, [expected_rate(n, schedule, warmup, step_epochs) for n in seen], rtol=1e-5, atol=1e-7)


def test_a_rate_that_does_not_change_is_a_number(tf):
    assert building.learning_rate(experiment(), PER_EPOCH) == PEAK


@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
def test_a_run_of_less_than_a_reference_batch_has_a_schedule(tf, schedule, warmup):
    made = experiment(schedule=schedule, epochs=2, warmup_epochs=warmup, reference_batch_size=10_000)
    rate = building.learning_rate(made, PER_EPOCH)
    assert float(rate(tf.constant(0, tf.int64)) if callable(rate) else rate) == pytest.approx(PEAK)


def test_a_schedule_with_warmup_comes_back_from_its_configuration(tf):
    schedules = tf.keras.optimizers.schedules
    for schedule, step_epochs in (("linear", ()), ("steps", (4,)), ("constant", ())):
        made = building.learning_rate(experiment(schedule=schedule, step_epochs=step_epochs, warmup_epochs=2), PER_EPOCH)
        again = schedules.deserialize(schedules.serialize(made))
        for step in (0, 10, 40, 100, 150):
            assert float(again(step)) == float(made(step))


def tiny_model(tf):
    """Kernels, biases and both normalisations, none of them 0, in layers whose names hold those of what does not decay."""
    tf.keras.utils.set_random_seed(3)
    k = tf.keras.layers
    model = tf.keras.Sequential([
        tf.keras.Input((4,)),
        k.Dense(5, name="alphabeta", bias_initializer="ones"),
        k.BatchNormalization(name="norm", beta_initializer="ones"),
        k.LayerNormalization(name="layer_norm", beta_initializer="ones"),
        k.Dense(2, name="unbiased", bias_initializer="ones"),
    ])  # fmt: skip
    assert [v.shape for v in model.trainable_variables] == [(4, 5), (5,), (5,), (5,), (5,), (5,), (5, 2), (2,)]
    return model


IS_KERNEL = [True, False, False, False, False, False, True, False]
RATES = [0.05, 0.03, 0.02]


def gradients_of(model, scale=1.0):
    """Of random signs and sizes, none so small that it would matter where Keras's Adam adds its epsilon."""
    rng = np.random.default_rng(8)

    def gradient(shape):
        return (scale * rng.choice([-1, 1], shape) * rng.uniform(0.3, 2, shape)).astype(np.float32)

    return [[gradient(v.shape) for v in model.trainable_variables] for _ in RATES]


def weights_after(tf, optimizer, model, gradients):
    for rate, of_step in zip(RATES, gradients, strict=True):
        optimizer.learning_rate = rate
        optimizer.apply_gradients(zip(map(tf.constant, of_step), model.trainable_variables, strict=True))
    return [np.array(v) for v in model.trainable_variables]


# Of the experiment's settings, and what the oracle is given of a kernel, and of what neither decays nor is adapted.
OPTIMIZERS = {
    # The experiment's momentum is not for it.
    "sgd": ({"momentum": 0.8}, oracles.lars_weights, {"momentum": 0.0, "adapted": False}, {}),
    "momentum": ({"momentum": 0.8}, oracles.lars_weights, {"momentum": 0.8, "adapted": False}, {}),
    "adam": ({}, oracles.lamb_weights, {"epsilon": 1e-7, "adapted": False}, {}),
    "adamw": (
        {"weight_decay": 0.3}, oracles.lamb_weights, {"epsilon": 1e-7, "adapted": False, "decay": 0.3}, {"decay": 0.0},
    ),
    "lars": (
        {"momentum": 0.8, "weight_decay": 0.3}, oracles.lars_weights, {"momentum": 0.8, "decay": 0.3},
        {"decay": 0.0, "adapted": False},
    ),
    "lamb": ({"weight_decay": 0.3}, oracles.lamb_weights, {"decay": 0.3}, {"decay": 0.0, "adapted": False}),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_those_of_the_optimizer_and_biases_and_normalisations_do_not_decay(tf, name):
    settings, oracle, of_kernels, of_others = OPTIMIZERS[name]
    model = tiny_model(tf)
    gradients, starts = gradients_of(model), [np.array(v) for v in model.trainable_variables]
    found = weights_after(tf, building.optimizer(experiment(optimizer=name, **settings), 1.0), model, gradients)
    for index, (is_kernel, start) in enumerate(zip(IS_KERNEL, starts, strict=True)):
        arguments = of_kernels if is_kernel else {**of_kernels, **of_others}
        expected = oracle(start, [of_step[index] for of_step in gradients], RATES, **arguments)
        np.testing.assert_allclose(found[index], expected, rtol=1e-4, atol=1e-5, err_msg=model.trainable_variables[index].name)
        assert np.abs(found[index] - start).max() > 1e-5


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_beyond_the_global_norm_are_scaled_down_to_it(tf, name):
    """The same weights as without clipping on gradients that are clipped here: the first of them only is too large."""
    settings, model = OPTIMIZERS[name][0], tiny_model(tf)
    gradients = gradients_of(model, scale=0.1)
    gradients[0] = [100 * g for g in gradients[0]]
    norms = [math.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in of_step)) for of_step in gradients]
    assert norms[0] > 10 and max(norms[1:]) < 2
    by_hand = [[np.float32(2 / norms[0]) * g for g in gradients[0]], *gradients[1:]]
    clips = building.optimizer(experiment(optimizer=name, global_clipnorm=2.0, **settings), 1.0)
    found = weights_after(tf, clips, model, gradients)
    plain = building.optimizer(experiment(optimizer=name, **settings), 1.0)
    expected = weights_after(tf, plain, tiny_model(tf), by_hand)
    unclipped = weights_after(tf, building.optimizer(experiment(optimizer=name, **settings), 1.0), tiny_model(tf), gradients)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert any(np.abs(ours - theirs).max() > 1e-3 for ours, theirs in zip(found, unclipped, strict=True))


@pytest.mark.skipif(keras_private.KERAS_3, reason="BERT is a tf_keras model")
@pytest.mark.parametrize("name", ["adamw", "lars", "lamb"])
def test_of_bert_kernels_and_embeddings_decay_and_nothing_else(tf, name):
    from models import bert

    model = bert.pretrainer(bert.encoder(bert.Size(1, 8, 2, 16), vocabulary=11, positions=6))
    variables = model.trainable_variables
    for variable in variables:
        variable.assign(tf.ones_like(variable))
    decays = building.optimizer(experiment(optimizer=name, weight_decay=0.5), 0.1)
    # With a gradient of 0 nothing but the decay moves a weight; LARS's ratio is 1 then.
    decays.apply_gradients([(tf.zeros_like(variable), variable) for variable in variables])
    decayed = {variable.name.rpartition("/")[2] for variable in variables if np.any(variable.numpy() != 1)}
    others = {variable.name.rpartition("/")[2] for variable in variables if np.all(variable.numpy() == 1)}
    assert decayed == {"kernel:0", "embeddings:0"}
    assert others == {"bias:0", "gamma:0", "beta:0"}


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "lars", "lamb"])
def test_the_ratio_of_vrgd_has_a_momentum_where_the_optimizer_builds_moments(optimizer):
    (vrgd,) = building.transforms(experiment(optimizer=optimizer, vrgd_gamma=0.2, vrgd_groups="replicas"))
    assert isinstance(vrgd, sg.VRGD) and (vrgd.gamma, vrgd.upper, vrgd.groups) == (0.2, 1.0, "replicas")
    assert vrgd.ratio_momentum == (0.0 if optimizer in ("sgd", "momentum", "lars") else 0.9)


def test_vrgd_comes_before_the_penalty():
    vrgd, l2 = building.transforms(experiment(vrgd_gamma=0.1, l2=5e-4))
    assert isinstance(vrgd, sg.VRGD) and vrgd.groups == "micro_steps"
    assert isinstance(l2, sg.L2) and l2.weight == 5e-4
    (alone,) = building.transforms(experiment(l2=5e-4))
    assert isinstance(alone, sg.L2)
    assert building.transforms(experiment()) == []


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_model_is_compiled_in_its_precision(tf, precision):
    try:
        model = building.model(experiment(precision=precision, optimizer="lamb", schedule="cosine"), PER_EPOCH)
        assert {layer.compute_dtype for layer in model.layers if layer.count_params() and "dense" not in layer.name} == {
            precision
        }
        assert {tf.as_dtype(weight.dtype).name for weight in model.trainable_weights} == {"float32"}
        # An earlier experiment of the process must not decide.
        again = building.model(experiment(), PER_EPOCH)
        assert {layer.compute_dtype for layer in again.layers if layer.count_params()} == {"float32"}
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    assert type(model.optimizer) is sg.LAMB
    losses = model.evaluate(np.zeros((4, 8, 8, 1), np.float32), np.zeros(4, np.int32), verbose=0, return_dict=True)
    assert set(losses) == {"loss", "accuracy"}


def test_the_callback_trains_as_the_experiment_says(tf):
    """Momentum on the penalised gradient at the scheduled rate times the square-root rule, for two updates of 64 examples."""
    made = experiment(
        epochs=1, policy=sg.FixedBatch(batch_size=128), reference_batch_size=32, momentum=0.5, l2=0.1, schedule="linear"
    )
    assert made.learning_rate_rule == "sqrt"
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(256, 8, 8, 1)).astype(np.float32), rng.integers(0, 10, 256).astype(np.int32)
    tf.keras.utils.set_random_seed(1)
    model = building.model(made, 256)
    start, weights = model.get_weights(), [np.float64(w) for w in model.get_weights()]
    adaptive = building.callback(made)
    model.fit(x, y, batch_size=32, shuffle=False, verbose=0, callbacks=[adaptive])
    assert [record.batch_size for record in adaptive.history] == [128, 128]
    loss, oracle = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), building.model(made, 256)
    oracle.set_weights(start)
    velocity = [np.zeros_like(w) for w in weights]
    for update in range(2):
        of_update = slice(128 * update, 128 * (update + 1))
        with tf.GradientTape() as tape:
            value = loss(y[of_update], oracle(x[of_update], training=True))
        gradients = tape.gradient(value, [v.value if keras_private.KERAS_3 else v for v in oracle.trainable_variables])
        # A step of the schedule is 32 examples, of which the epoch has 256; the rule doubles at four times as many.
        rate = PEAK * (1 - 128 * update / 256) * 2
        velocity = [0.5 * v + rate * (np.float64(g) + 0.1 * w) for v, g, w in zip(velocity, gradients, weights, strict=True)]
        weights = [w - v for w, v in zip(weights, velocity, strict=True)]
        oracle.set_weights(weights)
    for found, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
