"""Trust ratios of one layer, against plain numpy."""

import math

import numpy as np
import pytest

from tests import oracles

pytestmark = [pytest.mark.one_keras, pytest.mark.usefixtures("tf")]

SHAPES = [(), (7,), (3, 4), (3, 3, 2, 5), (1000, 100)]


def pair(tf, shape, weight_scale=0.3, other_scale=2.0):
    rng = np.random.default_rng(4)
    left, right = weight_scale * rng.normal(size=shape), other_scale * rng.normal(size=shape)
    return tf.constant(left, tf.float32), tf.constant(right, tf.float32)


def lars(weight, gradient, trust=0.02, decay=0.1, epsilon=1e-3, bounds=None):
    from tf_simigrad.core import trust_ratio

    return trust_ratio.lars_ratio(weight, gradient, trust, decay, epsilon, bounds)


def lamb(weight, direction, bounds=None):
    from tf_simigrad.core import trust_ratio

    return trust_ratio.lamb_ratio(weight, direction, bounds)


RATIOS = {"lars": lars, "lamb": lamb}


def norms(*tensors):
    return [float(np.linalg.norm(np.array(t, np.float64).ravel())) for t in tensors]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bounds", [None, (0.5, 0.6), (0.0, 1e-4), (3.0, 4.0)], ids=str)
def test_ratios_against_numpy(tf, shape, bounds):
    weight, other = pair(tf, shape)
    w, g = norms(weight, other)
    expected = oracles.scale_of_layer(0.02 * w, g + 0.1 * w + 1e-3, (w, g), bounds)
    ratio = lars(weight, other, bounds=bounds)
    assert float(ratio) == pytest.approx(expected, rel=2e-6)
    assert float(lamb(weight, other, bounds)) == pytest.approx(oracles.scale_of_layer(w, g, (w, g), bounds), rel=2e-6)
    assert (ratio.dtype, ratio.shape.rank) == (tf.float32, 0)


@pytest.mark.parametrize("name", RATIOS)
@pytest.mark.parametrize("zero", ["weight", "other", "both"])
def test_a_norm_of_zero_means_1(tf, name, zero):
    weight, other = pair(tf, (3, 4))
    weight = tf.zeros_like(weight) if zero != "other" else weight
    other = tf.zeros_like(other) if zero != "weight" else other
    assert float(RATIOS[name](weight, other)) == 1.0
    assert float(RATIOS[name](weight, other, bounds=(0.1, 0.5))) == 0.5
    assert float(RATIOS[name](weight, other, bounds=(0.1, 5.0))) == 1.0


def test_lars_without_decay_and_epsilon_has_no_divisor_of_zero(tf):
    weight, gradient = pair(tf, (3,))
    assert float(lars(weight, 0 * gradient, decay=0.0, epsilon=0.0)) == 1.0


@pytest.mark.parametrize("name", RATIOS)
def test_what_is_not_finite_stays_so(tf, name):
    """A NaN is not taken for a norm of 0: the step has to show it."""
    weight, other = pair(tf, (3,))
    assert math.isnan(float(RATIOS[name](weight, other * float("nan"))))
    assert float(RATIOS[name](weight, other * float("inf"))) == 0.0


@pytest.mark.parametrize("name", RATIOS)
def test_traced_and_compiled(tf, name):
    weight, other = pair(tf, (3, 4))
    for jit_compile in (False, True):
        traced = tf.function(RATIOS[name], jit_compile=jit_compile)
        assert float(traced(weight, other)) == pytest.approx(float(RATIOS[name](weight, other)), rel=1e-6)
        assert float(traced(0 * weight, other)) == 1.0


def test_the_lamb_ratio_makes_the_step_as_long_as_the_weights(tf):
    weight, direction = pair(tf, (5, 6))
    assert norms(lamb(weight, direction) * direction) == pytest.approx(norms(weight), rel=1e-6)


def test_the_lars_ratio_does_not_know_the_scale_of_the_gradient(tf):
    """Without decay and epsilon the step is as long for a gradient a million times larger."""
    weight, gradient = pair(tf, (5, 6))
    for scale in (1e-6, 1.0, 1e6):
        step = lars(weight, scale * gradient, decay=0.0, epsilon=0.0) * scale * gradient
        assert norms(step) == pytest.approx([0.02 * n for n in norms(weight)], rel=1e-6)
