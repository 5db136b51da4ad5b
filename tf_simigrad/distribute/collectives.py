"""What replicas can say to each other: exchange, sum and gather. One class per kind of strategy."""

import itertools
from typing import Protocol

import tensorflow as tf

from tf_simigrad.compat import xla_private
from tf_simigrad.distribute.replicas import Replicas, static_replica_id

_group_keys = itertools.count(731_000)  # away from TensorFlow's own keys, which count from 1


class Collectives(Protocol):
    """Messages among all replicas of a strategy, float32. Replica context.

    Every replica must call the same methods in the same order with the same keys; a key names one message of an update, and
    may be used again by the next.
    """

    def exchange(self, rows: tf.Tensor, key: int) -> tf.Tensor:
        """Sends row r to replica r, and receives as row r what replica r sends here.

        Args:
            rows: [replicas, ...], the same shape on all.
            key: Names the message.

        Returns:
            The same shape.
        """
        ...

    def sum(self, tensor: tf.Tensor, key: int) -> tf.Tensor:
        """The sum over all replicas of a tensor of the same shape on all."""
        ...

    def gather(self, shard: tf.Tensor, key: int) -> tf.Tensor:
        """The shards of all replicas in order: [replicas, ...].

        Args:
            shard: The same shape on all.
            key: Names the message.
        """
        ...


class CollectiveOps:
    """``Collectives`` by TensorFlow's collective operations, in MirroredStrategy and MultiWorkerMirroredStrategy.

    The group has keys of its own: those of a strategy's ``all_reduce`` are the same in every MirroredStrategy of a process, so
    that two of different sizes break each other. Several workers must make their objects in the same order.

    Args:
        replicas: The replicas, two or more.
        timeout_seconds: After which a collective that lacks a replica fails instead of waiting on; 0: never. Within one
            process no replica can be missing, and TensorFlow pays for a timeout with threads that sleep until it is over:
            12 per update on two CPU replicas, which add up to tens of thousands and end the process. Several workers are
            watched by ``distribute.watch`` instead.
    """

    def __init__(self, replicas: Replicas, timeout_seconds: float = 0.0) -> None:
        self._count = replicas.count
        self._per_worker = replicas.count // replicas.workers
        self._timeout = timeout_seconds
        self._group_key = next(_group_keys)
        self._tokens = []
        for device in replicas.devices:
            with tf.device(device):  # one ordering token per device: a common one would chain the replicas and deadlock them
                self._tokens.append(tf.Variable(0.0, trainable=False, name="ordering_token"))

    def exchange(self, rows: tf.Tensor, key: int) -> tf.Tensor:
        """See ``Collectives``."""
        return tf.ensure_shape(tf.raw_ops.CollectiveAllToAllV2(input=rows, **self._arguments(key)), rows.shape)

    def sum(self, tensor: tf.Tensor, key: int) -> tf.Tensor:
        """See ``Collectives``."""
        return tf.raw_ops.CollectiveReduceV2(input=tensor, merge_op="Add", final_op="Id", **self._arguments(key))

    def gather(self, shard: tf.Tensor, key: int) -> tf.Tensor:
        """See ``Collectives``."""
        gathered = tf.raw_ops.CollectiveGatherV2(input=shard[None], **self._arguments(key))
        return tf.ensure_shape(gathered, [self._count, *shard.shape])

    def _arguments(self, key: int) -> dict:
        return {
            "group_size": self._count,
            "group_key": self._group_key,
            "instance_key": key,
            "ordering_token": [self._tokens[static_replica_id() % self._per_worker].handle],
            "timeout_seconds": self._timeout,
        }


class XlaCollectives:
    """``Collectives`` inside programs that XLA compiles whole, in TPUStrategy. Keys are not needed: order tells.

    Args:
        replicas: The replicas, two or more.
    """

    def __init__(self, replicas: Replicas) -> None:
        self._all = [list(range(replicas.count))]

    def exchange(self, rows: tf.Tensor, key: int) -> tf.Tensor:
        """See ``Collectives``."""
        return xla_private.all_to_all(rows, self._all)

    def sum(self, tensor: tf.Tensor, key: int) -> tf.Tensor:
        """See ``Collectives``."""
        return xla_private.all_reduce_sum(tensor, self._all)

    def gather(self, shard: tf.Tensor, key: int) -> tf.Tensor:
        """See ``Collectives``."""
        # As rows: of vectors end to end the TPU's compiler makes an all-reduce with zeros, which sends twice as much.
        return xla_private.all_gather(shard[None], self._all)


def collectives_for(replicas: Replicas, timeout_seconds: float = 0.0) -> Collectives:
    """The messages that fit the replicas; the timeout is that of ``CollectiveOps``."""
    return XlaCollectives(replicas) if replicas.is_compiled else CollectiveOps(replicas, timeout_seconds)
