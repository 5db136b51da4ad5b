"""The search for the largest micro-batch, against every size tried one by one."""

import math

import pytest

from tools.tpu.largest import largest

pytestmark = pytest.mark.one_keras


def searched(threshold, start, limit):
    """What is found where sizes up to the threshold fit, and the sizes that were tried."""
    tried = []

    def fits(size):
        tried.append(size)
        return size <= threshold

    return largest(fits, start, limit), tried


def check(threshold, start, limit):
    found, tried = searched(threshold, start, limit)
    best = max((size for size in range(1, limit + 1) if size <= threshold), default=0)
    assert found <= best < found + max(found // 16, 1), "to a sixteenth"
    assert found in (0, *tried)
    assert all(1 <= size <= limit for size in tried)
    assert len(tried) == len(set(tried)), "no size is compiled twice"
    assert len(tried) <= math.log2(limit) + 7


@pytest.mark.parametrize("limit", [1, 2, 3, 16, 17, 100])
def test_every_threshold_from_every_start(limit):
    for threshold in range(limit + 2):
        for start in range(1, limit + 3):
            check(threshold, start, limit)


@pytest.mark.parametrize("start", [1, 7, 32, 1000, 65_536])
def test_large_thresholds(start):
    for threshold in (0, 1, 15, 16, 31, 32, 33, 255, 256, 999, 12_345, 65_535, 65_536, 10**6):
        check(threshold, start, 65_536)


@pytest.mark.parametrize("start", [1, 8, 100, 5000])
def test_nothing_fits(start):
    assert searched(0, start, 1000)[0] == 0


@pytest.mark.parametrize("start", [1, 8, 1000, 5000])
def test_all_fits(start):
    assert searched(10**6, start, 1000)[0] == 1000


@pytest.mark.parametrize("threshold", range(1, 32))
def test_small_sizes_are_found_exactly(threshold):
    assert searched(threshold, 8, 1000)[0] == threshold
