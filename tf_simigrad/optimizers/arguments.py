"""Checks of the arguments of an optimizer."""

import math
import numbers
from collections.abc import Sequence
from typing import Any

from tf_simigrad.compat.optimizer_base import KERAS_3, KERAS_ARGUMENTS, Schedule
from tf_simigrad.core.trust_ratio import Bounds


def number(owner: str, name: str, value: Any, low: float = 0.0, above: bool = False, below: float = math.inf) -> float:
    """The value as a float.

    Args:
        owner: Whose argument it is, for the message.
        name: The argument's name.
        value: What was passed.
        low: The smallest number allowed.
        above: Whether even ``low`` is too small.
        below: What the number has to be smaller than.

    Raises:
        ValueError: If it is no such number.
    """
    real = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if not real or value < low or (above and value == low) or value >= below:
        least = f"above {low:g}" if above else f"{low:g} or more"
        most = "" if below == math.inf else f" and below {below:g}"
        raise ValueError(f"{owner}: {name}={value!r} must be a finite number, {least}{most}.")
    return float(value)


def flag(owner: str, name: str, value: Any) -> bool:
    """The value, which has to be True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{owner}: {name}={value!r} must be True or False.")
    return value


def bounds(owner: str, name: str, value: Any) -> Bounds:
    """The value as a pair of floats, or None."""
    if value is None:
        return None
    pair = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2
    if not pair:
        raise ValueError(f"{owner}: {name}={value!r} must be None, or (low, high) such as (0.01, 10.0).")
    low, high = number(owner, f"{name}[0]", value[0]), number(owner, f"{name}[1]", value[1], above=True)
    if low > high:
        raise ValueError(f"{owner}: {name}={value!r} must be (low, high) with low no larger than high.")
    return low, high


def learning_rate(owner: str, value: Any) -> Any:
    """The value: a number as a float, a schedule as it is, under Keras 3 also a callable."""
    if isinstance(value, Schedule) or (KERAS_3 and callable(value)):
        return value
    if not isinstance(value, numbers.Real):
        callables = ", or a callable without arguments" if KERAS_3 else ""
        raise ValueError(
            f"{owner}: learning_rate={value!r} must be a number, 0 or more, or a "
            f"tf.keras.optimizers.schedules.LearningRateSchedule{callables}."
        )
    return number(owner, "learning_rate", value)


def of_keras(owner: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, which have to be those of the Keras base class; its clipping ignores what is not positive."""
    arguments = {name: value for name, value in arguments.items() if name != "is_legacy_optimizer"}
    unknown = sorted(set(arguments) - KERAS_ARGUMENTS)
    if unknown:
        raise ValueError(
            f"{owner} has no argument {', '.join(unknown)}. Beside its own it takes those of Keras: "
            f"{', '.join(sorted(KERAS_ARGUMENTS))}."
        )
    for name in ("clipnorm", "clipvalue", "global_clipnorm"):
        if arguments.get(name) is not None:
            number(owner, name, arguments[name], above=True)
    return arguments
