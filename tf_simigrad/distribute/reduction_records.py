"""What goes into a reduction, what it shows inside, and what comes out of it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from tf_simigrad.core.rows import Gradient
from tf_simigrad.records import Moments

COUNTERS = ("examples", "weight", "weighted_squared_norms", "micro_gradients", "data_fingerprint")
"""Columns of the counters that travel with the gradient sums, in order. All but the last are added up over the replicas."""


class Totals(NamedTuple):
    """What one replica has accumulated.

    Attributes:
        sums: For each slot, the weighted gradient sums of its micro-steps; float32, unscaled. A variable without a gradient has
            zeros. Those of large tables are rows of distinct indices, the same ones in every slot and in ``squares``.
        counters: Float32 [slots, 5], the columns of ``COUNTERS``.
        squares: Sums over the micro-steps of weight times squared micro-gradient, elementwise; empty where nobody needs them.
    """

    sums: Sequence[Sequence[Gradient]]
    counters: tf.Tensor
    squares: Sequence[Gradient] = ()


class Shards(NamedTuple):
    """The mean gradient inside the reduction: of each variable one replica's shard.

    Attributes:
        means: Mean gradient over all examples, float32, one tensor per variable; of a large table the rows that this replica
            owns and some example has touched.
        variances: Weighted variance of the groups' mean gradients, same shapes.
        groups: Float32 scalar: number of groups with a weight.
        is_usable: Boolean scalar, the same on every replica: whether the update will be applied.
    """

    means: list[tf.Tensor]
    variances: list[tf.Tensor]
    groups: tf.Tensor
    is_usable: tf.Tensor


Total = Callable[[tf.Tensor], tf.Tensor]
"""The sum over all replicas of a float32 vector."""


class Adapt(Protocol):
    """What changes the mean gradient on its shards, before they are gathered (``optimizers.vrgd``).

    Attributes:
        groups: "micro_steps" or "replicas": over whose gradients ``Shards.variances`` are.
        keeps_raw: Whether the mean gradients are gathered as they were before, too.
    """

    groups: str
    keeps_raw: bool

    def keep_raw(self, gradients: Sequence[tf.Tensor]) -> None:
        """Takes the mean gradients as they were before, where ``keeps_raw``. Replica context."""
        ...

    def report_size(self, variables: int) -> int:
        """How many numbers are reported for so many variables."""
        ...

    def adapted(self, shards: Shards, total: Total) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The gradients in place of ``shards.means``, and float32 numbers to report. Replica context."""
        ...


class Needs(NamedTuple):
    """What an update needs of its reduction.

    Attributes:
        two_groups: Whether two groups are compared, so that a single replica must keep their sums apart.
        by_variable: Whether the groups are compared for each variable too.
        adapt: What changes the mean gradient on its shards, or None.
    """

    two_groups: bool = True
    by_variable: bool = False
    adapt: Adapt | None = None


class Reduced(NamedTuple):
    """What a reduction returns, the same on every replica.

    Attributes:
        gradients: Mean gradients over all examples, float32, unscaled; adapted where there is an ``Adapt``; of large tables
            rows of distinct indices.
        moments: Moments of the groups.
        micro_steps: Float32 [workers]: what each worker says that it has accumulated.
        fingerprints: Float32 [replicas]: of the data of each replica (``core.fingerprint``), added up over its micro-steps.
        by_variable: Moments whose norms and products are of each variable [variables]; None where nobody needs them.
        adapted: What the ``Adapt`` reports, float32 vector; empty where there is none.
    """

    gradients: list[Gradient]
    moments: Moments
    micro_steps: tf.Tensor
    fingerprints: tf.Tensor
    by_variable: Moments | None
    adapted: tf.Tensor
