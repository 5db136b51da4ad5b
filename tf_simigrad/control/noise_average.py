"""Moving averages of the two moments whose ratio is the gradient noise scale."""

import math
from collections.abc import Mapping

from tf_simigrad.records import UpdateReport

DECAY = 0.95  # 20 updates of memory: SIMIGRAD simulations halve the spread of ln B against the unsmoothed rule

EMPTY: Mapping[str, float] = {"squared_gradient_norm": 0.0, "noise_trace": 0.0, "weight": 0.0}


def updated(average: Mapping[str, float], report: UpdateReport, decay: float = DECAY) -> dict[str, float]:
    """The averages after one more report; unchanged by a report without both moments.

    The squared gradient norm and the trace are averaged separately: the mean of their ratio is biased, and undefined
    when one reading of the norm is not positive.

    Args:
        average: ``EMPTY`` or what this function returned before.
        report: The report of one update.
        decay: Weight kept of the past, in [0, 1).

    Returns:
        A new mapping with the same keys.
    """
    if report.squared_gradient_norm is None or report.noise_trace is None:
        return dict(average)
    return {
        "squared_gradient_norm": decay * average["squared_gradient_norm"] + (1 - decay) * report.squared_gradient_norm,
        "noise_trace": decay * average["noise_trace"] + (1 - decay) * report.noise_trace,
        "weight": decay * average["weight"] + (1 - decay),
    }


def noise_scale(average: Mapping[str, float]) -> float | None:
    """The noise scale in examples of the averages; None before a report, infinite where the gradient is lost in noise.

    It is lost where the averaged norm is not positive and the averaged trace is; where neither is, nothing is known. The bias
    correction (division of both averages by ``weight``) cancels in the ratio.
    """
    norm, trace = average["squared_gradient_norm"], average["noise_trace"]
    if norm > 0.0:
        return trace / norm
    return math.inf if trace > 0.0 else None
