"""A TPUStrategy where there is no TPU: private names by which one replica's program is traced and lowered to HLO.

The strategy, its variables and its replica context are TensorFlow's own, on the description of a system that is not there. Of
each variable the first replica's alone is made, on the CPU, as the program is the same on all. Nothing can be run by it.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import tpu_strategy
from tensorflow.python.eager.polymorphic_function import compiler_ir
from tensorflow.python.ops import gen_tpu_ops, resource_variable_ops
from tensorflow.python.tpu import tpu_function, tpu_replication, tpu_system_metadata

from tf_simigrad.compat import xla_private

_LARGE = 100_000  # elements
_DEVICE = "/job:localhost/replica:0/task:0/device:{}:0"


class _Device(NamedTuple):
    name: str


class _Resolver:
    """What TPUStrategy asks of a cluster resolver."""

    def __init__(self, replicas: int) -> None:
        self._metadata = tpu_system_metadata.TPUSystemMetadata(
            num_cores=replicas,
            num_hosts=1,
            num_of_cores_per_host=replicas,
            topology=None,
            devices=[_Device(_DEVICE.format("TPU"))],
        )

    def get_tpu_system_metadata(self) -> Any:
        return self._metadata

    def get_job_name(self) -> str:
        return "localhost"

    def cluster_spec(self) -> None:
        return None


class _Replicate(tpu_replication.TPUReplicateContext):
    """The context of a replica's program, without what only a TPU's runtime wants of the graph."""

    def AddOp(self, op: Any) -> None:
        return None

    def AddValue(self, val: Any) -> Any:
        return val

    def AddInnerOp(self, op: Any) -> None:
        return None

    def get_replicated_var_handle(
        self, name: str, handle_id: str, vars_: Any, is_mirrored: bool = False, is_packed: bool = False
    ) -> Any:
        return vars_[0].handle


def described_strategy(replicas: int, large: str = "values") -> tf.distribute.TPUStrategy:
    """A TPUStrategy over so many cores, for ``replica_function`` only.

    Args:
        replicas: Number of cores.
        large: What large variables have; programs do not depend on it. "values": their initial ones. "memory": what is
            reserved and never written, so that it costs nothing where there could be as much: a model that fills a TPU is
            described on a laptop. "nothing": then functions can be traced, and not lowered to HLO.
    """
    strategy = tf.distribute.TPUStrategy(_Resolver(replicas))
    extended = strategy.extended
    extended._tpu_devices = np.array([[_DEVICE.format("CPU")]], dtype=object)
    strategy._enable_packed_variable_in_eager_mode = False  # a packed variable is nothing that can be lowered
    if large != "values":
        extended._create_variable = functools.partial(_without_values, extended._create_variable, large == "memory")
    return strategy


def _without_values(create_variable: Callable, is_reserved: bool, creator: Callable, **made_of: Any) -> Any:
    """Makes a variable, without a value if it is large."""
    value, shape = made_of["initial_value"], made_of.get("shape")
    shape = tf.TensorShape(value.shape if shape is None and isinstance(value, tf.Tensor) else shape)
    if not shape.is_fully_defined() or shape.num_elements() < _LARGE:
        return create_variable(creator, **made_of)
    dtype = made_of.get("dtype") or (value.dtype if isinstance(value, tf.Tensor) else tf.float32)
    if is_reserved:
        reserved = functools.partial(tf.raw_ops.Empty, shape=shape, dtype=dtype, init=False)
        return create_variable(creator, **{**made_of, "initial_value": reserved})

    def described(**kept: Any) -> tf.Variable:
        named = {name: kept[name] for name in ("trainable", "name", "synchronization", "aggregation") if name in kept}
        return resource_variable_ops.UninitializedVariable(shape=shape, dtype=dtype, **named)

    # The strategy computes the initial value before it asks for a variable.
    return create_variable(described, **{**made_of, "initial_value": tf.zeros([], dtype)})


def replica_function(strategy: tf.distribute.TPUStrategy, fn: Callable, specs: tuple) -> Any:
    """The concrete function of one replica's program.

    Args:
        strategy: From ``described_strategy``.
        fn: What ``strategy.run`` would be given; traced in its replica context.
        specs: Nested ``tf.TensorSpec`` of its arguments. No values: they might be built into the program as constants.
    """
    replicas = strategy.num_replicas_in_sync

    @tf.function(jit_compile=True, autograph=False)
    def program(*args: Any) -> Any:
        replicate = _Replicate(name="replica", num_replicas=replicas, pivot=tf.no_op())
        with strategy.scope(), tpu_function.tpu_shard_context(replicas), _lowered_on_cpu():
            replicate.Enter()
            try:
                with tpu_strategy._TPUReplicaContext(strategy, replica_id_in_sync_group=xla_private.replica_id()):
                    return fn(*args)
            finally:
                replicate.Exit()

    return program.get_concrete_function(*specs)


def hlo(function: Any) -> bytes:
    """A concrete function as a serialized HloModuleProto: its arguments and variables are the program's parameters."""
    return compiler_ir.from_concrete_function(function)(stage="hlo_serialized")


@contextlib.contextmanager
def _lowered_on_cpu() -> Iterator[None]:
    """TensorFlow for CPU cannot lower what ``ReplicaContext.all_reduce`` uses on a TPU, but it can what that lowers to."""

    def cross_replica_sum(input: tf.Tensor, group_assignment: Any, name: str | None = None) -> tf.Tensor:  # noqa: A002
        return xla_private.all_reduce_sum(input, group_assignment)

    with mock.patch.object(gen_tpu_ops, "cross_replica_sum", cross_replica_sum):
        yield
