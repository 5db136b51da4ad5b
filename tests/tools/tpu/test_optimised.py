"""What a compiled program says of its collectives, in programs made by hand."""

import pytest
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

from tools.tpu import optimised

pytestmark = pytest.mark.one_keras

CORES = 8
HALVES = [[0, 1, 2, 3], [4, 5, 6, 7]]


def shape(element, *dimensions):
    return xla_data_pb2.ShapeProto(element_type=xla_data_pb2.PrimitiveType.Value(element), dimensions=dimensions)


def tuple_shape(*parts):
    return xla_data_pb2.ShapeProto(element_type=xla_data_pb2.TUPLE, tuple_shapes=parts)


def program(opcode, *operands, **fields):
    """One computation with one instruction; its operands have these shapes."""
    wrapped = hlo_pb2.HloProto()
    instructions = wrapped.hlo_module.computations.add().instructions
    for number, operand in enumerate(operands, start=1):
        instructions.add(id=number, opcode="parameter", shape=operand)
    instructions.add(id=100, opcode=opcode, operand_ids=range(1, len(operands) + 1), **fields)
    return wrapped.SerializeToString()


def replica_groups(groups):
    return [xla_data_pb2.ReplicaGroup(replica_ids=group) for group in groups]


def device_list(**fields):
    return {"collective_device_list": xla_data_pb2.CollectiveDeviceListProto(**fields)}


def counted(dimensions, order, groups):
    """So many groups of equal size, cut from the numbers of the cores in an array that is transposed."""
    each = CORES // groups
    return device_list(
        iota_replica_group_list={
            "num_replica_groups": groups,
            "num_devices_per_group": each,
            "iota_reshape_dims": dimensions,
            "iota_transpose_perm": order,
        }
    )


def only(serialized):
    (found,) = optimised.collectives(serialized, CORES)
    return found


ROWS = shape("F32", 8, 1, 100)


@pytest.mark.parametrize("suffix", ["", "-start"])
@pytest.mark.parametrize(
    ("operation", "among_all", "among_four"),
    [
        ("all-reduce", 2 * 3200 * 7 / 8, 2 * 3200 * 3 / 4),
        ("all-gather", 3200 * 7, 3200 * 3),
        ("all-to-all", 3200 * 7 / 8, 3200 * 3 / 4),
        ("reduce-scatter", 3200 * 7 / 8, 3200 * 3 / 4),
    ],
)
def test_bytes_of_each_operation(operation, suffix, among_all, among_four):
    found = only(program(operation + suffix, ROWS))
    assert found == (operation, ["f32[8,1,100]"], [list(range(8))], among_all)
    found = only(program(operation + suffix, ROWS, replica_groups=replica_groups(HALVES)))
    assert found == (operation, ["f32[8,1,100]"], HALVES, among_four)


@pytest.mark.parametrize("suffix", ["", "-start"])
def test_a_permutation_sends_its_operand(suffix):
    pairs = [xla_data_pb2.SourceTarget(source=i, target=(i + 1) % 4) for i in range(4)]
    found = only(program("collective-permute" + suffix, ROWS, source_target_pairs=pairs))
    assert found == ("collective-permute", ["f32[8,1,100]"], [[0, 1], [1, 2], [2, 3], [3, 0]], 3200)


def test_all_operands_count():
    found = only(program("all-reduce", shape("F32", 3, 3, 8, 16), shape("BF16", 32), shape("F32")))
    assert found.shapes == ["f32[3,3,8,16]", "bf16[32]", "f32[]"]
    assert found.bytes == 2 * (4 * 1152 + 2 * 32 + 4) * 7 / 8


@pytest.mark.parametrize(
    ("given", "size", "name"),
    [
        (shape("F32", 10), 40, "f32[10]"),
        (shape("BF16", 10), 20, "bf16[10]"),
        (shape("PRED", 10), 10, "pred[10]"),
        (shape("S8", 10), 10, "s8[10]"),
        (shape("S32", 10), 40, "s32[10]"),
        (shape("F8E4M3FN", 10), 10, "f8e4m3fn[10]"),
        (shape("C64", 10), 80, "c64[10]"),
        (shape("F32"), 4, "f32[]"),
        (shape("F32", 7, 0), 0, "f32[7,0]"),
        (tuple_shape(shape("F32", 2, 3), tuple_shape(shape("BF16", 5), shape("U8", 1))), 35, "(f32[2,3], (bf16[5], u8[1]))"),
    ],
)  # fmt: skip
def test_sizes_of_operands(given, size, name):
    found = only(program("collective-permute", given))
    assert (found.bytes, found.shapes) == (size, [name])


@pytest.mark.parametrize(
    ("fields", "groups"),
    [
        ({}, [list(range(8))]),
        ({"replica_groups": replica_groups(HALVES)}, HALVES),
        (device_list(replica_groups=replica_groups(HALVES)), HALVES),
        (counted([8], [0], 2), HALVES),
        (counted([2, 4], [1, 0], 4), [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ],
    ids=["none", "groups", "device list", "counted", "counted across"],
)
def test_groups_in_every_field(fields, groups):
    assert only(program("all-gather", ROWS, **fields)).groups == groups


def test_every_computation_is_searched_and_nothing_else_is_found():
    wrapped = hlo_pb2.HloProto()
    for opcodes in (("all-reduce", "add"), ("all-gather-start", "all-gather-done", "all-reduce-scatter")):
        instructions = wrapped.hlo_module.computations.add().instructions
        for number, opcode in enumerate(opcodes):
            instructions.add(id=number, opcode=opcode)
    found = optimised.collectives(wrapped.SerializeToString(), CORES)
    assert [c.operation for c in found] == ["all-reduce", "all-gather"]
    assert optimised.collectives(b"", CORES) == []


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([list(range(8))], True),
        (HALVES, True),
        ([[0, 4], [5, 1], [2, 6], [7, 3]], True),
        ([[i] for i in range(8)], True),
        ([], False),
        ([[0, 1, 2], [4, 5, 6]], False),
        ([[0, 1, 2, 3], [3, 4, 5, 6, 7]], False),
        ([list(range(9))], False),
    ],
)
def test_a_partition_has_every_core_once(groups, expected):
    assert optimised.is_partition(groups, CORES) is expected
