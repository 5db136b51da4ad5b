"""What only LAMB, and the Adam below it, have; the rest is in test_family.py."""

import math

import numpy as np
import pytest

import tf_simigrad as sg
from tests.optimizers.family import adam, apply_all, arrays, layers, random_gradients
from tests.optimizers.test_lars import kernel

pytestmark = pytest.mark.usefixtures("tf")


def test_a_step_by_hand(tf):
    """The first r is the sign of the gradient: r + 0.5 w = (2.5, 1), and |w| = 5."""
    variable = kernel(tf, [3.0, 4.0])
    optimizer = sg.LAMB(0.1, epsilon=1e-12, weight_decay=0.5)
    optimizer.apply_gradients([(tf.constant([[7.0], [-0.01]]), variable)])
    scale = 5 / math.hypot(2.5, 1.0)
    np.testing.assert_allclose(np.array(variable).ravel(), [3 - 0.1 * scale * 2.5, 4 - 0.1 * scale * 1.0], rtol=1e-6)


def test_a_weight_of_zero_takes_the_step_of_adam(tf):
    variable = kernel(tf, [0.0, 0.0])
    sg.LAMB(0.1, epsilon=1e-12).apply_gradients([(tf.constant([[3.0], [-2.0]]), variable)])
    np.testing.assert_allclose(np.array(variable).ravel(), [-0.1, 0.1], rtol=1e-6)


def test_a_gradient_of_zero_without_decay_changes_nothing(tf):
    variable = kernel(tf, [3.0, 4.0])
    for _ in range(2):
        sg.LAMB(0.1).apply_gradients([(tf.zeros((2, 1)), variable)])
    np.testing.assert_array_equal(np.array(variable).ravel(), [3.0, 4.0])


def test_without_a_past_it_is_the_sign_of_each_gradient(tf):
    """beta_1 = beta_2 = 0: the bias correction divides by 1."""
    variable = kernel(tf, [3.0, 4.0])
    optimizer = sg.LAMB(0.1, beta_1=0.0, beta_2=0.0, epsilon=1e-12)
    optimizer.apply_gradients([(tf.constant([[-1.0], [0.5]]), variable)])
    optimizer.apply_gradients([(tf.constant([[1e-3], [1e3]]), variable)])
    scale = 0.1 / math.sqrt(2)
    w = np.array([3.0, 4.0])
    for sign in ([-1.0, 1.0], [1.0, 1.0]):
        w = w - scale * np.linalg.norm(w) * np.array(sign)
    np.testing.assert_allclose(np.array(variable).ravel(), w, rtol=1e-6)


def test_fully_excluded_it_is_adam(tf):
    ours, theirs = layers(tf).trainable_variables, layers(tf).trainable_variables
    gradients = random_gradients(ours, 10)
    apply_all(tf, sg.LAMB(0.01, weight_decay=0.1, exclude_from_adaptation=["."]), ours, gradients)
    apply_all(tf, adam(0.01, epsilon=1e-6, weight_decay=0.1), theirs, gradients)
    for left, right in zip(arrays(ours), arrays(theirs), strict=True):
        np.testing.assert_array_equal(left, right)


def test_adam_is_adamw_of_keras_but_for_epsilon(tf):
    """At an epsilon that does not matter; Keras decays before the step, so the decay sees the same weights."""
    ours, theirs = layers(tf).trainable_variables, layers(tf).trainable_variables
    gradients = random_gradients(ours, 10)
    apply_all(tf, adam(0.01, epsilon=1e-12, weight_decay=0.1, exclude_from_decay=[]), ours, gradients)
    apply_all(tf, tf.keras.optimizers.AdamW(0.01, epsilon=1e-12, weight_decay=0.1), theirs, gradients)
    for left, right in zip(arrays(ours), arrays(theirs), strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.999, 0.999999])
@pytest.mark.parametrize("number", [1, 2, 1000, 10_000_000])
def test_the_bias_correction_does_not_cancel(tf, beta, number):
    from tf_simigrad.optimizers.adam import without_bias

    exact = 1.0 if beta == 0.0 else -math.expm1(number * math.log(beta))
    assert float(without_bias(tf.constant(1.0), beta, tf.constant(float(number)))) == pytest.approx(1 / exact, rel=1e-6)


@pytest.mark.parametrize("make", [lambda **k: sg.LAMB(**k), adam], ids=["LAMB", "Adam"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta_1": 1.0}, "beta_1=1.0 must be a finite number, 0 or more and below 1"),
        ({"beta_2": -0.1}, "beta_2=-0.1 must be a finite number"),
        ({"beta_2": [0.9]}, r"beta_2=\[0.9\] must be a finite number"),
        ({"epsilon": 0.0}, "epsilon=0.0 must be a finite number, above 0"),
        ({"momentum": 0.9}, "has no argument momentum"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(make, arguments, message):
    with pytest.raises(ValueError, match=f"^(LAMB|Adam).*{message}"):
        make(**{"learning_rate": 0.1, **arguments})


def test_the_defaults():
    config = sg.LAMB(0.1).get_config()
    assert {name: config[name] for name in ("beta_1", "beta_2", "epsilon", "weight_decay", "trust_ratio_bounds")} == {
        "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-6, "weight_decay": 0.0, "trust_ratio_bounds": None,
    }  # fmt: skip
    assert config["exclude_from_decay"] == config["exclude_from_adaptation"] == [r"(^|/)(bias|beta|gamma|scale)$"]
