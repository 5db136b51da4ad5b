"""The benchmark counts the right bytes, times what it says it does, prints one JSON object, and refuses in one line."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tools.command_line import refused
from tools import benchmark

pytestmark = pytest.mark.one_keras

ROOT = Path(__file__).resolve().parents[2]
COMMON = {"ratio", "replicas", "keras", "versions"}


def result(*arguments):
    command = [sys.executable, "-m", "tools.benchmark", *map(str, arguments), "--keras", "keras3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("replicas", [2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_an_update_sends_what_a_ring_all_reduce_sends(replicas):
    found = result("wire", "--replicas", replicas)
    assert set(found) == COMMON | {"bytes", "plain_bytes", "gradient_elements", "vrgd", "operations"}
    assert found["replicas"] == replicas
    # Biases and all: 4 inputs, two layers 2,048 wide, one output.
    assert found["gradient_elements"] == 5 * 2048 + 2049 * 2048 + 2049
    assert found["plain_bytes"] == pytest.approx(8 * found["gradient_elements"] * (replicas - 1) / replicas)
    assert found["bytes"] == sum(operation["bytes"] for operation in found["operations"])
    assert found["ratio"] == found["bytes"] / found["plain_bytes"]
    assert 1 <= found["ratio"] < 1.001


@pytest.mark.parametrize(("replicas", "groups", "times"), [(4, "replicas", 1.0), (2, "micro_steps", 1.5)])
def test_an_update_with_vrgd_sends_as_much_or_half_as_much_again(replicas, groups, times):
    found = result("wire", "--replicas", replicas, "--vrgd", groups)
    assert found["vrgd"] == groups
    assert times <= found["ratio"] < times + 0.001


@pytest.mark.skipif(not Path("/proc/net/dev").is_file(), reason="the counters of the interface are Linux's")
def test_what_real_workers_send_is_read_from_the_loopback_interface():
    found = result("wire", "--workers", "--elements", 300_000, "--updates", 3)
    assert set(found) == COMMON - {"replicas"} | {
        "adaptive_bytes", "plain_bytes", "all_reduce_bytes", "gradient_elements", "updates", "idle_bytes_per_second", "workers"
    }  # fmt: skip
    assert (found["workers"], found["updates"]) == (2, 3)
    assert found["all_reduce_bytes"] == pytest.approx(4 * found["gradient_elements"])
    # Other tests may use the interface meanwhile, which adds to either; what was sent cannot be less.
    assert min(found["adaptive_bytes"], found["plain_bytes"]) > 0.99 * found["all_reduce_bytes"]
    assert found["ratio"] == found["adaptive_bytes"] / found["plain_bytes"]


@pytest.fixture
def wire(tf):
    from tools import benchmark_wire

    return benchmark_wire


@pytest.fixture
def collective(tf):
    """``collective(name, tensor, group_size)``: one of them in the graph that is being traced, which is never run."""

    def made(name, tensor, group_size=2):
        operation = getattr(tf.raw_ops, f"Collective{name}V2")
        merge = {"merge_op": "Add", "final_op": "Id"} if name == "Reduce" else {}
        return operation(input=tensor, group_size=group_size, group_key=1, instance_key=1, ordering_token=[], **merge)

    return made


def messages(tf, wire, body, specs=(), replicas=2):
    graph = tf.function(body, input_signature=specs).get_concrete_function().graph
    return wire.of_one_replica(wire.collectives(graph), replicas)


def test_bytes_of_each_algorithm(tf, wire, collective):
    def body():
        for device in ("CPU:0", "CPU:1", "CPU:2", "CPU:3"):
            with tf.device(device):
                collective("AllToAll", tf.zeros([4, 10]), 4)
                collective("Gather", tf.zeros([1, 10]), 4)
                collective("Reduce", tf.zeros([6, 2], tf.float16), 4)

    # To three others: ten float32 each; ten float32 around the ring; 12 float16 around it twice in four parts.
    assert [m.bytes for m in messages(tf, wire, body, replicas=4)] == [3 * 10 * 4, 3 * 10 * 4, 2 * 3 * 3 * 2]


def test_functions_and_branches_are_searched_and_the_larger_branch_counts(tf, wire, collective):
    gather = tf.function(lambda: collective("Gather", tf.zeros([1, 7])))

    def body(flag):
        for device in ("CPU:0", "CPU:1"):
            with tf.device(device):
                gather()
                tf.cond(flag, lambda: gather(), lambda: collective("Gather", tf.zeros([1, 5])))

    found = messages(tf, wire, body, [tf.TensorSpec([], tf.bool)])
    assert [m.shape for m in found] == [(1, 7), (1, 7)]


def test_what_cannot_be_counted_is_refused(tf, wire, collective):
    unknown = [tf.TensorSpec([None, 3])]
    with pytest.raises(ValueError, match=r"CollectiveGatherV2 of shape \(None, 3\) over 2 replicas: expected static ones"):
        messages(tf, wire, lambda x: collective("Gather", x), unknown)

    def loop():
        return tf.while_loop(lambda i: i < 3.0, lambda i: collective("Reduce", i[None])[0], [0.0])

    with pytest.raises(ValueError, match="a collective in a loop"):
        messages(tf, wire, loop)

    def broadcast():
        keys = {"group_size": 2, "group_key": 1, "instance_key": 1}
        return tf.raw_ops.CollectiveBcastSendV2(input=tf.zeros([3]), **keys)

    with pytest.raises(ValueError, match="what a CollectiveBcastSendV2 sends is not known"):
        messages(tf, wire, broadcast)


def test_replicas_that_differ_are_refused(tf, wire, collective):
    def body():
        for device, size in (("CPU:0", 3), ("CPU:1", 4)):
            with tf.device(device):
                collective("Gather", tf.zeros([1, size]))

    with pytest.raises(ValueError, match="expected the same collectives on each of 2 devices"):
        messages(tf, wire, body)
    with pytest.raises(ValueError, match="expected the same collectives on each of 2 devices, found {}"):
        messages(tf, wire, lambda: tf.constant(0.0))


@pytest.mark.parametrize(("replicas", "micro_steps"), [(1, 2), (2, 1)])
def test_times_per_example(replicas, micro_steps):
    found = result("overhead", "--replicas", replicas, "--blocks", 2, "--steps", 4, "--examples", 4)
    assert set(found) == COMMON | {
        "ratio_interval",
        "adaptive_ms_per_example",
        "plain_ms_per_example",
        "plain_ms_per_step",
        "cpu_ratio",
        "cpu_ratio_interval",
        "blocks",
        "steps",
        "micro_steps",
        "examples_per_element",
        "cores",
    }
    assert (found["replicas"], found["micro_steps"], found["blocks"], found["steps"]) == (replicas, micro_steps, 2, 4)
    for ratio in ("ratio", "cpu_ratio"):
        low, high = found[f"{ratio}_interval"]
        assert 0 < low <= found[ratio] <= high
    assert found["plain_ms_per_step"] == pytest.approx(4 * found["plain_ms_per_example"])


def test_rows_are_timed_beside_the_dense_gradient():
    found = result("rows", "--table-rows", 300, "--blocks", 2, "--steps", 2, "--examples", 8)
    assert set(found) == COMMON | {
        "ratio_interval", "cpu_ratio", "cpu_ratio_interval", "rows_ms_per_example", "dense_ms_per_example", "blocks", "steps",
        "micro_steps", "examples_per_element", "cores", "table_rows", "table_width", "touched_rows",
    }  # fmt: skip
    assert (found["table_rows"], found["blocks"], found["micro_steps"]) == (300, 2, 2)
    assert 1 <= found["touched_rows"] <= 32
    assert found["ratio"] > 0 and min(found["rows_ms_per_example"], found["dense_ms_per_example"]) > 0


@pytest.fixture
def overhead(tf):
    from tools import benchmark_overhead

    return benchmark_overhead


def test_the_ratio_is_that_of_pairs(overhead):
    plain, adaptive = [(1.0, 2.0), (2.0, 3.0), (4.0, 5.0)], [(1.1, 4.0), (2.2, 6.0), (4.4, 10.0)]
    found = overhead.summarise({"plain": plain, "adaptive": adaptive}, seed=0)
    assert [found["ratio"], *found["ratio_interval"]] == pytest.approx([1.1] * 3)
    assert [found["cpu_ratio"], *found["cpu_ratio_interval"]] == pytest.approx([2.0] * 3)
    assert (found["plain_ms_per_example"], found["adaptive_ms_per_example"]) == (2.0, 2.2)


def test_the_interval_is_that_of_the_median(overhead):
    ratios = np.random.default_rng(1).normal([1.02, 1.5], [0.01, 0.1], size=(100, 2))
    found = overhead.summarise({"plain": np.ones((100, 2)), "adaptive": ratios}, seed=0)
    for name, deviation in (("ratio", 0.01), ("cpu_ratio", 0.1)):
        low, high = found[f"{name}_interval"]
        # The standard error of a median of n normal values is sqrt(pi / 2 / n) of their deviation.
        assert high - low == pytest.approx(2 * 1.96 * deviation * np.sqrt(np.pi / 200), rel=0.5)
        assert low < found[name] < high
    assert found == overhead.summarise({"plain": np.ones((100, 2)), "adaptive": ratios}, seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: command"),
        (["speed"], "invalid choice: 'speed'"),
        (["wire", "--replicas", 1], "--replicas 1: expected 2 or more"),
        (["wire", "--replicas", "two"], "invalid int value: 'two'"),
        (["wire", "--elements", 0], "--elements 0: expected 1 or more"),
        (["wire", "--workers", "--updates", 0], "--updates 0: expected 1 or more"),
        (["wire", "--workers", "--vrgd", "replicas"], "--vrgd replicas: counted in the traced graph only"),
        (["wire", "--keras", "keras2"], "invalid choice: 'keras2'"),
        (["wire", "--blocks", 3], "unrecognized arguments: --blocks 3"),
        (["overhead", "--replicas", 0], "--replicas 0: expected 1 or more"),
        (["overhead", "--blocks", 1], "--blocks 1: expected 2 or more"),
        (["overhead", "--steps", 0], "--steps 0: expected 1 or more"),
        (["overhead", "--steps", 3], "--steps 3: expected an even number: with one replica an update takes two"),
        (["rows", "--table-rows", 1], "--table-rows 1: expected 2 or more"),
        (["rows", "--replicas", 3], "--examples 2048: expected a multiple of --replicas 3"),
        (["overhead", "--replicas", 5], "--examples 192: expected a multiple of --replicas 5"),
    ],
)
def test_what_is_wrong_is_one_line(capsys, arguments, message):
    assert message in refused(benchmark.main, capsys, *arguments)
