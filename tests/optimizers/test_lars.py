"""What only LARS has; the rest is in test_family.py."""

import numpy as np
import pytest

import tf_simigrad as sg
from tests import oracles
from tests.optimizers.family import apply_all, arrays, layers, random_gradients

pytestmark = pytest.mark.usefixtures("tf")


def kernel(tf, values):
    layer = tf.keras.layers.Dense(1, use_bias=False)
    layer.build((None, len(values)))
    (variable,) = layer.trainable_variables
    variable.assign(np.reshape(values, (-1, 1)))
    return variable


def test_two_steps_by_hand(tf):
    """|w| = 5, |g| = 10, decay 0.5: ratio = 0.1 * 5 / (10 + 2.5) = 0.04; the next ratio is that of the next weights."""
    variable = kernel(tf, [3.0, 4.0])
    optimizer = sg.LARS(10.0, momentum=0.5, weight_decay=0.5, trust_coefficient=0.1)
    gradient = tf.constant([[6.0], [8.0]])
    optimizer.apply_gradients([(gradient, variable)])
    first = np.array([3.0, 4.0]) - 10 * 0.04 * (np.array([6.0, 8.0]) + 0.5 * np.array([3.0, 4.0]))
    np.testing.assert_allclose(first, [0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(np.array(variable).ravel(), first, atol=1e-6)


def test_a_weight_of_zero_takes_the_plain_step(tf):
    """And leaves 0: with a ratio of 0 it never would."""
    variable = kernel(tf, [0.0, 0.0])
    sg.LARS(0.5, trust_coefficient=1e-3).apply_gradients([(tf.constant([[1.0], [2.0]]), variable)])
    np.testing.assert_allclose(np.array(variable).ravel(), [-0.5, -1.0])


def test_a_gradient_of_zero_leaves_decay_and_momentum(tf):
    variable = kernel(tf, [2.0])
    optimizer = sg.LARS(0.5, momentum=0.5, weight_decay=0.1)
    for _ in range(2):
        optimizer.apply_gradients([(tf.zeros((1, 1)), variable)])
    first = 0.5 * 0.1 * 2.0
    second = 0.5 * first + 0.5 * 0.1 * (2.0 - first)
    np.testing.assert_allclose(np.array(variable).ravel(), [2.0 - first - second], rtol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fully_excluded_it_is_sgd_of_keras(tf, momentum):
    """Without ratio and decay, at a constant rate, with Nesterov's step."""
    ours, theirs = layers(tf).trainable_variables, layers(tf).trainable_variables
    gradients = random_gradients(ours, 10)
    apply_all(tf, sg.LARS(0.1, momentum=momentum, nesterov=True, exclude_from_adaptation=["."]), ours, gradients)
    apply_all(tf, tf.keras.optimizers.SGD(0.1, momentum=momentum, nesterov=True), theirs, gradients)
    for left, right in zip(arrays(ours), arrays(theirs), strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-6)


def test_the_rate_lies_inside_the_velocity(tf):
    """As in the paper: after the rate has fallen the velocity still holds steps of the old one."""
    variable = kernel(tf, [3.0, 4.0])
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.0])
    optimizer, gradient = sg.LARS(schedule, trust_coefficient=0.1), np.array([[1.0], [1.0]])
    for _ in range(4):
        optimizer.apply_gradients([(tf.constant(gradient, tf.float32), variable)])
    expected = oracles.lars_weights(np.array([[3.0], [4.0]]), [gradient] * 4, [1.0, 1.0, 0.0, 0.0], trust=0.1)
    np.testing.assert_allclose(np.array(variable), expected, rtol=1e-6)
    assert not np.allclose(expected, oracles.lars_weights(np.array([[3.0], [4.0]]), [gradient] * 2, [1.0] * 2, trust=0.1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"momentum": 1.0}, "momentum=1.0 must be a finite number, 0 or more and below 1"),
        ({"momentum": -0.1}, "momentum=-0.1 must be a finite number, 0 or more"),
        ({"momentum": None}, "momentum=None must be a finite number"),
        ({"trust_coefficient": 0.0}, "trust_coefficient=0.0 must be a finite number, above 0"),
        ({"nesterov": 1}, "nesterov=1 must be True or False"),
        ({"nesterov": "no"}, "nesterov='no' must be True or False"),
        ({"beta_1": 0.9}, "has no argument beta_1"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"^LARS.*{message}"):
        sg.LARS(**{"learning_rate": 0.1, **arguments})


def test_the_defaults():
    config = sg.LARS(0.1).get_config()
    assert {name: config[name] for name in ("momentum", "weight_decay", "trust_coefficient", "epsilon", "nesterov")} == {
        "momentum": 0.9, "weight_decay": 0.0, "trust_coefficient": 1e-3, "epsilon": 0.0, "nesterov": False,
    }  # fmt: skip
    assert config["trust_ratio_bounds"] is None
    assert config["exclude_from_decay"] == config["exclude_from_adaptation"] == [r"(^|/)(bias|beta|gamma|scale)$"]
