"""The host's side of adaptive training: clock, plan, history. No TensorFlow."""

import logging
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tf_simigrad.control import noise_average
from tf_simigrad.control.plan import feasible_plan
from tf_simigrad.control.policy import FixedBatch, Policy, PolicyState, is_count
from tf_simigrad.core import lr_rules
from tf_simigrad.records import BatchPlan, UpdateRecord, UpdateReport

_LOG = logging.getLogger("tf_simigrad")


@dataclass
class LoopState:
    """What a checkpoint must hold of the loop; numbers and names only.

    Attributes:
        policy: The policy's state.
        policy_name: The class of the policy that the state belongs to.
        noise: Moving averages for the learning-rate rule (``control.noise_average``).
        examples_seen: Examples of all updates so far, skipped ones included.
        pending_steps: Micro-steps accumulated since the last update.
        reference_batch_size: Batch size that the learning rate was tuned for; None until the first plan.
        schedule_offset: The schedule's step when ``examples_seen`` was 0.
        discarded_examples: Examples that were accumulated and never entered an update.
        skipped_updates: Updates whose gradient was not finite.
        history: One record per update.
    """

    policy: PolicyState
    policy_name: str = ""
    noise: Mapping[str, float] = field(default_factory=lambda: dict(noise_average.EMPTY))
    examples_seen: int = 0
    pending_steps: int = 0
    reference_batch_size: int | None = None
    schedule_offset: int = 0
    discarded_examples: int = 0
    skipped_updates: int = 0
    history: list[UpdateRecord] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As numbers, strings, lists and dictionaries."""
        policy = {"wanted_batch_size": self.policy.wanted_batch_size, "memory": dict(self.policy.memory)}
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("policy", "noise", "history")}
        return {**rest, "policy": policy, "noise": dict(self.noise), "history": [list(record) for record in self.history]}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "LoopState":
        """What ``to_json`` was called on."""
        return cls(
            **{
                **saved,
                "policy": PolicyState(saved["policy"]["wanted_batch_size"], dict(saved["policy"]["memory"])),
                "history": [UpdateRecord(*row) for row in saved["history"]],
            }
        )


class ControlLoop:
    """Turns reports into plans: reports, in order -> policy -> plan -> micro-steps, learning-rate multiplier.

    Args:
        policy: The policy, its bounds checked.
        rule: Learning-rate rule.
        reference_batch_size: Batch size that the learning rate was tuned for, in examples; None: that of the first plan.
    """

    def __init__(self, policy: Policy, rule: lr_rules.LearningRateRule, reference_batch_size: int | None) -> None:
        self.policy = policy
        self._is_fixed = isinstance(policy, FixedBatch)
        self._rule = rule
        self.state = LoopState(
            self._checked(policy.initial_state()), type(policy).__name__, reference_batch_size=reference_batch_size
        )
        self._unit_examples: int | None = None
        self._min_micro_steps, self._reason = 1, ""
        self._plan: BatchPlan | None = None
        self._next_plan: BatchPlan | None = None

    def resume(self, state: LoopState) -> None:
        """Goes on from a saved state. Of another policy only the batch size is taken, moved into the bounds of this one."""
        low, high = self.policy.min_batch_size, self.policy.max_batch_size
        wanted = state.policy.wanted_batch_size
        is_other = state.policy_name != self.state.policy_name
        # A FixedBatch has no bounds for its own size, which set_batch_size may have changed; it takes no other policy's.
        inside = wanted if self._is_fixed and not is_other else min(max(wanted, low), high)
        if is_other:
            policy = replace(self.state.policy, wanted_batch_size=inside)
            _LOG.warning("Resumed from a %s: %s begins with %g examples.", state.policy_name, self.state.policy_name, inside)
        else:
            policy = replace(state.policy, wanted_batch_size=inside)
            if inside != wanted:
                _LOG.warning("Resumed at %g examples, moved into the bounds of the policy: %g.", wanted, inside)
        self.state = replace(state, policy=policy, policy_name=self.state.policy_name)

    @property
    def is_planned(self) -> bool:
        """Whether the examples of one micro-step are known, so that there is a plan."""
        return self._next_plan is not None

    @property
    def plan(self) -> BatchPlan:
        """What the update in the making consists of; it changes between updates only, so that all workers change alike."""
        return self._plan or self._newest_plan()

    def _newest_plan(self) -> BatchPlan:
        if self._next_plan is None:
            raise ValueError("There is no plan before the first dataset element of fit has told the micro-batch size.")
        return self._next_plan

    def restart(self) -> None:
        """Begins an accumulation: from here on the newest plan holds."""
        self.state.pending_steps = 0
        self._plan = self._next_plan

    def start(self, min_micro_steps: int, reason: str = "") -> None:
        """Begins a ``fit``: its dataset may have another micro-batch size, its strategy another number of replicas.

        Args:
            min_micro_steps: The fewest micro-steps that an update may have.
            reason: What needs them, for messages.
        """
        self._min_micro_steps, self._reason = min_micro_steps, reason
        self._unit_examples = None
        self._plan = self._next_plan = None

    def set_unit(self, unit_examples: int) -> None:
        """Takes the examples that one micro-step adds over all replicas, and plans.

        Raises:
            ValueError: If no feasible batch size lies within the policy's bounds.
        """
        self._unit_examples = unit_examples
        self._replan()
        if self.state.reference_batch_size is None:
            self.state.reference_batch_size = self.plan.batch_size
        least = self._min_micro_steps * unit_examples
        if self._reason and self.policy.min_batch_size < least:
            _LOG.info("No update has fewer than %d examples, because %s.", least, self._reason)
        wanted, planned = self.state.policy.wanted_batch_size, self.plan.batch_size
        if wanted != planned and not self.state.history:
            _LOG.warning(
                "The batch size starts at %d instead of %g examples: the nearest that is a multiple of %d (one dataset "
                "element), within the bounds, and has %d micro-steps or more%s.",
                planned,
                wanted,
                unit_examples,
                self._min_micro_steps,
                f" ({self._reason})" if self._reason else "",
            )

    def _check_unit(self, report: UpdateReport) -> None:
        """Plans anew, and says so, if the dataset has elements of more examples than the first one had."""
        unit = -(-report.batch_size // report.micro_steps)
        if self._unit_examples is not None and unit > self._unit_examples:
            _LOG.warning(
                "An update of %d micro-steps had %d examples where %d were planned: the dataset's elements differ in size. "
                "Batch sizes are multiples of %d from now on; use elements of equal size to keep them exact.",
                report.micro_steps,
                report.batch_size,
                report.micro_steps * self._unit_examples,
                unit,
            )
            self._unit_examples = unit

    def set_batch_size(self, batch_size: int) -> None:
        """Takes a batch size from the user; see ``AdaptiveBatch.set_batch_size``."""
        low, high = self.policy.min_batch_size, self.policy.max_batch_size
        if not is_count(batch_size) or not (self._is_fixed or low <= batch_size <= high):
            bounds = "1 or more" if self._is_fixed else f"within {low} to {high}, the bounds of the policy"
            raise ValueError(f"set_batch_size({batch_size!r}): expected a whole number of examples, {bounds}.")
        self.state.policy = replace(self.state.policy, wanted_batch_size=int(batch_size))
        if self._unit_examples is not None:
            self._replan()
            _LOG.info("set_batch_size(%d): %d micro-steps, %d examples.", batch_size, *self._newest_plan())

    def _replan(self) -> None:
        if self._unit_examples is None:
            return
        low, high = self.policy.min_batch_size, self.policy.max_batch_size
        plan = feasible_plan(
            self.state.policy.wanted_batch_size,
            self._unit_examples,
            low,
            high,
            self._min_micro_steps,
            self._reason,
            fixed=self._is_fixed,
        )
        if self._next_plan is not None and plan != self._next_plan:
            _LOG.debug(
                "batch size %d -> %d (wanted %g)",
                self._next_plan.batch_size,
                plan.batch_size,
                self.state.policy.wanted_batch_size,
            )
        self._next_plan = plan
        if self.state.pending_steps == 0:
            self._plan = plan

    @property
    def is_full(self) -> bool:
        """Whether the pending micro-steps make an update."""
        return self.is_planned and self.state.pending_steps >= self.plan.micro_steps

    @property
    def schedule_step(self) -> int:
        """The step at which a LearningRateSchedule is evaluated for the coming update."""
        reference = self.state.reference_batch_size
        return self.state.schedule_offset + (self.state.examples_seen // reference if reference else 0)

    def multiplier(self, batch_size: int) -> float:
        """Effective over base learning rate for an update of that many examples."""
        reference = self.state.reference_batch_size or batch_size
        return lr_rules.multiplier(self._rule, batch_size, reference, noise_average.noise_scale(self.state.noise))

    def observe(self, reports: Sequence[UpdateReport]) -> list[UpdateRecord]:
        """Takes the reports of one call of the train function, in order; the batch size moves once at most, from the last.

        A report without a similarity (nothing to compare, or skipped) does not reach the policy.

        Args:
            reports: Possibly none.

        Returns:
            One record per report, which the history has now too.
        """
        records = []
        for index, report in enumerate(reports):
            self._check_unit(report)
            self.state.examples_seen += report.batch_size
            self.state.skipped_updates += report.skipped
            records.append(
                UpdateRecord(
                    self.state.examples_seen,
                    report.batch_size,
                    report.micro_steps,
                    report.similarity,
                    report.noise_scale,
                    report.learning_rate,
                    report.effective_learning_rate,
                    report.skipped,
                )
            )
            if report.skipped or (self.policy.needs_similarity and report.similarity is None):
                continue
            self.state.noise = noise_average.updated(self.state.noise, report)
            after = self._checked(self.policy.next_state(self.state.policy, report))
            if index < len(reports) - 1:
                after = replace(after, wanted_batch_size=self.state.policy.wanted_batch_size)
            self.state.policy = after
        self.state.history += records
        if records:
            self._replan()
        return records

    def _checked(self, state: PolicyState) -> PolicyState:
        """What the policy returned, which may be a user's: a state with a finite size within the bounds, or a ValueError."""
        wanted: Any = getattr(state, "wanted_batch_size", None)
        low, high = self.policy.min_batch_size, self.policy.max_batch_size
        usable = isinstance(wanted, numbers.Real) and math.isfinite(wanted)
        if not isinstance(state, PolicyState) or not usable or not (self._is_fixed or low <= wanted <= high):
            raise ValueError(
                f"{type(self.policy).__name__}.next_state returned {state!r}. Expected a PolicyState whose wanted_batch_size "
                f"is a number within {low} to {high}: dataclasses.replace(state, wanted_batch_size=...)."
            )
        return state
