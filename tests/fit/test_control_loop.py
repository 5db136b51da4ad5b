"""The host's loop: reports in order -> policy -> plan, and what a checkpoint brings back."""

import dataclasses
import json
import logging
import math
import random

import pytest

import tf_simigrad as sg
from tests import oracles
from tf_simigrad.core import lr_rules
from tf_simigrad.fit.control_loop import ControlLoop, LoopState
from tf_simigrad.records import BatchPlan

pytestmark = pytest.mark.one_keras

UP, DOWN = 0.0, 1.0


@dataclasses.dataclass(frozen=True)
class Recorder(sg.Policy):
    """Asks for 100 examples more at each report, and remembers how many it has seen."""

    min_batch_size: int = 100
    max_batch_size: int = 10_000
    initial_batch_size: int | None = None
    needs_similarity: bool = True

    def next_state(self, state, report):
        count = int(state.memory.get("count", 0)) + 1
        return dataclasses.replace(
            state, wanted_batch_size=state.wanted_batch_size + 100, memory={"count": count, "last": report.batch_size}
        )


def report(similarity=UP, batch_size=100, squared_norm=1.0, trace=1000.0, skipped=False, micro_steps=1):
    return sg.UpdateReport(batch_size, micro_steps, similarity, squared_norm, trace, 0.1, 0.2, skipped)


def planned(policy, unit=100, rule=lr_rules.sqrt, reference=None, min_micro_steps=1):
    loop = ControlLoop(policy, rule, reference)
    loop.start(min_micro_steps)
    loop.set_unit(unit)
    return loop


def wanted(loop):
    return loop.state.policy.wanted_batch_size


def test_a_report_moves_the_batch():
    loop = planned(sg.SimiGrad(0.2, 128, 8192), unit=8)
    sizes = []
    for _ in range(3):
        loop.observe([report(UP, batch_size=8)])
        sizes.append((wanted(loop), loop.plan))
    # The wanted size climbs unrounded, the plan is its nearest multiple of 8.
    assert sizes == [(140, BatchPlan(18, 144)), (154, BatchPlan(19, 152)), (169, BatchPlan(21, 168))]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_one_call_moves_the_batch_once_from_the_last_report(count):
    loop = planned(Recorder())
    loop.observe([report(batch_size=10 * k) for k in range(1, count + 1)])
    assert wanted(loop) == 200
    assert dict(loop.state.policy.memory) == {"count": count, "last": 10 * count}


@pytest.mark.parametrize(("similarities", "size"), [((DOWN, DOWN, UP), 140), ((UP, UP, DOWN), 115), ((UP, DOWN, 0.2), 128)])
def test_the_last_report_decides(similarities, size):
    loop = planned(sg.SimiGrad(0.2, 64, 8192, initial_batch_size=128), unit=1)
    loop.observe([report(s) for s in similarities])
    assert wanted(loop) == size


def test_averages_take_every_report_of_a_call():
    loop = planned(sg.NoiseScale(0.2, 100, 10_000))
    pairs = [(1.0, 500.0), (3.0, 700.0), (2.0, 900.0)]
    loop.observe([report(squared_norm=n, trace=t) for n, t in pairs])
    norm, trace = (oracles.moving_average(list(values), 0.95) for values in zip(*pairs, strict=True))
    for memory in (loop.state.noise, loop.state.policy.memory):
        assert memory["noise_trace"] / memory["squared_gradient_norm"] == pytest.approx(trace / norm)
        assert memory["weight"] == pytest.approx(1 - 0.95**3)
    assert wanted(loop) == pytest.approx(110)


@pytest.mark.parametrize(
    "unusable",
    [report(skipped=True), report(similarity=None), report(similarity=None, skipped=True)],
    ids=["skipped", "not_measured", "both"],
)
def test_what_is_skipped_or_not_measured_does_not_reach_the_policy(unusable):
    loop = planned(Recorder())
    state, noise = loop.state.policy, dict(loop.state.noise)
    loop.observe([unusable])
    assert loop.state.policy == state
    assert loop.state.noise == noise
    assert loop.state.examples_seen == 100
    assert loop.state.skipped_updates == unusable.skipped
    assert len(loop.state.history) == 1

    loop.observe([report(batch_size=7), unusable])
    assert dict(loop.state.policy.memory) == {"count": 1, "last": 7}
    assert wanted(loop) == 100  # the last report of the call decides, and it has nothing to say


def test_a_policy_without_need_of_the_similarity_is_always_asked():
    loop = planned(Recorder(needs_similarity=False))
    loop.observe([report(similarity=None)])
    assert wanted(loop) == 200
    loop.observe([report(similarity=None, skipped=True)])
    assert wanted(loop) == 200


def test_history_and_clock():
    loop = planned(Recorder())
    reports = [report(0.5, 300), report(None, 200, None, None), report(0.25, 100, 2.0, 500.0, skipped=True, micro_steps=3)]
    records = loop.observe(reports[:2]) + loop.observe(reports[2:])
    assert loop.state.history == records
    assert [r.examples_seen for r in records] == [300, 500, 600]
    assert [r.noise_scale for r in records] == [1000.0, None, 250.0]
    for record, one in zip(records, reports, strict=True):
        for field in set(record._fields) - {"examples_seen", "noise_scale"}:
            assert getattr(record, field) == getattr(one, field)
    assert (loop.state.examples_seen, loop.state.skipped_updates) == (600, 1)
    assert loop.observe([]) == []
    assert loop.state.history == records


def test_schedule_step():
    loop = planned(Recorder(), reference=150)
    loop.state.schedule_offset = 40
    steps = []
    for size in (100, 49, 1, 450, 149):
        loop.observe([report(batch_size=size)])
        steps.append(loop.schedule_step)
    assert steps == [40 + seen // 150 for seen in (100, 149, 150, 600, 749)]


def test_schedule_step_before_the_first_plan():
    loop = ControlLoop(Recorder(), lr_rules.sqrt, None)
    loop.state.schedule_offset = 7
    assert loop.schedule_step == 7
    assert loop.multiplier(512) == 1.0


def test_reference_defaults_to_the_first_planned_batch():
    loop = planned(Recorder(), unit=64)  # the minimum of 100 becomes two micro-steps of 64
    assert loop.state.reference_batch_size == 128
    assert loop.multiplier(512) == pytest.approx(2.0)
    loop.observe([report()] * 1)
    loop.start(1)
    loop.set_unit(50)
    assert loop.state.reference_batch_size == 128

    assert planned(Recorder(), unit=64, reference=256).multiplier(1024) == pytest.approx(2.0)


def test_the_multiplier_uses_the_average_up_to_the_previous_update():
    seen = []

    def rule(batch_size, reference_batch_size, noise_scale):
        seen.append((batch_size, reference_batch_size, noise_scale))
        return 1.0

    loop = planned(sg.FixedBatch(200), rule=rule, reference=100)
    readings = [(1.0, 100.0), (3.0, 900.0), (-9.0, 1.0)]
    for norm, trace in readings:
        loop.multiplier(200)
        loop.observe([report(squared_norm=norm, trace=trace)])
    loop.multiplier(200)
    second = oracles.moving_average([100.0, 900.0], 0.95) / oracles.moving_average([1.0, 3.0], 0.95)
    assert seen == [(200, 100, None), (200, 100, 100.0), (200, 100, pytest.approx(second)), (200, 100, math.inf)]


def test_the_rules_return_is_checked():
    with pytest.raises(ValueError, match="learning-rate rule returned -1"):
        planned(Recorder(), rule=lambda *_: -1).multiplier(100)


@pytest.mark.parametrize(("size", "plan"), [(1000, BatchPlan(16, 1024)), (990, BatchPlan(15, 960)), (100, BatchPlan(2, 128))])
def test_set_batch_size_rounds_to_what_is_feasible(caplog, size, plan):
    loop = planned(Recorder(), unit=64)
    with caplog.at_level(logging.INFO, logger="tf_simigrad"):
        loop.set_batch_size(size)
    assert loop.plan == plan
    assert wanted(loop) == size
    assert f"set_batch_size({size}): {plan.micro_steps} micro-steps, {plan.batch_size} examples." in caplog.text
    loop.observe([report()])
    assert wanted(loop) == size + 100


def test_set_batch_size_before_the_unit_is_known():
    loop = ControlLoop(Recorder(), lr_rules.sqrt, None)
    loop.set_batch_size(500)
    assert not loop.is_planned
    loop.start(1)
    loop.set_unit(100)
    assert loop.plan == BatchPlan(5, 500)


@pytest.mark.parametrize("size", [99, 10_001, 0, -100, 200.0, True, None, "200"])
def test_bad_sizes_are_refused_and_change_nothing(size):
    loop = planned(Recorder())
    with pytest.raises(ValueError, match=r"set_batch_size\(.*\): .*whole number .* within 100 to 10000"):
        loop.set_batch_size(size)
    assert wanted(loop) == 100
    assert loop.plan == BatchPlan(1, 100)


def test_a_fixed_batch_takes_any_size_and_keeps_it():
    loop = planned(sg.FixedBatch(128), unit=64)
    for size, steps in ((640, 10), (1, 1), (96, 2)):
        loop.set_batch_size(size)
        loop.observe([report(batch_size=64)])
        assert loop.plan == BatchPlan(steps, 64 * steps)


@pytest.mark.parametrize("size", [1.5, True, None, "64", 0, -5])
def test_a_fixed_batch_refuses_what_is_no_whole_number(size):
    with pytest.raises(ValueError, match="set_batch_size"):
        planned(sg.FixedBatch(128), unit=64).set_batch_size(size)


def test_no_plan_before_the_unit_is_known():
    loop = ControlLoop(Recorder(), lr_rules.sqrt, None)
    assert not loop.is_planned
    assert not loop.is_full
    with pytest.raises(ValueError, match="no plan before the first dataset element"):
        _ = loop.plan


def test_an_infeasible_unit_is_an_error():
    with pytest.raises(ValueError, match="max_batch_size=10000 is too small"):
        planned(Recorder(), unit=10_001)
    with pytest.raises(ValueError, match="max_batch_size=10000 is too small: .* 2 micro-steps"):
        planned(Recorder(), unit=5001, min_micro_steps=2)


def test_what_raises_the_minimum_is_said(caplog):
    loop = ControlLoop(Recorder(), lr_rules.sqrt, None)
    loop.start(4, "of the reason")
    with caplog.at_level(logging.INFO, logger="tf_simigrad"):
        loop.set_unit(50)
    assert "No update has fewer than 200 examples, because of the reason." in caplog.text
    assert "(of the reason)" in caplog.text and loop.plan.batch_size == 200


@pytest.mark.parametrize(("unit", "warned"), [(100, False), (50, False), (64, True)])
def test_a_start_that_is_rounded_is_said(caplog, unit, warned):
    with caplog.at_level(logging.WARNING, logger="tf_simigrad"):
        planned(Recorder(), unit=unit)
    assert ("starts at 128 instead of 100 examples: the nearest that is a multiple of 64" in caplog.text) == warned


def test_larger_elements_than_the_first_raise_the_unit(caplog):
    loop = planned(sg.FixedBatch(320), unit=64)
    loop.observe([report(batch_size=5 * 64, micro_steps=5), report(batch_size=64 + 10, micro_steps=2)])
    assert loop.plan == BatchPlan(5, 320) and "differ in size" not in caplog.text
    loop.observe([report(batch_size=401, micro_steps=5)])
    assert loop.plan == BatchPlan(4, 324) and "differ in size" in caplog.text


def test_full_when_the_micro_steps_are_there():
    loop = planned(Recorder(min_batch_size=300))
    full = []
    for pending in range(5):
        loop.state.pending_steps = pending
        full.append(loop.is_full)
    assert full == [False, False, False, True, True]


def test_a_new_fit_plans_anew_and_keeps_the_state():
    loop = planned(Recorder(), unit=100, min_micro_steps=1)
    loop.observe([report()])
    loop.start(min_micro_steps=5)
    assert not loop.is_planned
    loop.set_unit(50)
    assert loop.plan == BatchPlan(5, 250)
    assert wanted(loop) == 200
    assert len(loop.state.history) == 1


def random_reports(seed, count):
    rng = random.Random(seed)
    return [
        report(rng.choice([None, rng.uniform(-1, 1)]), rng.randrange(1, 101), rng.gauss(1, 1), rng.expovariate(1e-3),
               rng.random() < 0.1, rng.randrange(1, 9))
        for _ in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "policy",
    [sg.SimiGrad(0.2, 100, 10_000), sg.NoiseScale(0.2, 100, 10_000), sg.FixedBatch(300), Recorder()],
    ids=lambda policy: type(policy).__name__,
)
@pytest.mark.parametrize("updates", [0, 1, 60])
def test_json_brings_back_every_later_decision(policy, updates):
    loop = planned(policy, rule=lr_rules.adascale, reference=100)
    for one in random_reports(1, updates):
        loop.observe([one])
    loop.state.pending_steps, loop.state.schedule_offset, loop.state.discarded_examples = 3, 11, 17

    text = json.dumps(loop.state.to_json(), allow_nan=False)
    restored = ControlLoop(policy, lr_rules.adascale, None)
    restored.state = LoopState.from_json(json.loads(text))
    restored.start(1)
    restored.set_unit(100)

    assert restored.state == loop.state
    assert json.dumps(restored.state.to_json()) == text
    assert restored.plan == loop.plan
    for one in random_reports(2, 60):
        assert restored.multiplier(777) == loop.multiplier(777)
        assert restored.observe([one]) == loop.observe([one])
        restored.restart()
        loop.restart()
        assert (restored.plan, restored.schedule_step) == (loop.plan, loop.schedule_step)
        assert wanted(restored) == wanted(loop)
    assert restored.state == loop.state


def test_a_plan_holds_until_its_accumulation_is_over():
    """Only so do all workers change at the same place."""
    loop = planned(Recorder(), unit=100)
    loop.state.pending_steps = 1
    loop.set_batch_size(300)
    assert loop.plan == BatchPlan(1, 100)
    loop.restart()
    assert loop.plan == BatchPlan(3, 300) and loop.state.pending_steps == 0
    loop.set_batch_size(200)
    assert loop.plan == BatchPlan(2, 200)


def test_json_is_made_of_plain_values():
    loop = planned(sg.NoiseScale(0.2, 100, 10_000))
    loop.observe(random_reports(4, 5))

    def check(value):
        if isinstance(value, dict):
            assert all(type(key) is str for key in value)
            list(map(check, value.values()))
        elif isinstance(value, list):
            list(map(check, value))
        else:
            assert value is None or type(value) in (int, float, str, bool)
            assert not isinstance(value, float) or math.isfinite(value)

    saved = loop.state.to_json()
    check(saved)
    assert set(saved) == {field.name for field in dataclasses.fields(LoopState)}
    saved["policy"]["memory"]["weight"] = 99.0
    saved["history"].clear()
    assert loop.state.policy.memory["weight"] != 99.0
    assert len(loop.state.history) == 5
