"""Every private name by which a replica's program is described and lowered for a TPU exists, and does what is relied on."""

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow
from tensorflow.compiler.xla.service import hlo_pb2
from tensorflow.python.ops import gen_tpu_ops

from tf_simigrad.compat import tpu_description, xla_private

pytestmark = [
    pytest.mark.usefixtures("tf"),
    pytest.mark.skipif(tensorflow.__version__.startswith("2.15."), reason="TensorFlow 2.15 lowers no collective on a CPU"),
]

REPLICAS = 8
ALL = [list(range(REPLICAS))]
HALVES = [[0, 1, 2, 3], [4, 5, 6, 7]]
PAIRS = [[0, 4], [1, 5], [2, 6], [3, 7]]


class Instruction(NamedTuple):
    """What is looked at of one instruction of HLO."""

    opcode: str
    operands: list
    result: list
    groups: list


@pytest.fixture
def strategy(tf):
    return tpu_description.described_strategy(REPLICAS)


@pytest.fixture
def instructions(tf, strategy):
    """``instructions(fn, *shapes)``: those of one replica's program, of float32 arguments of these shapes."""

    def lowered(fn, *shapes):
        specs = tuple(tf.TensorSpec(shape, tf.float32) for shape in shapes)
        serialized = tpu_description.hlo(tpu_description.replica_function(strategy, fn, specs))
        module = hlo_pb2.HloModuleProto.FromString(serialized)
        return [found for computation in module.computations for found in listed(computation)]

    return lowered


def listed(computation):
    by_id = {instruction.id: instruction for instruction in computation.instructions}
    for one in computation.instructions:
        groups = one.collective_device_list.replica_groups or one.replica_groups
        operands = [list(by_id[i].shape.dimensions) for i in one.operand_ids]
        yield Instruction(one.opcode, operands, list(one.shape.dimensions), [list(group.replica_ids) for group in groups])


def only(instructions, opcode):
    (found,) = [instruction for instruction in instructions if instruction.opcode == opcode]
    return found


# ---- xla_private


def jitted(graph):
    """Calls in the graph of functions that XLA is to compile by themselves."""
    return [op for op in graph.get_operations() if op.type.endswith("PartitionedCall") and op.get_attr("_XlaMustCompile")]


def test_a_compiled_function_is_part_of_a_program_that_is_compiled_whole(tf, strategy):
    """``tpu_util.enclosing_tpu_context``: on a TPU no function in the program is to be compiled by itself."""
    double = xla_private.compiled(lambda x: x * 2.0)
    alone = tf.function(double, autograph=False).get_concrete_function(tf.TensorSpec([3]))
    assert len(jitted(alone.graph)) == 1
    assert not jitted(tpu_description.replica_function(strategy, double, (tf.TensorSpec([3]),)).graph)
    np.testing.assert_array_equal(double(tf.constant([1.0, 2.0])), [2.0, 4.0])


def test_the_number_of_a_replica(tf, instructions):
    """``gen_xla_ops.xla_replica_id``."""
    seen = []

    def fn():
        seen.append(xla_private.replica_id())
        return seen[0]

    found = instructions(fn)
    assert [i.opcode for i in found].count("replica-id") == 2, "the context has one too"
    assert (seen[0].dtype, seen[0].shape.as_list()) == (tf.int32, [])


@pytest.mark.parametrize("groups", [ALL, HALVES, PAIRS], ids=["all", "halves", "pairs"])
def test_a_sum_over_groups(instructions, groups):
    """``gen_xla_ops.xla_all_reduce``."""
    found = instructions(lambda x: xla_private.all_reduce_sum(x, groups), [5, 3])
    assert only(found, "all-reduce") == ("all-reduce", [[5, 3]], [5, 3], groups)
    assert "add" in [i.opcode for i in found]


@pytest.mark.parametrize("groups", [ALL, HALVES, PAIRS], ids=["all", "halves", "pairs"])
def test_rows_go_to_the_replicas_of_a_group(instructions, groups):
    """``gen_xla_ops.xla_call_module``, of a module with ``stablehlo.all_to_all``."""
    shape = [len(groups[0]), 5, 3]
    found = only(instructions(lambda x: xla_private.all_to_all(x, groups), shape), "all-to-all")
    assert found == ("all-to-all", [shape], shape, groups)


@pytest.mark.parametrize("groups", [ALL, HALVES, PAIRS], ids=["all", "halves", "pairs"])
def test_shards_are_gathered_in_a_group(instructions, groups):
    """``gen_xla_ops.xla_call_module``, of a module with ``stablehlo.all_gather``."""
    found = only(instructions(lambda x: xla_private.all_gather(x, groups), [2, 5]), "all-gather")
    assert found == ("all-gather", [[2, 5]], [2 * len(groups[0]), 5], groups)


# ---- tpu_description


def test_the_strategy_is_one_of_a_tpu(tf, strategy):
    """``TPUSystemMetadata``, ``_tpu_devices``: TPUStrategy takes a described system for one."""
    assert isinstance(strategy, tf.distribute.TPUStrategy)
    assert strategy.num_replicas_in_sync == REPLICAS


def test_a_variable_has_the_part_of_one_replica(tf, strategy):
    """``_enable_packed_variable_in_eager_mode``, ``_tpu_devices``."""
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0])
    assert isinstance(variable, tf.distribute.DistributedValues)
    (part,) = variable.values
    assert part.device.endswith("CPU:0")
    assert variable.handle is part.handle
    np.testing.assert_array_equal(part.numpy(), [1.0, 2.0])


@pytest.mark.parametrize(("kind", "rows"), [("nothing", 10_000_000), ("memory", 10_000)])
def test_large_variables_without_values(tf, kind, rows):
    """``_create_variable``, ``UninitializedVariable``, ``raw_ops.Empty``: shapes and types stay, small ones have values."""
    strategy = tpu_description.described_strategy(REPLICAS, large=kind)
    shape = [rows, 1000]  # 20 GB, where nothing holds them

    def initial():
        raise AssertionError("an initial value was computed")

    with strategy.scope():
        large = tf.Variable(initial, shape=shape, dtype=tf.bfloat16, trainable=False)
        small = tf.Variable(lambda: tf.ones([3]))
    assert (large.shape.as_list(), large.dtype, large.trainable) == (shape, tf.bfloat16, False)
    np.testing.assert_array_equal(small.values[0].numpy(), np.ones(3))


def test_a_program_runs_in_the_context_of_a_replica(tf, strategy, instructions):
    """``_TPUReplicaContext``, ``TPUReplicateContext``: ``fn`` is traced as ``strategy.run`` would trace it."""
    seen = []

    def fn(x):
        context = tf.distribute.get_replica_context()
        seen.append((type(context).__name__, context.strategy is strategy, context.num_replicas_in_sync))
        return x + tf.cast(context.replica_id_in_sync_group, tf.float32)

    found = instructions(fn, [2])
    assert seen == [("_TPUReplicaContext", True, REPLICAS)]
    assert [i.opcode for i in found].count("replica-id") == 1


def test_variables_are_parameters_and_are_assigned(tf, strategy):
    """``get_replicated_var_handle``; ``compiler_ir.from_concrete_function`` with ``hlo_serialized``."""
    with strategy.scope():
        variable = tf.Variable(tf.zeros([7]))
    function = tpu_description.replica_function(strategy, variable.assign_add, (tf.TensorSpec([7]),))
    assert [tensor is variable.handle for tensor in function.captured_inputs] == [True]
    module = hlo_pb2.HloModuleProto.FromString(tpu_description.hlo(function))
    assert [list(shape.dimensions) for shape in module.host_program_shape.parameters] == [[7], [7]]
    assert [entry.parameter_number for entry in module.input_output_alias.entries] == [1]


def test_arguments_are_not_built_in(tf, strategy):
    """A spec stays an argument: the number of a loop's turns is a value of the program."""

    def fn(turns):
        return tf.while_loop(lambda i, x: i < turns, lambda i, x: (i + 1, x * 2.0), (0, tf.ones([3])))[1]

    function = tpu_description.replica_function(strategy, fn, (tf.TensorSpec([], tf.int32),))
    module = hlo_pb2.HloModuleProto.FromString(tpu_description.hlo(function))
    assert "while" in [i.opcode for computation in module.computations for i in computation.instructions]
    assert len(module.host_program_shape.parameters) == 1


@pytest.mark.parametrize(("reduce_op", "divides"), [("SUM", 0), ("MEAN", 1)])
def test_the_all_reduce_of_the_context_is_among_all(tf, instructions, reduce_op, divides):
    """``gen_tpu_ops.cross_replica_sum``, which is replaced, and ``tpu_shard_context``, which says how many there are."""

    def fn(x):
        return tf.distribute.get_replica_context().all_reduce(reduce_op, x)

    found = instructions(fn, [5, 3])
    assert only(found, "all-reduce") == ("all-reduce", [[5, 3]], [5, 3], ALL)
    assert [i.opcode for i in found].count("divide") + [i.opcode for i in found].count("multiply") == divides


def test_what_is_replaced_is_put_back(instructions):
    before = gen_tpu_ops.cross_replica_sum
    with pytest.raises(ZeroDivisionError):
        instructions(lambda x: 1 // 0, [1])
    assert gen_tpu_ops.cross_replica_sum is before
