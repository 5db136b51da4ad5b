"""Reductions of the accumulated gradients over replicas: mean of all, moments of the two groups. One per kind of strategy."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_simigrad.core import rows, similarity
from tf_simigrad.distribute.carriers import Carrier, Several, TableRows, WholeVariables
from tf_simigrad.distribute.collectives import collectives_for
from tf_simigrad.distribute.packing import Packing
from tf_simigrad.distribute.reduction_records import Needs, Reduced, Shards, Total, Totals
from tf_simigrad.distribute.replicas import Replicas
from tf_simigrad.distribute.row_exchange import RowExchange
from tf_simigrad.records import Moments

_AVERAGE_KEY = 1_000_000  # past the keys of a reduction


class LocalReduction:
    """One replica: the groups are the even and the odd micro-steps, each with a sum of its own, and nothing travels.

    Args:
        needs: What the update needs.
    """

    def __init__(self, needs: Needs) -> None:
        self._needs = needs
        self.slots = 2 if needs.two_groups else 1

    def shard_shapes(self, shapes: Sequence[tf.TensorShape]) -> list[tuple[int, ...]]:
        """Shapes of one replica's shards of variables of these shapes: their own."""
        return [tuple(shape) for shape in shapes]

    def __call__(self, totals: Totals, micro_steps: tf.Tensor) -> Reduced:
        """Mean gradient and moments. Replica context.

        Args:
            totals: What this replica has accumulated.
            micro_steps: Float32 scalar: how many micro-steps this worker has accumulated.

        Returns:
            Gradients, moments, and what each worker and replica says.
        """
        # Rows have the same indices in every slot: what holds of tensors holds of their values.
        sums, counters = [rows.values(of_slot) for of_slot in totals.sums], totals.counters
        whole = tf.reduce_sum(counters, axis=0)
        added = sums[0] if self.slots == 1 else [a + b for a, b in zip(*sums, strict=True)]
        # Where groups are not compared all is group A: B has neither norm nor weight.
        products = similarity.group_products(sums[0], sums[1] if self.slots == 2 else None)
        weights = tf.stack([counters[0, 1], counters[1, 1] if self.slots == 2 else tf.constant(0.0)])
        moments = _moments(tf.reduce_sum(products, axis=0), weights, whole)
        means, report = [s / whole[1] for s in added], tf.zeros([0])
        if self._needs.adapt is not None:
            variances = _variances([s / whole[1] for s in rows.values(totals.squares)], means)
            shards = Shards(means, variances, whole[3], tf.math.is_finite(moments.squared_norm))
            adapted, report = self._needs.adapt.adapted(shards, tf.identity)
            if self._needs.adapt.keeps_raw:
                self._needs.adapt.keep_raw(means)
            means = adapted
        by_variable = _moments(products, weights, whole) if self._needs.by_variable else None
        return Reduced(rows.like(totals.sums[0], means), moments, micro_steps[None], whole[-1:], by_variable, report)

    def average(self, variables: Sequence[tf.Variable]) -> None:
        """Leaves the variables of the only replica as they are. Replica context."""


class AllToAllReduction:
    """Several replicas: the groups are the first half of them and the rest.

    Each replica receives one shard of every replica's sum (all-to-all), adds them up per group, multiplies the groups on its
    shard, and gathers the sums of all shards. With P elements and N replicas each sends ``2 P (1 - 1/N)`` elements, what a
    ring all-reduce sends, and some scalars. Where the squares of micro-gradients travel too it is half as much again.

    Args:
        replicas: The replicas.
        needs: What the update needs.
        timeout_seconds: Of each collective; see ``CollectiveOps``.
    """

    slots = 1

    def __init__(self, replicas: Replicas, needs: Needs, timeout_seconds: float = 0.0) -> None:
        self._replicas = replicas
        self._count = replicas.count
        self._workers = replicas.workers
        self._in_group_a = replicas.count // 2
        self._needs = needs
        self._collectives = collectives_for(replicas, timeout_seconds)

    def shard_shapes(self, shapes: Sequence[tf.TensorShape]) -> list[tuple[int, ...]]:
        """Shapes of one replica's shards of variables of these shapes."""
        return self._packing(shapes).shard_shapes

    def _packing(self, shapes: Sequence[tf.TensorShape]) -> Packing:
        return Packing(shapes, self._count, any_axis=self._replicas.is_compiled)

    def __call__(self, totals: Totals, micro_steps: tf.Tensor) -> Reduced:
        """Mean gradient and moments, the same on every replica. Replica context; see ``LocalReduction``."""
        keys = itertools.count(1)

        def total(vector: tf.Tensor) -> tf.Tensor:
            return self._collectives.sum(vector, next(keys))

        # Before the gradients: with the weights known, nobody has to wait for all of them while holding what was exchanged.
        said = self._said(totals.counters[0], micro_steps, total)
        carrier = self._carrier(totals, keys, total)
        group_a, group_b = carrier.groups(self._in_group_a)
        products = self._products(carrier, group_a, group_b)
        products = tf.reshape(total(tf.reshape(products, [-1])), products.shape)
        moments = _moments(tf.reduce_sum(products, axis=0), said.weights, said.counters)
        means, report = [(a + b) / said.counters[1] for a, b in zip(group_a, group_b, strict=True)], tf.zeros([0])
        if self._needs.adapt is not None:
            shards = self._shards(carrier, means, said, tf.math.is_finite(moments.squared_norm))
            pieces, report = self._needs.adapt.adapted(shards, total)
            if self._needs.adapt.keeps_raw:
                self._needs.adapt.keep_raw(carrier.gathered(means))
            means = carrier.joined(pieces)
        by_variable = _moments(products, said.weights, said.counters) if self._needs.by_variable else None
        return Reduced(carrier.gathered(means), moments, said.micro_steps, said.fingerprints, by_variable, report)

    def _carrier(self, totals: Totals, keys: Iterator[int], total: Total) -> Carrier:
        """Carries whole variables, and rows of the others."""
        sums, squares = totals.sums[0], totals.squares
        tables = [i for i, s in enumerate(sums) if isinstance(s, tf.IndexedSlices)]
        whole = [i for i in range(len(sums)) if i not in tables]

        def of(places: Sequence[int]) -> tuple[list, list]:
            return [sums[i] for i in places], [squares[i] for i in places] if squares else []

        carriers: list[tuple[Carrier, list[int]]] = []
        if whole:
            packing = self._packing([sums[i].shape for i in whole])
            carriers.append((WholeVariables(*of(whole), packing, self._collectives, keys), whole))
        if tables:
            exchange = RowExchange(self._collectives, self._count, self._replicas.replica_id(), total)
            carriers.append((TableRows(*of(tables), exchange), tables))
        return Several(carriers)

    def _shards(self, carrier: Carrier, means: Sequence[tf.Tensor], said: "_Said", is_finite: tf.Tensor) -> Shards:
        """Mean and variance over the groups that the ``Adapt`` asks for, on this replica's shards."""
        alike = tf.reduce_all(tf.equal(said.micro_steps, said.micro_steps[0]))
        if self._needs.adapt is not None and self._needs.adapt.groups == "replicas":
            groups = tf.math.count_nonzero(said.replica_weights, dtype=tf.float32)
            variances = carrier.variances(said.replica_weights, means)
        else:
            groups, variances = said.counters[3], _variances([s / said.counters[1] for s in carrier.mean_squares()], means)
        return Shards(carrier.pieces(means), carrier.pieces(variances), groups, tf.logical_and(is_finite, alike))

    def average(self, variables: Sequence[tf.Variable]) -> None:
        """Sets each float32 variable to its mean over the replicas, in one message. Replica context."""
        flat = tf.concat([tf.reshape(v, [-1]) for v in variables], axis=0)
        mean = self._collectives.sum(flat, _AVERAGE_KEY) / self._count
        parts = tf.split(mean, [math.prod(v.shape) for v in variables])
        for variable, part in zip(variables, parts, strict=True):
            variable.assign(tf.reshape(part, variable.shape))

    def _products(self, carrier: Carrier, a: Sequence[tf.Tensor], b: Sequence[tf.Tensor]) -> tf.Tensor:
        """[variables, 3] where they are needed; else [1, 3], as only 3 numbers are to travel."""
        if self._needs.by_variable:
            return similarity.group_products(carrier.pieces(a), carrier.pieces(b))
        return tf.reduce_sum(similarity.group_products(a, b), axis=0, keepdims=True)

    def _said(self, counters: tf.Tensor, micro_steps: tf.Tensor, total: Total) -> "_Said":
        """What all replicas say, in one message. The first replica of each worker speaks for it."""
        replica, per_worker = self._replicas.replica_id(), self._count // self._workers
        in_a = tf.cast(replica < self._in_group_a, tf.float32)
        speaks = tf.cast(tf.equal(replica % per_worker, 0), tf.float32)
        this = tf.one_hot(replica, self._count)
        own = _Said(
            weights=tf.stack([in_a * counters[1], (1.0 - in_a) * counters[1]]),
            counters=counters[:-1],
            micro_steps=tf.one_hot(replica // per_worker, self._workers) * micro_steps * speaks,
            fingerprints=this * counters[-1],
            replica_weights=this * counters[1],
        )
        return _Said(*tf.split(total(tf.concat(own, axis=0)), [section.shape[0] for section in own]))


class _Said(NamedTuple):
    """Numbers that add up over the replicas: each fills its own places with what it knows, and the others with 0.

    Attributes:
        weights: Of groups A and B [2].
        counters: All columns of ``COUNTERS`` but the last.
        micro_steps: Of each worker.
        fingerprints: Of each replica.
        replica_weights: Of each replica.
    """

    weights: tf.Tensor
    counters: tf.Tensor
    micro_steps: tf.Tensor
    fingerprints: tf.Tensor
    replica_weights: tf.Tensor


def reduction_for(replicas: Replicas, needs: Needs) -> LocalReduction | AllToAllReduction:
    """The reduction that fits the replicas."""
    return AllToAllReduction(replicas, needs) if replicas.count > 1 else LocalReduction(needs)


def _variances(mean_squares: Sequence[tf.Tensor], means: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Weighted variance from the weighted mean of squares; rounding may leave it below 0."""
    return [s - tf.square(m) for s, m in zip(mean_squares, means, strict=True)]


def _moments(products: tf.Tensor, weights: tf.Tensor, counters: tf.Tensor) -> Moments:
    """Moments of means, from products of sums, [3] or [variables, 3]. A group without weight divides 0 by 0: not measured."""
    ab, aa, bb = tf.unstack(products, axis=-1)
    weight_a, weight_b = tf.unstack(weights)
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
