"""What workers must agree about, and replicas that share their data."""

import logging
import types

import numpy as np
import pytest

from tf_simigrad.fit import agreement

pytestmark = pytest.mark.one_keras


def test_workers_that_agree_pass():
    agreement.check_micro_steps(np.array([3.0, 3.0, 3.0]))


@pytest.mark.parametrize(("micro_steps", "message"), [
    ([3, 3, 2, 3], r"worker 2 has 2, the others 3"),
    ([1, 5], r"worker 0 has 1, worker 1 has 5\."),
    ([4, 1, 4, 1], r"worker"),
])  # fmt: skip
def test_one_that_does_not_is_named(micro_steps, message):
    with pytest.raises(RuntimeError, match=message):
        agreement.check_micro_steps(np.array(micro_steps, "float32"))


class Said(types.SimpleNamespace):
    """Workers of which the others say what they were made with."""

    def gather(self, values, operation):
        return np.array([values, *self.others], "float32")


def test_fits_alike_pass():
    agreement.check_fit(Said(others=[[7, 2, 1, 0]]), 7, 2, 1, False)
    agreement.check_fit(Said(others=[[0, 2, 1, 0]]), None, 2, 1, False)


@pytest.mark.parametrize(("other", "message"), [
    ([9, 2, 1, 0], r"steps per epoch \(0: unknown\): 7 on worker 0, 9 on worker 1\. Give all of them equally many"),
    ([0, 2, 1, 0], r"7 on worker 0, 0 on worker 1"),
    ([7, 3, 1, 0], r"epochs: 2 on worker 0, 3 on worker 1"),
    ([7, 2, 5, 0], r"steps_per_execution: 1 on worker 0, 5 on worker 1"),
    ([7, 2, 1, 1], r"endless data \(1: yes\): 0 on worker 0, 1 on worker 1"),
])  # fmt: skip
def test_fits_that_would_part_ways_are_refused(other, message):
    with pytest.raises(ValueError, match=message):
        agreement.check_fit(Said(others=[other]), 7, 2, 1, False)


def warnings_of(caplog, rows, updates=3):
    shared = agreement.SharedData(updates)
    with caplog.at_level(logging.WARNING, "tf_simigrad"):
        for row in rows:
            shared.observe(row)
    return [record.getMessage().split(" read identical")[0] for record in caplog.records]


@pytest.mark.parametrize(("rows", "named"), [
    ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], []),
    ([[1.0, 1.0], [3.0, 3.0], [5.0, 5.0]], ["The replicas 0, 1"]),
    ([[1.0, 1.0], [3.0, 3.0], [5.0, 6.0]], []),
    ([[1.0, 1.0], [3.0, 3.0]], []),
    ([[0.0, 0.0]] * 3, []),
    ([[float("nan")] * 2] * 3, []),
    ([[1.0, 2.0, 1.0, 2.0], [3.0, 4.0, 3.0, 4.0], [5.0, 5.0, 5.0, 5.0]], ["The replicas 0, 2", "The replicas 1, 3"]),
    ([[1.0, 1.0]] * 9, ["The replicas 0, 1"]),
])  # fmt: skip
def test_replicas_that_share_their_data_are_named_once(caplog, rows, named):
    assert warnings_of(caplog, rows) == named
