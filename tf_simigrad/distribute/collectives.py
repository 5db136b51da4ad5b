"""Reductions of the accumulated gradients over replicas: mean of all, moments of the two groups. One per kind of strategy."""

import itertools
import math
from collections.abc import Sequence

import tensorflow as tf

from tf_simigrad.core import similarity, trees
from tf_simigrad.distribute.replicas import Replicas, replica_id
from tf_simigrad.records import Moments

Reduced = tuple[list[tf.Tensor], Moments, tf.Tensor]
"""What a reduction returns: mean gradients, moments, and what each worker says of its micro-steps."""

COUNTERS = ("examples", "weight", "weighted_squared_norms", "micro_gradients")
"""Columns of the counters that travel with the gradient sums, in order."""

BUCKET_ELEMENTS = 4 * 1024 * 1024
"""Elements packed into one collective (16 MiB): enough to hide its latency, small beside the gradient that is packed."""

_AVERAGE_KEY, _TOTAL_KEY, _WORKERS_KEY = 1_000_000, 1_000_001, 1_000_002  # instance keys past those of a reduction

_group_keys = itertools.count(731_000)  # away from TensorFlow's own keys, which count from 1


class LocalReduction:
    """One replica: the groups are the even and the odd micro-steps, each with a sum of its own, and nothing travels."""

    def __init__(self, needs_groups: bool) -> None:
        self.slots = 2 if needs_groups else 1

    def __call__(self, sums: Sequence[Sequence[tf.Tensor]], counters: tf.Tensor, micro_steps: tf.Tensor) -> Reduced:
        """Mean gradient and moments. Replica context.

        Args:
            sums: For each slot, the weighted gradient sums of its micro-steps; float32, unscaled.
            counters: Float32 [slots, 4], the columns of ``COUNTERS``.
            micro_steps: Float32 scalar: how many micro-steps this worker has accumulated.

        Returns:
            The mean gradients over all, the moments, and the micro-steps of every worker [workers].
        """
        if self.slots == 1:
            total = list(sums[0])
            squares = trees.squared_norm(total)
            products, weights = tf.stack([0.0, squares, 0.0]), (counters[0, 1], tf.constant(0.0))
        else:
            total = [a + b for a, b in zip(*sums, strict=True)]
            products, weights = similarity.group_products(list(sums[0]), list(sums[1])), (counters[0, 1], counters[1, 1])
        whole = tf.reduce_sum(counters, axis=0)
        return [t / whole[1] for t in total], _moments(products, weights, whole), micro_steps[None]

    def total(self, value: tf.Tensor) -> tf.Tensor:
        """The value itself. Replica context."""
        return value

    def by_worker(self, value: tf.Tensor) -> tf.Tensor:
        """The value of the only worker [1]. Replica context."""
        return value[None]

    def average(self, variables: Sequence[tf.Variable]) -> None:
        """Leaves the variables of the only replica as they are. Replica context."""


class AllToAllReduction:
    """Several replicas: the groups are the first half of them and the rest.

    Each replica receives one shard of every replica's sum (all-to-all), adds them up per group, multiplies the groups on its
    shard, and gathers the sums of all shards. With P elements and N replicas each sends ``2 P (1 - 1/N)`` elements, what a
    ring all-reduce sends, and some scalars.

    Args:
        replicas: The replicas.
        timeout_seconds: After which a collective that lacks a replica fails instead of waiting on; 0: never. Within one
            process no replica can be missing, and TensorFlow pays for a timeout with threads that sleep until it is over:
            12 per update on two CPU replicas, which add up to tens of thousands and end the process.
    """

    slots = 1

    def __init__(self, replicas: Replicas, timeout_seconds: float = 0.0) -> None:
        self._count = replicas.count
        self._workers = replicas.workers
        self._per_worker = replicas.count // replicas.workers
        self._in_group_a = replicas.count // 2
        self._timeout = timeout_seconds
        self._group_key = next(_group_keys)
        self._tokens = []
        for device in replicas.devices:
            with tf.device(device):  # one ordering token per device: a common one would chain the replicas and deadlock them
                self._tokens.append(tf.Variable(0.0, trainable=False, name="ordering_token"))

    def __call__(self, sums: Sequence[Sequence[tf.Tensor]], counters: tf.Tensor, micro_steps: tf.Tensor) -> Reduced:
        """Mean gradient and moments, the same on every replica. Replica context; see ``LocalReduction``."""
        gradients = list(sums[0])
        instance_keys = itertools.count(1)
        buckets = pack_order([math.prod(g.shape) for g in gradients], BUCKET_ELEMENTS)
        shards = [self._exchange(self._packed([gradients[i] for i in bucket]), next(instance_keys)) for bucket in buckets]
        group_a = [tf.reduce_sum(s[: self._in_group_a], axis=0) for s in shards]
        group_b = [tf.reduce_sum(s[self._in_group_a :], axis=0) for s in shards]
        products = similarity.group_products(group_a, group_b)
        scalars = self._sum(self._scalars(products, counters[0], micro_steps), next(instance_keys))
        whole, workers = scalars[5:9], scalars[9:]
        means = list(gradients)  # a variable without elements is in no bucket, and stays what it is
        for bucket, a, b in zip(buckets, group_a, group_b, strict=True):
            flat = self._gather((a + b) / whole[1], next(instance_keys))
            for i, mean in zip(bucket, _unpacked(flat, [gradients[i].shape for i in bucket]), strict=True):
                means[i] = mean
        return means, _moments(scalars[:3], (scalars[3], scalars[4]), whole), workers

    def average(self, variables: Sequence[tf.Variable]) -> None:
        """Sets each float32 variable to its mean over the replicas, in one message. Replica context.

        Not by the strategy's ``all_reduce``: its group keys are the same in every MirroredStrategy of a process, so that two
        of different sizes break each other.
        """
        flat = tf.concat([tf.reshape(v, [-1]) for v in variables], axis=0)
        mean = self._sum(flat, _AVERAGE_KEY) / self._count
        for variable, value in zip(variables, _unpacked(mean, [v.shape for v in variables]), strict=True):
            variable.assign(value)

    def _scalars(self, products: tf.Tensor, counters: tf.Tensor, micro_steps: tf.Tensor) -> tf.Tensor:
        """[a.b, a.a, b.b, weight of A, weight of B, the four counters, micro-steps of each worker]: adds up over replicas."""
        in_a = 1.0 if replica_id() < self._in_group_a else 0.0
        weights = [in_a * counters[1], (1.0 - in_a) * counters[1]]
        return tf.concat([products, weights, counters, self._slots(micro_steps)], axis=0)

    def _slots(self, value: tf.Tensor) -> tf.Tensor:
        """Adds up over the replicas to the values of the workers: the first replica of each fills its worker's slot."""
        speaks = float(replica_id() % self._per_worker == 0)
        return tf.one_hot(replica_id() // self._per_worker, self._workers) * value * speaks

    def by_worker(self, value: tf.Tensor) -> tf.Tensor:
        """The float32 scalars of all workers [workers]. Replica context."""
        return self._sum(self._slots(value), _WORKERS_KEY)

    def total(self, value: tf.Tensor) -> tf.Tensor:
        """The sum of a float32 scalar over all replicas. Replica context."""
        return self._sum(value[None], _TOTAL_KEY)[0]

    def _packed(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """[replicas, shard]: one copy, so that each bucket is one message instead of one per variable."""
        flat = tf.concat([tf.reshape(t, [-1]) for t in tensors], axis=0)
        return tf.reshape(tf.pad(flat, [[0, -flat.shape[0] % self._count]]), [self._count, -1])

    def _exchange(self, packed: tf.Tensor, instance_key: int) -> tf.Tensor:
        """Row r of the result is this replica's shard of replica r's sum."""
        return tf.ensure_shape(tf.raw_ops.CollectiveAllToAllV2(input=packed, **self._keys(instance_key)), packed.shape)

    def _sum(self, tensor: tf.Tensor, instance_key: int) -> tf.Tensor:
        return tf.raw_ops.CollectiveReduceV2(input=tensor, merge_op="Add", final_op="Id", **self._keys(instance_key))

    def _gather(self, shard: tf.Tensor, instance_key: int) -> tf.Tensor:
        """All shards in order, as one vector."""
        return tf.reshape(tf.raw_ops.CollectiveGatherV2(input=shard[None], **self._keys(instance_key)), [-1])

    def _keys(self, instance_key: int) -> dict:
        return {
            "group_size": self._count,
            "group_key": self._group_key,
            "instance_key": instance_key,
            "ordering_token": [self._tokens[replica_id() % self._per_worker].handle],
            "timeout_seconds": self._timeout,
        }


def reduction_for(replicas: Replicas, needs_groups: bool) -> LocalReduction | AllToAllReduction:
    """The reduction that fits the replicas.

    Args:
        replicas: The replicas.
        needs_groups: Whether the statistic compares two groups, so that a single replica must keep their sums apart.
    """
    return AllToAllReduction(replicas) if replicas.count > 1 else LocalReduction(needs_groups)


def pack_order(sizes: Sequence[int], bucket_elements: int) -> list[list[int]]:
    """Consecutive indices grouped into buckets that are closed once they hold at least ``bucket_elements`` elements.

    Indices of size 0 are left out: a collective on nothing crashes the process.
    """
    buckets: list[list[int]] = []
    filled = bucket_elements
    for index, size in enumerate(sizes):
        if size == 0:
            continue
        if filled >= bucket_elements:
            buckets.append([])
            filled = 0
        buckets[-1].append(index)
        filled += size
    return buckets


def _unpacked(flat: tf.Tensor, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    sizes = [math.prod(shape) for shape in shapes]
    parts = tf.split(flat[: sum(sizes)], sizes)
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def _moments(products: tf.Tensor, weights: tuple[tf.Tensor, tf.Tensor], counters: tf.Tensor) -> Moments:
    """Moments of means, from products of sums. A group without weight divides 0 by 0: NaN, not measured."""
    ab, aa, bb = tf.unstack(products)
    weight_a, weight_b = weights
    return Moments(
        dot=ab / (weight_a * weight_b),
        squared_norm_a=aa / (weight_a * weight_a),
        squared_norm_b=bb / (weight_b * weight_b),
        weight_a=weight_a,
        weight_b=weight_b,
        squared_norm=(aa + 2 * ab + bb) / (counters[1] * counters[1]),
        weighted_squared_norms=counters[2],
        micro_gradients=counters[3],
        examples=counters[0],
    )
