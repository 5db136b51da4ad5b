"""Learning-rate rules: known values, limits, and what is refused."""

import math

import numpy as np
import pytest

from tests import oracles
from tf_simigrad.core import lr_rules

pytestmark = pytest.mark.one_keras

SIZES = [(128, 128), (128, 65_536), (256, 64), (1, 3), (78_000, 128)]


@pytest.mark.parametrize(("batch_size", "reference"), SIZES)
@pytest.mark.parametrize(
    ("rule", "power"),
    [("sqrt", 0.5), ("linear", 1.0), ("none", 0.0)],
)
@pytest.mark.parametrize("noise_scale", [None, 0.0, 1e6])
def test_powers_of_the_growth(rule, power, batch_size, reference, noise_scale):
    value = lr_rules.multiplier(lr_rules.resolve(rule), batch_size, reference, noise_scale)
    assert value == pytest.approx((batch_size / reference) ** power, rel=1e-14)


def test_published_figures_of_the_sqrt_rule():
    multiplier = lr_rules.multiplier(lr_rules.sqrt, 65_536, 128, None)
    assert round(multiplier, 3) == 22.627
    assert round(6e-4 * multiplier, 6) == 0.013576


@pytest.mark.parametrize(("batch_size", "reference"), SIZES)
@pytest.mark.parametrize("noise_scale", [1e-3, 10.0, 1000.0, 1e9])
def test_adascale_is_the_published_gain(batch_size, reference, noise_scale):
    value = lr_rules.multiplier(lr_rules.resolve("adascale"), batch_size, reference, noise_scale)
    assert value == pytest.approx(oracles.adascale_gain(batch_size, reference, noise_scale), rel=1e-12)


@pytest.mark.parametrize(("batch_size", "reference"), SIZES)
def test_limits_of_adascale(batch_size, reference):
    def gain(noise_scale):
        return lr_rules.adascale(batch_size, reference, noise_scale)

    # The distance from a limit is of the order of (sizes / noise scale), 1e5 / 1e15 at most.
    assert gain(1e15) == pytest.approx(batch_size / reference, rel=1e-9)
    assert gain(0.0) == 1.0
    assert gain(None) == 1.0


def test_adascale_is_1_at_the_reference_and_never_beyond_linear():
    for noise_scale in (0.0, 1.0, 1e3, 1e8):
        assert lr_rules.adascale(512, 512, noise_scale) == 1.0
        assert 1.0 <= lr_rules.adascale(2048, 512, noise_scale) <= 4.0
        assert 0.25 <= lr_rules.adascale(128, 512, noise_scale) <= 1.0


def test_a_callable_gets_sizes_and_noise_scale():
    seen = []

    def rule(batch_size, reference_batch_size, noise_scale):
        seen.append((batch_size, reference_batch_size, noise_scale))
        return 3

    multiplier = lr_rules.multiplier(lr_rules.resolve(rule), 512, 128, 77.0)
    assert (multiplier, type(multiplier)) == (3.0, float)
    assert seen == [(512, 128, 77.0)]


@pytest.mark.parametrize("rule", ["square", "SQRT", "", None, 0.5])
def test_unknown_rules_are_refused(rule):
    with pytest.raises(ValueError, match="learning_rate_rule=.*'sqrt', 'linear', 'adascale', 'none'"):
        lr_rules.resolve(rule)


@pytest.mark.parametrize("value", [0, 0.0, -1.0, math.nan, math.inf, -math.inf, "2", None, (1.0,), 1j])
def test_bad_returns_are_refused(value):
    with pytest.raises(ValueError, match="learning-rate rule returned .*batch_size=512.*positive finite number"):
        lr_rules.multiplier(lambda *_: value, 512, 128, None)


def test_a_numpy_double_is_a_number():
    assert lr_rules.multiplier(lambda *_: np.float64(1.5), 512, 128, None) == 1.5
