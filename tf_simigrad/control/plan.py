"""Integers: a wanted batch size -> the micro-steps that come nearest to it within the bounds."""

from tf_simigrad.records import BatchPlan

_MOST_MICRO_STEPS = 2**31 - 1  # they are counted in int32 in the graph


def feasible_plan(
    wanted_batch_size: float,
    unit_examples: int,
    min_batch_size: int,
    max_batch_size: int,
    min_micro_steps: int = 1,
    reason: str = "",
    fixed: bool = False,
) -> BatchPlan:
    """The feasible batch size nearest to the wanted one.

    Feasible are the multiples of ``unit_examples`` within the bounds; the clamp comes after the rounding, so a bound is
    never overshot by it.

    Args:
        wanted_batch_size: Examples per update over all replicas, any positive number.
        unit_examples: Examples that one micro-step adds over all replicas (micro-batch size times replicas).
        min_batch_size: Lower bound in examples.
        max_batch_size: Upper bound in examples.
        min_micro_steps: The fewest micro-steps that an update may have.
        reason: What needs them, for messages.
        fixed: Whether the bounds are one wished-for size rather than limits: then the nearest multiple of the unit, from
            either side.

    Returns:
        The plan.

    Raises:
        ValueError: If no multiple of the unit lies within the bounds with enough micro-steps.
    """
    if wanted_batch_size / unit_examples >= _MOST_MICRO_STEPS:
        raise ValueError(
            f"A batch size of {wanted_batch_size:g} examples takes over {_MOST_MICRO_STEPS} micro-steps of {unit_examples}. "
            "Choose a smaller batch size, or larger dataset elements."
        )
    nearest = max(round_half_up(wanted_batch_size / unit_examples), 1)
    if fixed:
        if nearest < min_micro_steps:
            raise ValueError(
                f"A batch size of {wanted_batch_size:g} examples has {nearest} micro-steps of {unit_examples}, and "
                f"{min_micro_steps} are needed, because {reason}. Batch the dataset into smaller elements, or pass "
                f"{min_micro_steps * unit_examples} examples or more."
            )
        return BatchPlan(micro_steps=nearest, batch_size=nearest * unit_examples)
    fewest = max(-(-min_batch_size // unit_examples), min_micro_steps)
    most = max_batch_size // unit_examples
    if fewest > most:
        raise ValueError(_infeasible(unit_examples, min_batch_size, max_batch_size, min_micro_steps, reason))
    steps = min(max(nearest, fewest), most)
    return BatchPlan(micro_steps=steps, batch_size=steps * unit_examples)


def round_half_up(value: float) -> int:
    """The nearest whole number; halves go up (Python's ``round`` takes them to the even neighbour)."""
    return int(value + 0.5)


def _infeasible(unit: int, low: int, high: int, min_micro_steps: int, reason: str) -> str:
    if unit * min_micro_steps > high:
        need = (
            f"{min_micro_steps} micro-steps of {unit} examples" if min_micro_steps > 1 else f"one micro-step of {unit} examples"
        )
        return (
            f"max_batch_size={high} is too small: one update needs at least {need} over all replicas"
            + (f", because {reason}" if reason else "")
            + f". Raise max_batch_size to {unit * min_micro_steps} or more, or batch the dataset into smaller elements."
        )
    return (
        f"No batch size between min_batch_size={low} and max_batch_size={high} is a multiple of {unit}, the examples in one "
        "dataset element. Widen the bounds or choose another element size."
    )
