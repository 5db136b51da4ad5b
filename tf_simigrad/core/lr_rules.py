"""Learning-rate rules: batch size -> multiplier of the base learning rate."""

import math
import numbers
from collections.abc import Callable

LearningRateRule = Callable[[int, int, float | None], float]


def sqrt(batch_size: int, reference_batch_size: int, noise_scale: float | None) -> float:
    """Square root of the growth of the batch (SimiGrad, LAMB: Krizhevsky, arXiv 1404.5997)."""
    return math.sqrt(batch_size / reference_batch_size)


def linear(batch_size: int, reference_batch_size: int, noise_scale: float | None) -> float:
    """Growth of the batch (Goyal et al., arXiv 1706.02677)."""
    return batch_size / reference_batch_size


def adascale(batch_size: int, reference_batch_size: int, noise_scale: float | None) -> float:
    """AdaScale's gain: linear where noise dominates, 1 where it does not (Johnson et al., arXiv 2007.05105, eq. 4).

    With b the noise scale in examples, the variance of the gradient at the reference batch is b / reference in units of the
    squared gradient norm, and ``gain = (b / reference + 1) / (b / batch + 1)``. 1 while the noise scale is unknown; linear
    where it is infinite.
    """
    if noise_scale is None:
        return 1.0
    if math.isinf(noise_scale):
        return linear(batch_size, reference_batch_size, noise_scale)
    return (noise_scale / reference_batch_size + 1) / (noise_scale / batch_size + 1)


def none(batch_size: int, reference_batch_size: int, noise_scale: float | None) -> float:
    """1: the learning rate does not follow the batch."""
    return 1.0


RULES: dict[str, LearningRateRule] = {"sqrt": sqrt, "linear": linear, "adascale": adascale, "none": none}


def resolve(rule: str | LearningRateRule) -> LearningRateRule:
    """The rule of that name, or the callable itself.

    Args:
        rule: "sqrt", "linear", "adascale", "none", or ``rule(batch_size, reference_batch_size, noise_scale) -> multiplier``
            (sizes and noise scale in examples; the noise scale is None while unknown, infinite while the gradient is
            lost in noise).

    Returns:
        The callable.

    Raises:
        ValueError: If it is neither.
    """
    if callable(rule):
        return rule
    if isinstance(rule, str) and rule in RULES:
        return RULES[rule]
    raise ValueError(
        f"learning_rate_rule={rule!r} is not known. Pass one of {', '.join(map(repr, RULES))}, or a callable "
        "rule(batch_size, reference_batch_size, noise_scale) -> multiplier."
    )


def multiplier(rule: LearningRateRule, batch_size: int, reference_batch_size: int, noise_scale: float | None) -> float:
    """The rule's multiplier, checked.

    Raises:
        ValueError: If the rule returns anything but a positive finite number.
    """
    value = rule(batch_size, reference_batch_size, noise_scale)
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
        raise ValueError(
            f"The learning-rate rule returned {value!r} for batch_size={batch_size}, "
            f"reference_batch_size={reference_batch_size}, noise_scale={noise_scale}. Expected a positive finite number."
        )
    return float(value)
