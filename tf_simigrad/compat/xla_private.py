"""Private names of TensorFlow's bridge to XLA: what replicas say to each other inside a program that XLA compiles whole.

These lower on TensorFlow for CPU and on that for TPU alike (``CrossReplicaSum``, ``AllToAll`` lower on the second only).
"""

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.distribute import tpu_util

Groups = Sequence[Sequence[int]]
Function = TypeVar("Function", bound=Callable)

_STABLEHLO_VERSION = 9  # of the calling convention of XlaCallModule
_ELEMENTS = {tf.float32: "f32"}


def compiled(function: Function) -> Function:
    """The function compiled by XLA, unless it is called in a program that XLA compiles whole, or where there is no XLA.

    TensorFlow for TPUs has none for its own CPU ("could not find registered transfer manager for platform Host").
    """
    alone = tf.function(function, jit_compile=True)

    @functools.wraps(function)
    def call(*args: object) -> object:
        in_program = tpu_util.enclosing_tpu_context() is not None
        return function(*args) if in_program or tf.config.list_physical_devices("TPU_SYSTEM") else alone(*args)

    return call  # type: ignore[return-value]


def replica_id() -> tf.Tensor:
    """This replica's number in the program, which is what groups are made of: int32 scalar. In a replica's program.

    On a TPU it may differ from ``replica_id_in_sync_group``, after which TensorFlow numbers the data.
    """
    return tf.cast(gen_xla_ops.xla_replica_id(), tf.int32)


def all_reduce_sum(tensor: tf.Tensor, groups: Groups) -> tf.Tensor:
    """The sum over the replicas of a group. In a replica's program."""
    return gen_xla_ops.xla_all_reduce(tensor, groups, reduce_op="Add", mode="CrossReplica")


def all_to_all(rows: tf.Tensor, groups: Groups) -> tf.Tensor:
    """Row r goes to the group's replica r, and comes from there. In a replica's program.

    Args:
        rows: Float32 [replicas of a group, ...], of static shape.
        groups: Of equal size.
    """
    attributes = f"concat_dimension = 0 : i64, split_dimension = 0 : i64, split_count = {len(groups[0])} : i64"
    return _stablehlo("all_to_all", attributes, rows, rows.shape, groups)


def all_gather(shard: tf.Tensor, groups: Groups) -> tf.Tensor:
    """The shards of a group's replicas, one after the other along the first dimension. In a replica's program.

    Args:
        shard: Float32 [length, ...], of static shape.
        groups: Of equal size.
    """
    shape = [len(groups[0]) * shard.shape[0], *shard.shape[1:]]
    return _stablehlo("all_gather", "all_gather_dim = 0 : i64", shard, shape, groups)


def _stablehlo(kind: str, attributes: str, tensor: tf.Tensor, shape: Sequence[int], groups: Groups) -> tf.Tensor:
    """A StableHLO collective, for which TensorFlow has no operation that lowers everywhere, as a module of its own."""
    given, result = _type_of(tensor, tensor.shape), _type_of(tensor, shape)
    replica_groups = f"dense<{[list(group) for group in groups]}> : tensor<{len(groups)}x{len(groups[0])}xi64>"
    module = f"""module @collective {{
      func.func public @main(%x: {given}) -> {result} {{
        %y = "stablehlo.{kind}"(%x) {{{attributes}, replica_groups = {replica_groups}}} : ({given}) -> {result}
        return %y : {result}
      }}
    }}"""
    (returned,) = gen_xla_ops.xla_call_module(
        [tensor],
        version=_STABLEHLO_VERSION,
        module=module.encode(),
        Sout=[list(shape)],
        Tout=[tensor.dtype],
        platforms=["TPU"],
        disabled_checks=["platform"],  # it is lowered on a CPU too, where a TPU is only described
        dim_args_spec=[],
        function_list=[],
        has_token_input_output=False,
    )
    return returned


def _type_of(tensor: tf.Tensor, shape: Sequence[int]) -> str:
    return "tensor<" + "".join(f"{dimension}x" for dimension in shape) + _ELEMENTS[tensor.dtype] + ">"
