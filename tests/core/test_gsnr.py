"""The signal to noise ratio against numpy in float64, whole and by shards, and at its edges."""

import numpy as np
import pytest

from tests import vrgd_oracle
from tf_simigrad.core import gsnr

pytestmark = pytest.mark.one_keras

SHAPES = [(6, 5), (11,), (1,)]


def groups_of(k, noise, seed=0):
    """Per layer the gradients of k groups [k, ...], of a common mean and noise."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=s)[None] + noise * rng.normal(size=(k, *s)) for s in SHAPES]


def factors_of(tf, means, variances, gamma=0.1, upper=1.0, sums=None):
    means, variances = ([tf.constant(a, tf.float32) for a in arrays] for arrays in (means, variances))
    sums = gsnr.layer_sums(means, variances) if sums is None else sums
    return [f.numpy() for f in gsnr.multipliers(means, variances, sums, tf.constant(gamma), tf.constant(upper))]


def moments(groups):
    return [g.mean(axis=0) for g in groups], [g.var(axis=0) for g in groups]


@pytest.mark.parametrize("noise", [0.1, 1.0, 10.0])
@pytest.mark.parametrize(("gamma", "upper"), [(0.1, 1.0), (0.5, 3.0), (1.0, 1.0)])
def test_multipliers_against_numpy(tf, noise, gamma, upper):
    groups = groups_of(8, noise)
    for found, of_layer in zip(factors_of(tf, *moments(groups), gamma, upper), groups, strict=True):
        np.testing.assert_allclose(found, vrgd_oracle.multiplier(of_layer, gamma, upper), rtol=2e-5)


def test_sums_of_shards_add_up(tf):
    means, variances = moments(groups_of(6, 1.0))
    whole = gsnr.layer_sums([tf.constant(means[0], tf.float32)], [tf.constant(variances[0], tf.float32)])
    rows = [(tf.constant(m, tf.float32), tf.constant(v, tf.float32)) for m, v in zip(means[0], variances[0], strict=True)]
    parts = [gsnr.layer_sums([m], [v]) for m, v in rows]
    np.testing.assert_allclose(np.sum(parts, axis=0), whole, rtol=1e-5)
    assert float(whole[0, 1]) == 30


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_scale_of_the_gradient_does_not_matter(tf, scale):
    groups = groups_of(8, 1.0)
    for a, b in zip(factors_of(tf, *moments(groups)), factors_of(tf, *moments([scale * g for g in groups])), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


@pytest.mark.parametrize("variance", [0.0, -1e-9, 1e-30])
def test_identical_gradients_are_all_sure(tf, variance):
    """Whatever the rounding error of their variance is."""
    rng = np.random.default_rng(1)
    means = [rng.normal(size=s) for s in SHAPES]
    for factor in factors_of(tf, means, [np.full(s, variance) for s in SHAPES]):
        np.testing.assert_allclose(factor, 1.0, rtol=1e-6)


def test_one_pass_variances_of_identical_gradients_are_sure_enough(tf):
    """Sums of squares in float32, over 128 groups: rounding may leave a hundredth of a percent, and no more."""
    rng = np.random.default_rng(2)
    gradient = rng.normal(size=5000).astype("float32")
    total, squares = np.zeros(5000, "float32"), np.zeros(5000, "float32")
    for _ in range(128):
        total, squares = total + gradient, squares + gradient * gradient
    mean = total / np.float32(128)
    factor = factors_of(tf, [mean], [squares / np.float32(128) - mean * mean])[0]
    np.testing.assert_allclose(factor, 1.0, atol=1e-6)


def test_a_gradient_of_zero_is_no_reason_for_nan(tf):
    zeros = [np.zeros(s) for s in SHAPES]
    for factor in factors_of(tf, zeros, zeros):
        np.testing.assert_array_equal(factor, 1.0)


def test_rows_that_no_example_touched_do_not_count(tf):
    (mean, *_), (variance, *_) = moments(groups_of(8, 1.0))
    more_mean, more_variance = (np.concatenate([a, np.zeros((94, 5))]) for a in (mean, variance))
    np.testing.assert_allclose(
        factors_of(tf, [more_mean], [more_variance])[0][:6], factors_of(tf, [mean], [variance])[0], rtol=1e-5
    )


@pytest.mark.parametrize("weights", [[1.0] * 5, [1.0, 2.0, 0.5, 4.0, 1.0], [1.0, 0.0, 2.0, 1.0, 1.0]], ids=str)
def test_variance_of_weighted_groups(tf, weights):
    rng = np.random.default_rng(4)
    weights = np.array(weights)
    gradients = rng.normal(size=(5, 30))
    mean = weights @ gradients / weights.sum()
    expected = sum(w * (g - mean) ** 2 for w, g in zip(weights, gradients, strict=True)) / weights.sum()
    sums = tf.constant(weights[:, None] * gradients, tf.float32)
    found = gsnr.variance_of_groups(sums, tf.constant(weights, tf.float32), tf.constant(mean, tf.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_scaled_and_the_sum_of_the_factors(tf):
    means, factors = [tf.constant([1.0, 0.0, 2.0])], [tf.constant([0.5, 0.3, 0.25])]
    gradients, sums = gsnr.scaled(means, factors, tf.constant(True))
    assert gradients[0].numpy().tolist() == [0.5, 0.0, 0.5] and sums.numpy().tolist() == [0.75]
    gradients, sums = gsnr.scaled(means, factors, tf.constant(False))
    assert gradients[0].numpy().tolist() == [1.0, 0.0, 2.0] and sums.numpy().tolist() == [2.0]


def test_averaged(tf):
    assert gsnr.averaged([tf.constant([1.0])], [tf.constant([0.5])], tf.constant(0.9))[0].numpy() == pytest.approx([0.95])
