"""What tools.tpu_check prints."""

import pytest

from tools.tpu import report

pytestmark = pytest.mark.one_keras


@pytest.mark.parametrize(
    ("group", "name"),
    [([0, 1], "{0,1}"), (list(range(8)), "{0..7}"), ([4, 5, 6], "{4..6}"), ([0, 2, 4], "{0,2,4}"), ([2, 1, 0], "{2,1,0}")],
)
def test_a_group_is_written_short(group, name):
    assert report.name_of(group) == name


def test_collectives_of_one_kind_and_groups_are_one_line():
    every, halves = [[0, 1, 2, 3]], [[0, 1], [2, 3]]
    one = {"operation": "all-reduce", "groups": every, "bytes": 1e6}
    found = [one, {**one, "bytes": 2e6}, {**one, "groups": halves}]
    programs = {"update": {"collectives": found}, "plain_step": {"error": "no"}}
    assert list(report.collective_lines(programs)) == [
        "update: 2 all-reduce in groups {0..3}, 3.0 MB sent per core",
        "update: 1 all-reduce in groups {0,1} {2,3}, 1.0 MB sent per core",
    ]


def test_what_does_not_fit_is_said_beside_plain_training():
    memory = {"data": 3e6, "code": 1e6, "of_core": 2e6, "fits": False, "plain": {"data": 1e6, "code": 1e6}}
    assert list(report.memory_lines(memory)) == [
        "memory per core:  data 3.0 + code 1.0 = 4.0 MB of 2.0 MB: DOES NOT FIT",
        " plain training:  data 1.0 + code 1.0 = 2.0 MB; the difference is 2.0 + 0.0 MB",
    ]
