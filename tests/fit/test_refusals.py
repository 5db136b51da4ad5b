"""What would give wrong results is refused before training, with a message that says what to do."""

import dataclasses
import json

import numpy as np
import pytest

import tf_simigrad as sg
from tests.fit import cases
from tests.fit.cases import CASES


def attempt(model, adaptive=None, **kwargs):
    return cases.fit(
        model, cases.arrays(16), batch_size=4, callbacks=[adaptive or sg.AdaptiveBatch(sg.FixedBatch(8))], **kwargs
    )


def keras_3(tf):
    return not hasattr(tf.keras.optimizers, "legacy") or tf.keras.Model.__module__.startswith("keras.src.models")


def test_own_train_step(tf):
    class Custom(tf.keras.Model):
        def train_step(self, data):
            return {}

    inputs = tf.keras.Input((cases.FEATURES,))
    model = Custom(inputs, tf.keras.layers.Dense(cases.CLASSES)(inputs))
    model.compile("sgd", cases.cross_entropy(tf.keras))
    with pytest.raises(ValueError, match="overrides train_step.*loss_fn"):
        attempt(model)


def test_optimizer_that_accumulates(tf):
    if not keras_3(tf):
        pytest.skip("tf_keras optimizers do not accumulate")
    model = cases.compiled(tf.keras, CASES["sequential"], tf.keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    with pytest.raises(ValueError, match="gradient_accumulation_steps=2"):
        attempt(model)


def test_jit_compile_with_replicas(tf, strategies):
    with strategies(2).scope():
        model = cases.compiled(tf.keras, CASES["sequential"], "sgd", jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile=False"):
        attempt(model)


@pytest.mark.parametrize("reduction", ["sum", "none", "mean_with_sample_weight"])
def test_losses_that_are_no_mean_over_examples(tf, reduction):
    if reduction == "mean_with_sample_weight" and not keras_3(tf):
        pytest.skip("tf_keras has no such reduction")
    model = CASES["sequential"].build(tf.keras)
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction))
    with pytest.raises(ValueError, match=f"reduction='{reduction}'"):
        attempt(model)


def test_several_optimizers_in_one(tf):
    if not keras_3(tf):
        pytest.skip("tf_keras has no MultiOptimizer")
    optimizers = tf.keras.optimizers
    model = cases.compiled(tf.keras, CASES["sequential"], optimizers.MultiOptimizer(optimizers.SGD(0.1)))
    with pytest.raises(ValueError, match="MultiOptimizer"):
        attempt(model)


def test_nadam_of_tf_keras_on_replicas(tf, strategies):
    if keras_3(tf):
        pytest.skip("Keras 3's Nadam works")
    with strategies(2).scope():
        model = cases.compiled(tf.keras, CASES["sequential"], tf.keras.optimizers.Nadam(0.01))
    with pytest.raises(ValueError, match="Nadam gives NaN"):
        attempt(model)


@pytest.mark.parametrize("returned", [None, 64, {"wanted": 8}, float("nan"), float("inf"), -100.0, 1e9], ids=str)
def test_a_policy_that_returns_nonsense(tf, returned):
    class Odd(sg.Policy):
        min_batch_size, max_batch_size, needs_similarity = 4, 64, False

        def next_state(self, state, report):
            return dataclasses.replace(state, wanted_batch_size=returned) if isinstance(returned, float) else returned

    with pytest.raises(ValueError, match="Odd.next_state returned.*4 to 64"):
        attempt(cases.compiled(tf.keras, CASES["sequential"], "sgd"), sg.AdaptiveBatch(Odd()))


CHANGES = {"none": lambda g: None, "few": lambda g: g[:-1], "shape": lambda g: [g[0][0], *g[1:]]}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_transform_that_returns_nonsense(tf, change):
    class Odd(sg.Transform):
        def __call__(self, gradients, variables):
            return change(gradients)

    model = cases.compiled(tf.keras, CASES["sequential"], "sgd")
    with pytest.raises(ValueError, match="Odd returned gradients of shapes"):
        attempt(model, sg.AdaptiveBatch(sg.FixedBatch(8), transform=Odd()))


@pytest.mark.parametrize("returned", [None, np.ones(3, "float32"), (1.0, 2.0, 3.0)], ids=["none", "vector", "three"])
def test_a_loss_fn_that_returns_nonsense(tf, returned):
    model = cases.compiled(tf.keras, CASES["sequential"], "sgd")
    with pytest.raises(ValueError, match="loss_fn"):
        attempt(model, sg.AdaptiveBatch(sg.FixedBatch(8), loss_fn=lambda model, data: returned))


def test_nothing_to_train(tf):
    model = CASES["sequential"].build(tf.keras)
    model.trainable = False
    model.compile("sgd", cases.cross_entropy(tf.keras))
    with pytest.raises(ValueError, match="no trainable variables"):
        attempt(model)


@pytest.mark.parametrize("kind", ["ParameterServerStrategy", "CentralStorageStrategy"])
def test_strategies_that_are_not_supported(tf, monkeypatch, kind):
    model = cases.compiled(tf.keras, CASES["sequential"], "sgd")
    experimental = tf.distribute.experimental
    strategy_class = getattr(tf.distribute, kind, None) or getattr(experimental, kind)
    strategy = experimental.CentralStorageStrategy() if kind.startswith("Central") else object.__new__(strategy_class)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8))
    monkeypatch.setattr(type(model), "distribute_strategy", strategy)
    with pytest.raises(ValueError, match=kind):
        adaptive.set_model(model)


def test_keras_distribution(tf, monkeypatch):
    if not keras_3(tf):
        pytest.skip("tf_keras has no keras.distribution")
    monkeypatch.setattr(tf.keras.distribution, "distribution", lambda: object())
    with pytest.raises(ValueError, match="keras.distribution"):
        attempt(cases.compiled(tf.keras, CASES["sequential"], "sgd"))


def test_another_backend(tf, monkeypatch):
    if not keras_3(tf):
        pytest.skip("tf_keras has one backend")
    model = cases.compiled(tf.keras, CASES["sequential"], "sgd")
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8))
    monkeypatch.setattr(tf.keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="KERAS_BACKEND=tensorflow"):
        adaptive.set_model(model)


def test_model_of_the_other_keras(tf):
    if tf.keras.Model.__module__.startswith("tf_keras."):
        import keras as other
    elif keras_3(tf):
        import tf_keras as other
    else:
        pytest.skip("once tf_keras is imported beside Keras 2, its load_model does not end")
    model = cases.compiled(other, CASES["sequential"], "sgd")
    with pytest.raises(ValueError, match="TF_USE_LEGACY_KERAS"):
        sg.AdaptiveBatch(sg.FixedBatch(8)).set_model(model)


def test_two_adaptive_batches(tf):
    model = cases.compiled(tf.keras, CASES["sequential"], "sgd")
    both = [sg.AdaptiveBatch(sg.FixedBatch(8)), sg.AdaptiveBatch(sg.FixedBatch(8))]
    with pytest.raises(ValueError, match="one AdaptiveBatch only"):
        cases.fit(model, cases.arrays(16), batch_size=4, callbacks=both)
    attempt(model)


@pytest.mark.parametrize(
    ("policy", "match"),
    [
        (lambda: sg.SimiGrad(0.2, min_batch_size=4, max_batch_size=7), "max_batch_size=7 is too small.*two groups"),
        (lambda: sg.SimiGrad(0.2, min_batch_size=9, max_batch_size=11), "No batch size between min_batch_size=9"),
    ],
)
def test_bounds_that_the_dataset_cannot_meet(tf, policy, match):
    """The dataset's shapes are static here: the weights are not touched and nothing is traced."""
    model = cases.compiled(tf.keras, CASES["sequential"], "sgd")
    before = model.get_weights()
    adaptive = sg.AdaptiveBatch(policy())
    dataset = tf.data.Dataset.from_tensor_slices(cases.arrays(16)).batch(4, drop_remainder=True)
    with pytest.raises(ValueError, match=match):
        model.fit(dataset, verbose=0, callbacks=[adaptive])
    assert adaptive.traces == 0
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"policy": 128}, "policy=128"),
        ({"statistic": "cosine"}, "statistic='cosine'"),
        ({"learning_rate_rule": "cubic"}, "learning_rate_rule='cubic'"),
        ({"reference_batch_size": 0}, "reference_batch_size=0"),
        ({"reference_batch_size": 1.5}, "reference_batch_size=1.5"),
        ({"transform": 0.1}, "transform=0.1"),
        ({"transform": [0.1]}, "transform=0.1"),
        ({"loss_fn": "mse"}, "loss_fn='mse'"),
    ],
)
def test_arguments(tf, kwargs, match):
    with pytest.raises(ValueError, match=match):
        sg.AdaptiveBatch(**{"policy": sg.FixedBatch(8), **kwargs})


@pytest.mark.parametrize(("workers", "refused"), [(2, True), (1, False)])
def test_several_workers_under_keras_3_need_one_call(tf, monkeypatch, workers, refused):
    addresses = [f"127.0.0.1:{port}" for port in range(workers)]
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}))
    if refused and keras_3(tf):
        with pytest.raises(ValueError, match="enable_keras3_multi_worker"):
            sg.AdaptiveBatch(sg.FixedBatch(8))
    else:
        sg.AdaptiveBatch(sg.FixedBatch(8))


def test_policy_without_an_upper_bound(tf):
    class Unbounded(sg.Policy):
        min_batch_size = 4
        max_batch_size = None

        def next_state(self, state, report):
            return state

    with pytest.raises(ValueError, match="upper bound"):
        sg.AdaptiveBatch(Unbounded())


def test_warnings_name_the_layers(tf, caplog):
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input((cases.FEATURES,)),
            layers.Dense(8, kernel_regularizer="l2", name="penalised"),
            layers.BatchNormalization(name="normalised"),
            layers.Dense(cases.CLASSES),
        ]
    )
    model.compile("sgd", cases.cross_entropy(tf.keras))
    attempt(model)
    assert "penalised" in caplog.text and "sg.L2" in caplog.text and "normalised" in caplog.text
