"""The vector that an update returns: entries of ``REPORT``, micro-steps of the workers, fingerprints of the replicas' data."""

import math

import numpy as np

from tf_simigrad.records import UpdateReport
from tf_simigrad.train.update import REPORT


def decoded(vector: np.ndarray, micro_steps: int) -> UpdateReport:
    """The report of one update; NaN becomes None.

    Args:
        vector: What ``Update`` returned.
        micro_steps: Micro-steps of the update.
    """
    entries = dict(zip(REPORT, (float(v) for v in vector), strict=False))
    measured = {
        key: value if math.isfinite(value) else None
        for key, value in entries.items()
        if key in ("similarity", "squared_gradient_norm", "noise_trace")
    }
    return UpdateReport(
        batch_size=int(entries["examples"]),
        micro_steps=micro_steps,
        learning_rate=entries["learning_rate"],
        effective_learning_rate=entries["effective_learning_rate"],
        skipped=entries["finite"] == 0.0,
        **measured,
    )


def of_workers(vector: np.ndarray, workers: int) -> tuple[np.ndarray, np.ndarray]:
    """Micro-steps of each worker [workers], and fingerprint of each replica's data [replicas]."""
    micro_steps, fingerprints = np.split(vector[len(REPORT) :], [workers])
    return micro_steps, fingerprints
