"""What the optimised program says: its collectives, their groups, and the bytes that a core sends by them."""

import math
import re
from typing import NamedTuple

import numpy as np
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

# Bytes that each of n cores sends for an operand of so many: around a ring, or one part to each of the others.
SENT = {
    "all-reduce": lambda operand, n: 2 * operand * (n - 1) / n,
    "all-gather": lambda operand, n: operand * (n - 1),
    "all-to-all": lambda operand, n: operand * (n - 1) / n,
    "reduce-scatter": lambda operand, n: operand * (n - 1) / n,
    "collective-permute": lambda operand, n: operand,
}


class Collective(NamedTuple):
    """One collective of the optimised program, as each core takes part in it."""

    operation: str
    shapes: list
    groups: list
    bytes: float


def collectives(optimised, cores):
    """Every collective of an optimised program.

    Args:
        optimised: What libtpu returned for it.
        cores: How many it was compiled for; a collective without groups is among all.
    """
    found = []
    for computation in module_of(optimised).computations:
        by_id = {instruction.id: instruction for instruction in computation.instructions}
        for instruction in computation.instructions:
            operation = instruction.opcode.removesuffix("-start")
            if operation in SENT:
                operands = [by_id[i].shape for i in instruction.operand_ids]
                groups = groups_of(instruction) or [list(range(cores))]
                size = sum(size_of(shape) for shape in operands)
                sent = SENT[operation](size, len(groups[0]))
                found.append(Collective(operation, [name_of(shape) for shape in operands], groups, sent))
    return found


def module_of(optimised):
    # A HloModuleProtoWithConfig, of which TensorFlow has no description: the module is its first field.
    wrapped = hlo_pb2.HloProto()
    wrapped.ParseFromString(optimised)
    return wrapped.hlo_module


def groups_of(instruction):
    """They come in any of three fields; those of a permutation are pairs of source and target."""
    if instruction.source_target_pairs:
        return [[pair.source, pair.target] for pair in instruction.source_target_pairs]
    listed = instruction.collective_device_list
    counted = listed.iota_replica_group_list
    if counted.num_replica_groups:
        ids = np.arange(math.prod(counted.iota_reshape_dims)).reshape(counted.iota_reshape_dims)
        return ids.transpose(counted.iota_transpose_perm).reshape(counted.num_replica_groups, -1).tolist()
    return [list(group.replica_ids) for group in listed.replica_groups or instruction.replica_groups]


def is_partition(groups, cores):
    """Whether every core is in exactly one group."""
    return sorted(core for group in groups for core in group) == list(range(cores))


def element_name(shape):
    return xla_data_pb2.PrimitiveType.Name(shape.element_type)


def size_of(shape):
    if shape.tuple_shapes:
        return sum(size_of(part) for part in shape.tuple_shapes)
    bits = re.search(r"\d+", element_name(shape))  # F32, BF16, F8E4M3FN; a PRED is a byte
    return math.prod(shape.dimensions) * (-(-int(bits[0]) // 8) if bits else 1)


def name_of(shape):
    """As HLO writes it: f32[8,1,128]."""
    if shape.tuple_shapes:
        return f"({', '.join(name_of(part) for part in shape.tuple_shapes)})"
    return f"{element_name(shape).lower()}[{','.join(map(str, shape.dimensions))}]"
