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
    assert gain(math.inf) == batch_size / reference


def moments_of(gradients):
    """Published estimates from c micro-gradients, in units of one of them (appendix B.3): trace and squared norm."""
    count, mean = len(gradients), np.mean(gradients, axis=0)
    trace = (np.sum(np.square(gradients)) - count * mean @ mean) / (count - 1)
    return trace, mean @ mean - trace / count


@pytest.mark.parametrize(
    ("layers", "gain"), [((0, 1), 1.1440223454935758), ((0,), 1.1428571428571428), ((1,), 1.1471258476157762)]
)
def test_published_gains_of_two_layers(layers, gain):
    """Inputs and values: fairscale, tests/optim/test_single_node_adascale.py, test_add_param_group.

    Two linear layers without anything between, loss = sum of the outputs, two micro-gradients against a batch of one.
    Computed in float32 there.
    """
    first, second = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    gradients = []
    for x in (np.array([1.0, 2.0]), np.array([3.0, 4.0])):
        hidden = first @ x + 0.1
        of_output = np.ones(3)
        of_hidden = second.T @ of_output
        of_layers = ([np.outer(of_hidden, x), of_hidden], [np.outer(of_output, hidden), of_output])
        gradients.append(np.concatenate([np.ravel(g) for i in layers for g in of_layers[i]]))
    trace, norm = moments_of(gradients)
    assert lr_rules.adascale(2, 1, trace / norm) == pytest.approx(gain, rel=2e-7)


@pytest.mark.parametrize(("count", "gain"), [(3, 2.141385737279438), (6, 2.9927880097754036), (9, 3.4461759591877312)])
def test_published_gains_after_a_change_of_the_batch(count, gain):
    """fairscale, the same file, test_set_num_gradients_to_accumulate: two orthogonal gradients, then 3, 6 or 9 equal ones.

    Their moving averages forget by 0.002 and then by count / 1000 per update, keep the trace above 1e-6, and rescale it when
    the batch changes.
    """
    trace, norm = moments_of([np.array([0.0, 1.0, 0.0, 1.0]), np.array([1.0, 0.0, 1.0, 0.0])])
    assert norm == 0.0 and lr_rules.adascale(2, 1, math.inf) == 2.0
    one = np.array([0.0, 1.0, 0.0, 1.0]) / count
    later_trace, later_norm = moments_of([one] * count)
    forgotten = count / 1000
    average_trace = (1 - forgotten) * 0.002 * trace * 2 / count + forgotten * max(later_trace, 1e-6)
    average_norm = (1 - forgotten) * 0.002 * norm + forgotten * later_norm
    assert lr_rules.adascale(count, 1, average_trace / average_norm) == pytest.approx(gain, rel=2e-7)


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
