"""The plan: the nearest multiple of the unit, never beyond a bound."""

import itertools

import pytest

from tests import oracles
from tf_simigrad.control.plan import feasible_plan, round_half_up
from tf_simigrad.records import BatchPlan

pytestmark = pytest.mark.one_keras


@pytest.mark.parametrize(
    ("wanted", "steps"),
    [(256, 4), (250, 4), (287, 4), (288, 5), (289, 5), (224, 4), (223.9, 3), (319.999, 5), (1, 1), (31.9, 1), (0.001, 1)],
)
def test_nearest_multiple_halves_up(wanted, steps):
    assert feasible_plan(wanted, 64, 64, 640) == BatchPlan(steps, 64 * steps)


@pytest.mark.parametrize(
    ("wanted", "low", "high", "size"),
    [
        (1000, 1, 999, 960),  # rounding alone would go to 1024, beyond the bound
        (130, 129, 640, 192),  # and here to 128, below it
        (10**9, 1, 640, 640),
        (0.5, 200, 640, 256),
        (639, 1, 639, 576),
    ],
)
def test_the_clamp_comes_after_the_rounding(wanted, low, high, size):
    assert feasible_plan(wanted, 64, low, high).batch_size == size


@pytest.mark.parametrize(("wanted", "steps"), [(64, 2), (100, 2), (192, 3)])
def test_the_measurement_needs_micro_steps(wanted, steps):
    assert feasible_plan(wanted, 64, 1, 640, min_micro_steps=2) == BatchPlan(steps, 64 * steps)


def test_every_small_case():
    feasible = infeasible = 0
    for unit, low, high, min_steps in itertools.product(range(1, 7), range(1, 14), range(1, 14), (1, 2, 3)):
        if low > high:
            continue
        for quarter in range(1, 64):
            wanted = quarter / 4
            expected = oracles.nearest_feasible(wanted, unit, low, high, min_steps)
            if expected is None:
                infeasible += 1
                with pytest.raises(ValueError, match="batch_size"):
                    feasible_plan(wanted, unit, low, high, min_steps)
                break
            feasible += 1
            plan = feasible_plan(wanted, unit, low, high, min_steps)
            assert plan == BatchPlan(expected // unit, expected), (wanted, unit, low, high, min_steps)
    assert feasible > 10_000
    assert infeasible > 100


def test_every_small_fixed_size():
    """A fixed size has no bounds: the nearest multiple from either side, halves up, one micro-step at least."""
    for unit, size in itertools.product(range(1, 9), range(1, 40)):
        expected = oracles.nearest_feasible(size, unit, 1, 10 * 40, 1)
        plan = feasible_plan(size, unit, size, size, fixed=True)
        assert plan == BatchPlan(expected // unit, expected), (unit, size)


def test_a_fixed_size_with_too_few_micro_steps_is_refused():
    """It is not made larger: nobody asked for that size."""
    assert feasible_plan(100, 32, 100, 100, 3, "of us", fixed=True) == BatchPlan(3, 96)
    message = "100 examples has 3 micro-steps of 32, and 4 are needed, because of us.*smaller elements, or pass 128"
    with pytest.raises(ValueError, match=message):
        feasible_plan(100, 32, 100, 100, 4, "of us", fixed=True)


@pytest.mark.parametrize(
    ("unit", "low", "high", "min_steps", "message"),
    [
        (64, 1, 63, 1, r"max_batch_size=63 is too small: .* one micro-step of 64 examples.* Raise max_batch_size to 64"),
        (64, 1, 127, 2, r"max_batch_size=127 is too small: .* 2 micro-steps of 64 .*, because the similarity .* to 128"),
        (64, 65, 127, 1, r"No batch size between min_batch_size=65 and max_batch_size=127 is a multiple of 64"),
        (64, 129, 191, 2, r"No batch size between min_batch_size=129 and max_batch_size=191 is a multiple of 64"),
    ],
)
def test_impossible_plans_say_why(unit, low, high, min_steps, message):
    with pytest.raises(ValueError, match=message):
        feasible_plan(100, unit, low, high, min_steps, "the similarity compares two groups")


@pytest.mark.parametrize(
    ("value", "whole"), [(0.0, 0), (0.49, 0), (0.5, 1), (1.5, 2), (2.5, 3), (3.49, 3), (1e9 + 0.5, 1_000_000_001)]
)
def test_round_half_up(value, whole):
    assert round_half_up(value) == whole
    assert type(round_half_up(value)) is int
