"""What a distribution strategy offers: how many replicas, where they are, and how to run something on each."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_simigrad.compat import xla_private

_COMPILED = (tf.distribute.TPUStrategy, tf.distribute.experimental.TPUStrategy)


class Replicas:
    """The replicas of a strategy.

    Args:
        strategy: Of the model: the default one, OneDeviceStrategy, MirroredStrategy, MultiWorkerMirroredStrategy, TPUStrategy.

    Attributes:
        count: Number of replicas, over all workers.
        is_compiled: Whether each ``run`` is one program that XLA compiles whole (TPUStrategy): shapes are static, conditions
            may stand anywhere, and reading a result means waiting for the device.
        workers: Number of processes that train together. The process that drives a TPU slice is one, whatever its hosts.
        devices: The devices of this process's replicas, where there are several replicas.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self.count = int(strategy.num_replicas_in_sync)
        self.is_compiled = isinstance(strategy, _COMPILED)
        self.devices: Sequence[str] = strategy.extended.worker_devices if self.count > 1 else ()
        self.workers = 1 if self.is_compiled else self.count // max(len(self.devices), 1)

    @property
    def defers_metrics(self) -> bool:
        """Whether metrics are read after updates only: workers have to meet for them, a TPU has to be waited for."""
        return self.workers > 1 or self.is_compiled

    @property
    def name(self) -> str:
        """The strategy's class name, for messages."""
        return type(self._strategy).__name__

    def scope(self) -> contextlib.AbstractContextManager:
        """The strategy's scope, in which its variables are to be made."""
        return self._strategy.scope()

    def replica_id(self) -> tf.Tensor:
        """This replica's index among all, in the order of the collectives: int32 scalar. Replica context, while tracing."""
        return xla_private.replica_id() if self.is_compiled else tf.constant(static_replica_id())

    def run(self, fn: Callable, args: tuple = ()) -> Any:
        """Calls ``fn`` once per replica, in replica context. To be called in cross-replica context."""
        return self._strategy.run(fn, args=args)

    def first(self, value: Any) -> Any:
        """The first local replica's part of a per-replica structure: for values that are the same on all."""
        return tf.nest.map_structure(lambda v: self._strategy.experimental_local_results(v)[0], value)

    def local(self, value: Any) -> tuple:
        """The parts of a per-replica value or variable, one per local replica. Cross-replica context."""
        return self._strategy.experimental_local_results(value)

    def arrays_of(self, variables: Sequence[tf.Variable]) -> list[np.ndarray]:
        """The values of per-replica variables, each stacked over the replicas of this worker. Outside of any trace.

        Where lengths differ the shorter ones are filled up with zeros.
        """
        return [_stacked([part.numpy() for part in self.local(v)]) for v in variables]

    def assign_arrays(self, variables: Sequence[tf.Variable], arrays: Sequence[np.ndarray], what: str) -> None:
        """Takes back what ``arrays_of`` gave.

        Args:
            variables: Per-replica variables.
            arrays: As many.
            what: Whose values they are, for the message.

        Raises:
            ValueError: If the arrays are of another model, number of replicas or configuration.
        """
        expected = [tf.TensorShape([len(self.local(v)), *v.shape]) for v in variables]
        given = [tf.TensorShape(a.shape) for a in arrays]
        if len(expected) != len(given) or not all(e.is_compatible_with(g) for e, g in zip(expected, given, strict=True)):
            raise ValueError(
                f"The {what} were saved with shapes {given[:3]}..., this model under this strategy needs {expected[:3]}.... "
                "Resume with the same model, statistic, transform, dense_table_elements and number of replicas."
            )
        for variable, array in zip(variables, arrays, strict=True):
            for part, value in zip(self.local(variable), array, strict=True):
                part.assign(value)

    def per_replica_variable(self, shape: Sequence[int | None], name: str, dtype: tf.DType = tf.float32) -> tf.Variable:
        """A variable of zeros of which each replica has its own, to be used in replica context.

        Args:
            shape: With None where the length may change; it begins as 0.
            name: Of the variable.
            dtype: Of the variable.
        """
        with self.scope():
            return tf.Variable(
                lambda: tf.zeros([length or 0 for length in shape], dtype),
                trainable=False,
                name=name,
                dtype=dtype,
                shape=tf.TensorShape(shape),
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.NONE,
            )


class OneReplica:
    """Stands for ``Replicas`` where the code already runs on one of them, so that the same code serves both."""

    def run(self, fn: Callable, args: tuple = ()) -> Any:
        """Calls ``fn`` here. Replica context."""
        return fn(*args)

    def first(self, value: Any) -> Any:
        """This replica's own value."""
        return value


def _stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    if arrays[0].ndim:
        longest = max(len(a) for a in arrays)
        arrays = [np.pad(a, [(0, longest - len(a)), *[(0, 0)] * (a.ndim - 1)]) for a in arrays]
    return np.stack(arrays)


def static_replica_id() -> int:
    """This replica's index among all, as a Python number. Replica context, while tracing."""
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def check_strategy(strategy: tf.distribute.Strategy) -> None:
    """Raises a ValueError for a strategy under which the callback would not be right."""
    if isinstance(strategy, (tf.distribute.ParameterServerStrategy, tf.distribute.experimental.ParameterServerStrategy)):
        raise ValueError(
            "AdaptiveBatch does not support ParameterServerStrategy: its workers update apart from each other, so there is no "
            "common gradient to measure. Use MirroredStrategy."
        )
    known = (
        tf.distribute.MirroredStrategy,
        tf.distribute.OneDeviceStrategy,
        tf.distribute.MultiWorkerMirroredStrategy,
        *_COMPILED,
    )
    plain = type(strategy) is type(tf.distribute.get_strategy()) and strategy.num_replicas_in_sync == 1
    if not (isinstance(strategy, known) or plain):
        raise ValueError(
            "AdaptiveBatch supports models built without a strategy or under MirroredStrategy, MultiWorkerMirroredStrategy, "
            f"TPUStrategy or OneDeviceStrategy in this version; this one was built under {type(strategy).__name__}."
        )
