"""Policies: what an update measured -> the batch size that is wanted next. Plain Python, no TensorFlow."""

import abc
import logging
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tf_simigrad.control import noise_average
from tf_simigrad.records import UpdateReport

_LOG = logging.getLogger("tf_simigrad")


@dataclass(frozen=True)
class PolicyState:
    """All that a policy remembers from one update to the next.

    Attributes:
        wanted_batch_size: Examples per update over all replicas, within the bounds but not rounded to what is feasible:
            fed back rounded, a step of 10 % of a coarse batch would never add up.
        memory: Whatever else the policy carries, as names and numbers, so that a checkpoint can hold it.
    """

    wanted_batch_size: float
    memory: Mapping[str, float] = field(default_factory=dict)


class Policy(abc.ABC):
    """Decides the batch size from what the updates measure. Subclass it to bring your own rule.

    A policy has no state of its own: ``next_state`` takes a state and returns one, so a run can be replayed from its log.
    A subclass sets ``min_batch_size``, ``max_batch_size`` and, if it differs from the minimum, ``initial_batch_size``
    (all in examples per update over all replicas).

    Example:

    ```python
    import dataclasses

    @dataclasses.dataclass(frozen=True)
    class DoubleEvery(sg.Policy):
        updates: int
        min_batch_size: int
        max_batch_size: int
        initial_batch_size: int | None = None
        needs_similarity = False

        def next_state(self, state, report):
            count = state.memory.get("count", 0) + 1
            grow = 2 if count % self.updates == 0 else 1
            wanted = min(self.max_batch_size, state.wanted_batch_size * grow)
            return dataclasses.replace(state, wanted_batch_size=wanted, memory={"count": count})

    policy = DoubleEvery(updates=100, min_batch_size=128, max_batch_size=1024)
    assert policy.initial_state().wanted_batch_size == 128
    ```
    """

    min_batch_size: int
    max_batch_size: int
    initial_batch_size: int | None = None
    needs_similarity: bool = True
    """Whether the plan must make the similarity measurable: two micro-steps at least where there is one replica."""

    def initial_state(self) -> PolicyState:
        """The state before the first update.

        Returns:
            A state whose wanted batch size is ``initial_batch_size``, or the minimum where that is None.
        """
        start = self.min_batch_size if self.initial_batch_size is None else self.initial_batch_size
        return PolicyState(wanted_batch_size=int(start))

    @abc.abstractmethod
    def next_state(self, state: PolicyState, report: UpdateReport) -> PolicyState:
        """The state after one update that measured something and was not skipped.

        Args:
            state: The state before.
            report: What the update measured.

        Returns:
            The state after, its wanted batch size within the bounds.
        """


def check_bounds(policy: Policy) -> None:
    """Raises a ValueError unless the policy's bounds and initial batch size are usable."""
    name = type(policy).__name__
    low: Any = getattr(policy, "min_batch_size", None)
    high: Any = getattr(policy, "max_batch_size", None)
    start: Any = getattr(policy, "initial_batch_size", None)
    if not is_count(high):
        raise ValueError(
            f"{name} needs an upper bound: max_batch_size={high!r} is not a whole number of examples. Where the noise scale "
            "exceeds the number of training examples the similarity falls as the batch grows, and only a bound stops it. "
            "Pass the largest batch you would run, for example max_batch_size=32_768."
        )
    if not is_count(low):
        raise ValueError(f"{name}: min_batch_size={low!r} must be a whole number of examples, 1 or more.")
    if low > high:
        raise ValueError(f"{name}: min_batch_size={low} is larger than max_batch_size={high}. Swap or widen the bounds.")
    if start is not None and not (is_count(start) and low <= start <= high):
        raise ValueError(f"{name}: initial_batch_size={start!r} must be a whole number within the bounds {low} to {high}.")


def is_count(value: object) -> bool:
    """Whether the value is a whole number of examples, 1 or more; a bool is not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1


def _clamped(policy: Policy, batch_size: float) -> float:
    return float(min(max(batch_size, policy.min_batch_size), policy.max_batch_size))


@dataclass(frozen=True)
class _TowardsTarget(Policy):
    """What the policies that hold a target similarity have in common: their arguments, and the check of these."""

    target_similarity: float
    min_batch_size: int
    max_batch_size: int
    initial_batch_size: int | None = None

    def __post_init__(self) -> None:
        target = self.target_similarity
        if not (isinstance(target, numbers.Real) and math.isfinite(target) and 0 < target < 1):
            raise ValueError(
                f"{type(self).__name__}: target_similarity={target!r} must lie strictly between 0 and 1. At 0 the batch would "
                "shrink to nothing, at 1 it would grow to its bound; 0.2 suits images, 0.8 BERT pretraining."
            )
        check_bounds(self)


@dataclass(frozen=True)
class SimiGrad(_TowardsTarget):
    """The published rule: grow by a tenth when the gradients are too noisy, shrink by a tenth when they are not.

    ``similarity < target: B <- max(B + 1, int(1.1 B))``, ``similarity > target: B <- min(B - 1, int(0.9 B))``, then the
    bounds. With a noise scale of b examples the rule hovers around ``2 b target / (1 - target)``.

    Args:
        target_similarity: Similarity to hold, strictly between 0 and 1. Larger means larger batches.
        min_batch_size: Lower bound, in examples per update over all replicas.
        max_batch_size: Upper bound, in examples per update over all replicas. Obligatory.
        initial_batch_size: Where to start, in examples. None: at the lower bound.

    Raises:
        ValueError: If the target is not between 0 and 1, or the bounds are unusable.

    Example:

    ```python
    policy = sg.SimiGrad(target_similarity=0.2, min_batch_size=128, max_batch_size=8192)
    assert policy.initial_state().wanted_batch_size == 128
    ```

    References:
        Qin et al., "SimiGrad: Fine-Grained Adaptive Batching for Large Scale Training using Gradient Similarity
        Measurement", NeurIPS 2021. The bounds hold after the clamp and the batch can shrink at any size, unlike in the
        code published with it.
    """

    def next_state(self, state: PolicyState, report: UpdateReport) -> PolicyState:
        """One step of the published rule; unchanged where the similarity is unknown, not finite or on the target."""
        similarity, batch_size = report.similarity, int(state.wanted_batch_size)
        if similarity is None or not math.isfinite(similarity) or similarity == self.target_similarity:
            return state
        if similarity < self.target_similarity:
            wanted = max(batch_size + 1, int(1.1 * batch_size))
        else:
            wanted = min(batch_size - 1, int(0.9 * batch_size))
        return replace(state, wanted_batch_size=int(_clamped(self, wanted)))


@dataclass(frozen=True)
class NoiseScale(_TowardsTarget):
    """A steadier way to the same fixed point: estimate the noise scale, then walk towards the batch size it asks for.

    Keeps bias-corrected moving averages (decay 0.95) of the squared gradient norm and of the covariance trace, never of
    the cosine itself, whose expectation moves with the batch. With b their ratio, the batch wanted is
    ``2 b target / (1 - target)``; it moves by at most a tenth per update, and not at all within a tenth of it.

    Args:
        target_similarity: Similarity to hold, strictly between 0 and 1. Larger means larger batches.
        min_batch_size: Lower bound, in examples per update over all replicas.
        max_batch_size: Upper bound, in examples per update over all replicas. Obligatory.
        initial_batch_size: Where to start, in examples. None: at the lower bound.

    Raises:
        ValueError: If the target is not between 0 and 1, or the bounds are unusable.

    Example:

    ```python
    policy = sg.NoiseScale(target_similarity=0.2, min_batch_size=128, max_batch_size=8192)
    assert policy.batch_size_at(noise_scale=1000.0) == 500.0
    ```

    References:
        McCandlish et al., "An Empirical Model of Large-Batch Training", arXiv 1812.06162, appendix A.1 (the noise scale and
        its unbiased estimate from two batch sizes).
    """

    STEP = 0.1
    DEAD_BAND = 0.1

    def initial_state(self) -> PolicyState:
        """The state before the first update: the initial batch size and empty averages."""
        return replace(super().initial_state(), memory=dict(noise_average.EMPTY))

    def batch_size_at(self, noise_scale: float) -> float:
        """The batch size in examples at which a noise scale of that many examples shows the target similarity."""
        return 2 * noise_scale * self.target_similarity / (1 - self.target_similarity)

    def next_state(self, state: PolicyState, report: UpdateReport) -> PolicyState:
        """Averages the report, then moves the batch size where it is more than a tenth from the one asked for."""
        memory = noise_average.updated(state.memory, report)
        state = replace(state, memory=memory)
        scale = noise_average.noise_scale(memory)
        if scale is None or math.isinf(scale):
            if memory["weight"] > 0:
                _LOG.info(
                    "NoiseScale holds the batch size at %g examples: the averaged squared gradient norm is %.3g, which is "
                    "lost in noise",
                    state.wanted_batch_size,
                    memory["squared_gradient_norm"],
                )
            return state
        ratio = self.batch_size_at(scale) / state.wanted_batch_size
        if abs(ratio - 1) <= self.DEAD_BAND:
            return state
        step = min(max(ratio, 1 - self.STEP), 1 + self.STEP)
        return replace(state, wanted_batch_size=_clamped(self, step * state.wanted_batch_size))


@dataclass(frozen=True)
class FixedBatch(Policy):
    """One batch size for the whole run, made of as many micro-steps as it takes. Everything is still measured and logged.

    Args:
        batch_size: Examples per update over all replicas.

    Raises:
        ValueError: If the batch size is not a whole number of examples.

    Example:

    ```python
    policy = sg.FixedBatch(batch_size=4096)
    assert policy.initial_state().wanted_batch_size == 4096
    ```
    """

    batch_size: int
    needs_similarity = False

    def __post_init__(self) -> None:
        if not is_count(self.batch_size):
            raise ValueError(f"FixedBatch: batch_size={self.batch_size!r} must be a whole number of examples, 1 or more.")

    @property
    def min_batch_size(self) -> int:  # type: ignore[override]
        """The batch size itself."""
        return self.batch_size

    @property
    def max_batch_size(self) -> int:  # type: ignore[override]
        """The batch size itself."""
        return self.batch_size

    def next_state(self, state: PolicyState, report: UpdateReport) -> PolicyState:
        """The same state."""
        return state
