"""Transforms of the reduced gradient, under either Keras."""

import logging
import math

import numpy as np
import pytest

import tf_simigrad as sg

pytestmark = pytest.mark.usefixtures("tf")

WEIGHT = 0.25


@pytest.fixture
def variables(tf):
    """Those of two layers, "first/kernel" and so on, at random values."""
    tf.keras.utils.set_random_seed(5)
    layers = [tf.keras.layers.Dense(3, name="first", bias_initializer="ones"), tf.keras.layers.BatchNormalization(name="norm"),
              tf.keras.layers.Dense(2, name="second")]  # fmt: skip
    return tf.keras.Sequential([tf.keras.Input((4,)), *layers]).trainable_variables


def arrays(variables):
    return [np.array(tensor) for tensor in variables]


def random_gradients(tf, variables):
    rng = np.random.default_rng(8)
    return [tf.constant(rng.normal(size=v.shape), tf.float32) for v in variables]


# Which of first/kernel, first/bias, norm/gamma, norm/beta, second/kernel, second/bias decay. Keras 3 puts the name of a
# Sequential model before them, so that "^first/" would match under one Keras only.
PATTERNS = [
    ([], [True] * 6),
    (["bias"], [True, False, True, True, True, False]),
    (["bias", "gamma", "beta"], [True, False, False, False, True, False]),
    (["(^|/)first/"], [False, False, True, True, True, True]),
    (["norm/"], [True, True, False, False, True, True]),
    (["second/kernel$"], [True, True, True, True, False, True]),
    (["."], [False] * 6),
    (("kernel",), [False, True, True, True, False, True]),
]


@pytest.mark.parametrize(("exclude", "decayed"), PATTERNS, ids=str)
def test_l2_against_numpy(tf, variables, exclude, decayed):
    transform = sg.L2(WEIGHT, exclude=exclude)
    transform.build(variables)
    gradients = random_gradients(tf, variables)
    before = arrays(gradients)
    results = transform(gradients, variables)
    for result, gradient, variable, decays in zip(results, before, arrays(variables), decayed, strict=True):
        np.testing.assert_allclose(result, gradient + WEIGHT * decays * variable, rtol=1e-6, atol=1e-7)
        assert result.dtype == tf.float32
    assert any(np.any(v) for v in arrays(variables)[1:2])  # a bias of zeros would not show whether it decays


def test_the_default_excludes_nothing(tf, variables):
    gradients = random_gradients(tf, variables)
    for ours, plain in zip(sg.L2(WEIGHT)(gradients, variables), sg.L2(WEIGHT, [])(gradients, variables), strict=True):
        np.testing.assert_array_equal(ours, plain)


def test_a_weight_of_zero_changes_nothing(tf, variables):
    gradients = random_gradients(tf, variables)
    for result, gradient in zip(sg.L2(0)(gradients, variables), gradients, strict=True):
        np.testing.assert_array_equal(result, gradient)


def test_a_variable_without_gradient_stays_without(tf, variables):
    gradients = random_gradients(tf, variables)
    gradients[1] = gradients[4] = None
    results = sg.L2(WEIGHT)(gradients, variables)
    assert [result is None for result in results] == [False, True, False, False, True, False]


def test_the_decay_of_half_precision_weights_is_in_float32(tf):
    """0.1 * 3.0 in float16 is .2999; the product of the cast weight is .3."""
    variable = tf.Variable(3.0, dtype=tf.float16, name="half")
    (result,) = sg.L2(0.1)([tf.constant(0.0)], [variable])
    assert result.dtype == tf.float32
    assert float(result) == pytest.approx(0.3, rel=1e-6)


def test_in_a_traced_function_the_current_weights_decay(tf, variables):
    transform = sg.L2(WEIGHT, exclude=["bias"])
    zeros = [tf.zeros(v.shape) for v in variables]
    traced = tf.function(lambda: transform(zeros, variables))
    traced()
    variables[0].assign(tf.fill(variables[0].shape, 2.0))
    np.testing.assert_allclose(traced()[0], np.full((4, 3), 2.0 * WEIGHT))


@pytest.mark.parametrize(
    ("exclude", "warned"),
    [([], []), (["bias"], []), (["bias", "scale"], ["scale"]), (["Bias", "^kernel"], ["Bias", "^kernel"])],
    ids=str,
)
def test_a_pattern_that_matches_nothing_is_warned_of(caplog, variables, exclude, warned):
    with caplog.at_level(logging.WARNING, logger="tf_simigrad"):
        sg.L2(WEIGHT, exclude=exclude).build(variables)
    assert len(caplog.records) == len(warned)
    for record, pattern in zip(caplog.records, warned, strict=True):
        assert repr(pattern) in record.getMessage()
        assert "first/kernel" in record.getMessage()
        assert "second/bias" in record.getMessage()


@pytest.mark.parametrize("weight", [-1e-4, math.nan, math.inf, "5e-4", None, [1e-4]])
def test_bad_weights_are_refused(weight):
    with pytest.raises(ValueError, match="L2: weight=.* finite number, 0 or more"):
        sg.L2(weight)


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        ("bias", "exclude='bias' must be a list of patterns"),
        ("", "exclude='' must be a list"),
        ([1], "must be a list of patterns"),
        (["bias", None], "must be a list of patterns"),
        (["bias", "(kernel"], r"the pattern '\(kernel' in exclude is no regular expression"),
    ],
    ids=str,
)
def test_bad_patterns_are_refused(exclude, message):
    with pytest.raises(ValueError, match=f"L2: .*{message}"):
        sg.L2(1e-4, exclude=exclude)


def test_the_arguments_can_be_read_back():
    transform = sg.L2(1, exclude=["bias", "gamma"])
    assert (transform.weight, type(transform.weight), transform.exclude) == (1.0, float, ("bias", "gamma"))


def test_as_many_gradients_as_variables(tf, variables):
    with pytest.raises(ValueError, match="zip"):
        sg.L2(WEIGHT)(random_gradients(tf, variables)[:-1], variables)


def test_l2_is_coupled_decay_under_momentum(tf):
    """v <- m v - rate (g + weight w), w <- w + v: the decay passes through the momentum, as in PyTorch's SGD."""
    rate, momentum, steps = 0.1, 0.9, 5
    layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    layer.build((None, 1))
    optimizer, transform = tf.keras.optimizers.SGD(rate, momentum=momentum), sg.L2(WEIGHT)
    weight, velocity = 1.0, 0.0
    for step in range(steps):
        gradient = 0.5 - 0.1 * step
        gradients = transform([tf.constant([[gradient]])], layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        velocity = momentum * velocity - rate * (gradient + WEIGHT * weight)
        weight += velocity
    assert float(np.array(layer.kernel)[0, 0]) == pytest.approx(weight, rel=1e-5)


def test_a_transform_needs_a_call():
    with pytest.raises(TypeError, match="__call__"):
        type("Nothing", (sg.Transform,), {})()


def test_a_transform_of_ones_own_needs_no_build():
    own = type("Own", (sg.Transform,), {"__call__": lambda self, gradients, variables: gradients})()
    own.build([])
    assert own([1, None], [2, 3]) == [1, None]
