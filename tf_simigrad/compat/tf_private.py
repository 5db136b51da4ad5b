"""Private names of TensorFlow, each in a function of its own."""

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.distribute import input_lib, values
from tensorflow.python.eager import context
from tensorflow.python.framework import errors


def autograph_enabled() -> AbstractContextManager:
    """A context in which tf_keras converts the ``call`` of layers by AutoGraph, as it does in its own train function."""
    return ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED)


def first_replica_spec(element_spec: Any) -> Any:
    """The element spec of a distributed iterator as its first replica sees it; a plain one unchanged."""
    return tf.nest.map_structure(
        lambda spec: spec._value_specs[0] if isinstance(spec, values.PerReplicaSpec) else spec,
        element_spec,
        expand_composites=False,
    )


def is_endless(iterator: Any) -> bool:
    """Whether a distributed iterator's data is known never to end; False for any other iterator."""
    if not isinstance(iterator, input_lib.DistributedIteratorBase):
        return False
    return int(iterator._cardinality) == tf.data.INFINITE_CARDINALITY  # TensorFlow 2.15 holds it as a tensor


def abort_collectives(message: str) -> None:
    """Lets every collective of this process that is waiting, or comes later, fail with the message."""
    context.context().abort_collective_ops(errors.DEADLINE_EXCEEDED, message)


def wait_for_calls() -> None:
    """Waits for functions that run still, as those on the hosts of a TPU slice may; raises what they have raised."""
    context.async_wait()


def is_multi_worker(strategy: tf.distribute.Strategy) -> bool:
    """Whether the strategy spans several processes."""
    return strategy.extended._in_multi_worker_mode()
