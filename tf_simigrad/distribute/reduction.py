"""Reductions of the accumulated gradients over replicas: mean of all, moments of the two groups. One per kind of strategy."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_simigrad.core import similarity, trees
from tf_simigrad.distribute.collectives import Collectives
from tf_simigrad.distribute.replicas import Replicas, replica_id
from tf_simigrad.records import Moments

COUNTERS = ("examples", "weight", "weighted_squared_norms", "micro_gradients", "data_fingerprint")
"""Columns of the counters that travel with the gradient sums, in order. All but the last are added up over the replicas."""

BUCKET_ELEMENTS = 4 * 1024 * 1024
"""Elements packed into one collective (16 MiB): enough to hide its latency, small beside the gradient that is packed."""

_AVERAGE_KEY = 1_000_000  # past the keys of a reduction


class Reduced(NamedTuple):
    """What a reduction returns, the same on every replica.

    Attributes:
        means: Mean gradients over all examples, float32, unscaled.
        moments: Moments of the groups.
        micro_steps: Float32 [workers]: what each worker says that it has accumulated.
        fingerprints: Float32 [replicas]: of the data of each replica (``core.fingerprint``), added up over its micro-steps.
    """

    means: list[tf.Tensor]
    moments: Moments
    micro_steps: tf.Tensor
    fingerprints: tf.Tensor


class LocalReduction:
    """One replica: the groups are the even and the odd micro-steps, each with a sum of its own, and nothing travels."""

    def __init__(self, needs_groups: bool) -> None:
        self.slots = 2 if needs_groups else 1

    def __call__(self, sums: Sequence[Sequence[tf.Tensor]], counters: tf.Tensor, micro_steps: tf.Tensor) -> Reduced:
        """Mean gradient and moments. Replica context.

        Args:
            sums: For each slot, the weighted gradient sums of its micro-steps; float32, unscaled, dense (a variable without a
                gradient has zeros, the rows of IndexedSlices are in their places).
            counters: Float32 [slots, 5], the columns of ``COUNTERS``.
            micro_steps: Float32 scalar: how many micro-steps this worker has accumulated.

        Returns:
            Means, moments, and what each worker and replica says.
        """
        if self.slots == 1:
            total = list(sums[0])
            squares = trees.squared_norm(total)
            products, weights = tf.stack([0.0, squares, 0.0]), (counters[0, 1], tf.constant(0.0))
        else:
            total = [a + b for a, b in zip(*sums, strict=True)]
            products, weights = similarity.group_products(list(sums[0]), list(sums[1])), (counters[0, 1], counters[1, 1])
        whole = tf.reduce_sum(counters, axis=0)
        return Reduced([t / whole[1] for t in total], _moments(products, weights, whole), micro_steps[None], whole[-1:])

    def average(self, variables: Sequence[tf.Variable]) -> None:
        """Leaves the variables of the only replica as they are. Replica context."""


class AllToAllReduction:
    """Several replicas: the groups are the first half of them and the rest.

    Each replica receives one shard of every replica's sum (all-to-all), adds them up per group, multiplies the groups on its
    shard, and gathers the sums of all shards. With P elements and N replicas each sends ``2 P (1 - 1/N)`` elements, what a
    ring all-reduce sends, and some scalars.

    Args:
        replicas: The replicas.
        timeout_seconds: Of each collective; see ``Collectives``.
    """

    slots = 1

    def __init__(self, replicas: Replicas, timeout_seconds: float = 0.0) -> None:
        self._count = replicas.count
        self._workers = replicas.workers
        self._in_group_a = replicas.count // 2
        self._collectives = Collectives(replicas, timeout_seconds)

    def __call__(self, sums: Sequence[Sequence[tf.Tensor]], counters: tf.Tensor, micro_steps: tf.Tensor) -> Reduced:
        """Mean gradient and moments, the same on every replica. Replica context; see ``LocalReduction``."""
        gradients = list(sums[0])
        keys = itertools.count(1)
        buckets = pack_order([math.prod(g.shape) for g in gradients], BUCKET_ELEMENTS)
        shards = [self._collectives.exchange(self._packed([gradients[i] for i in bucket]), next(keys)) for bucket in buckets]
        group_a = [tf.reduce_sum(s[: self._in_group_a], axis=0) for s in shards]
        group_b = [tf.reduce_sum(s[self._in_group_a :], axis=0) for s in shards]
        products = similarity.group_products(group_a, group_b)
        scalars = self._collectives.sum(self._scalars(products, counters[0], micro_steps), next(keys))
        sizes = [3, 2, len(COUNTERS) - 1, self._workers, self._count]
        products, weights, whole, workers, fingerprints = tf.split(scalars, sizes)
        means = list(gradients)  # a variable without elements is in no bucket, and stays what it is
        for bucket, a, b in zip(buckets, group_a, group_b, strict=True):
            flat = self._collectives.gather((a + b) / whole[1], next(keys))
            for i, mean in zip(bucket, _unpacked(flat, [gradients[i].shape for i in bucket]), strict=True):
                means[i] = mean
        return Reduced(means, _moments(products, (weights[0], weights[1]), whole), workers, fingerprints)

    def average(self, variables: Sequence[tf.Variable]) -> None:
        """Sets each float32 variable to its mean over the replicas, in one message. Replica context."""
        flat = tf.concat([tf.reshape(v, [-1]) for v in variables], axis=0)
        mean = self._collectives.sum(flat, _AVERAGE_KEY) / self._count
        for variable, value in zip(variables, _unpacked(mean, [v.shape for v in variables]), strict=True):
            variable.assign(value)

    def _scalars(self, products: tf.Tensor, counters: tf.Tensor, micro_steps: tf.Tensor) -> tf.Tensor:
        """What adds up over the replicas, of which the first of each worker speaks for it.

        [a.b, a.a, b.b; weights of A, B; the counters but the last; micro-steps of each worker; fingerprint of each replica].
        """
        replica, per_worker = replica_id(), self._count // self._workers
        in_a = 1.0 if replica < self._in_group_a else 0.0
        weights = [in_a * counters[1], (1.0 - in_a) * counters[1]]
        speaks = 1.0 if replica % per_worker == 0 else 0.0
        workers = tf.one_hot(replica // per_worker, self._workers) * micro_steps * speaks
        fingerprints = tf.one_hot(replica, self._count) * counters[-1]
        return tf.concat([products, weights, counters[:-1], workers, fingerprints], axis=0)

    def _packed(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """[replicas, shard]: one copy, so that each bucket is one message instead of one per variable."""
        flat = tf.concat([tf.reshape(t, [-1]) for t in tensors], axis=0)
        return tf.reshape(tf.pad(flat, [[0, -flat.shape[0] % self._count]]), [self._count, -1])


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
