"""What an update returns, taken apart: the report, what workers and replicas say, what each variable shows."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_simigrad.records import UpdateReport
from tf_simigrad.train.update import REPORT


class Decoded(NamedTuple):
    """The sections of one update's vector.

    Attributes:
        report: What policies see.
        micro_steps: Of each worker [workers].
        fingerprints: Of the data of each replica [replicas].
        logs: Further numbers for the logs: of VRGD, and of each variable where they were asked for.
    """

    report: UpdateReport
    micro_steps: np.ndarray
    fingerprints: np.ndarray
    logs: dict[str, float]


def decoded(vector: np.ndarray, sections: Sequence[int], micro_steps: int, paths: Sequence[str]) -> Decoded:
    """Takes one update's vector apart.

    Args:
        vector: What ``Update`` returned.
        sections: The lengths of its sections.
        micro_steps: Micro-steps of the update.
        paths: Of the trainable variables.
    """
    entries, of_workers, fingerprints, by_variable, vrgd = np.split(vector, np.cumsum(sections)[:-1])
    logs: dict[str, float] = {}
    if len(by_variable):
        similarities, scales = np.split(by_variable, 2)
        logs |= _named("similarity", paths, similarities)
        # What is negative is lost in noise: undefined, as in UpdateReport.
        logs |= _named("noise_scale", paths, np.where(scales > 0, scales, np.nan))
    if len(vrgd):
        logs |= {"vrgd_groups": float(vrgd[0]), "vrgd_multiplier": float(vrgd[1])}
        if len(by_variable):
            logs |= _named("vrgd_multiplier", paths, vrgd[2:])
    return Decoded(_report(entries, micro_steps), of_workers, fingerprints, logs)


def _named(name: str, paths: Sequence[str], values: np.ndarray) -> dict[str, float]:
    return {f"{name}/{path}": float(value) for path, value in zip(paths, values, strict=True)}


def _report(entries: np.ndarray, micro_steps: int) -> UpdateReport:
    """NaN becomes None."""
    named: dict[str, Any] = dict(zip(REPORT, map(float, entries), strict=True))
    measured = {
        key: named[key] if math.isfinite(named[key]) else None for key in ("similarity", "squared_gradient_norm", "noise_trace")
    }
    return UpdateReport(
        batch_size=int(named["examples"]),
        micro_steps=micro_steps,
        learning_rate=named["learning_rate"],
        effective_learning_rate=named["effective_learning_rate"],
        skipped=named["finite"] == 0.0,
        **measured,
    )
