"""Moving averages of the moments, against explicit weights."""

import numpy as np
import pytest

from tests import oracles
from tf_simigrad.control import noise_average
from tf_simigrad.records import UpdateReport

pytestmark = pytest.mark.one_keras


def report(squared_norm, trace):
    return UpdateReport(64, 1, None, squared_norm, trace, 0.1, 0.1, False)


def averaged(pairs, **decay):
    average = noise_average.EMPTY
    for squared_norm, trace in pairs:
        average = noise_average.updated(average, report(squared_norm, trace), **decay)
    return average


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.95, 0.999])
@pytest.mark.parametrize("count", [1, 2, 17, 300])
def test_averages_and_their_ratio(count, decay):
    rng = np.random.default_rng(count)
    norms, traces = rng.normal(2, 1, size=count), rng.normal(1000, 400, size=count)
    average = averaged(zip(norms, traces, strict=True), decay=decay)
    norm, trace = (oracles.moving_average(list(values), decay) for values in (norms, traces))
    assert average["weight"] == pytest.approx(1 - decay**count)
    assert average["squared_gradient_norm"] / average["weight"] == pytest.approx(norm)
    assert average["noise_trace"] / average["weight"] == pytest.approx(trace)
    assert norm > 0
    assert noise_average.noise_scale(average) == pytest.approx(trace / norm)


def test_the_decay_is_20_updates_of_memory():
    assert noise_average.DECAY == 0.95
    assert averaged([(1.0, 1.0), (3.0, 5.0)]) == averaged([(1.0, 1.0), (3.0, 5.0)], decay=0.95)


def test_a_constant_is_its_own_average_from_the_first_report_on():
    for count in (1, 2, 50):
        assert noise_average.noise_scale(averaged([(2.0, 500.0)] * count)) == pytest.approx(250.0, rel=1e-12)


def test_unknown_before_a_report_and_infinite_while_the_norm_is_not_positive():
    assert noise_average.noise_scale(noise_average.EMPTY) is None
    assert noise_average.noise_scale(averaged([(-1.0, 10.0)])) == np.inf
    assert noise_average.noise_scale(averaged([(0.0, 10.0)])) == np.inf
    assert noise_average.noise_scale(averaged([(0.0, 0.0)])) is None
    # A negative reading enters the average of a positive one instead of being dropped.
    average = averaged([(4.0, 10.0), (-1.0, 10.0)], decay=0.5)
    assert noise_average.noise_scale(average) == pytest.approx(10.0 / ((4 - 2 * 1.0) / 3))


@pytest.mark.parametrize("pair", [(None, 1.0), (1.0, None), (None, None)])
def test_a_report_without_both_moments_changes_nothing(pair):
    before = averaged([(2.0, 500.0)])
    after = noise_average.updated(before, report(*pair))
    assert after == before
    assert after is not before


def test_the_argument_is_left_alone():
    before = averaged([(2.0, 500.0)])
    kept = dict(before)
    after = noise_average.updated(before, report(3.0, 1.0))
    assert before == kept != after
    assert set(after) == set(noise_average.EMPTY)
    assert dict(noise_average.EMPTY) == {"squared_gradient_norm": 0.0, "noise_trace": 0.0, "weight": 0.0}
