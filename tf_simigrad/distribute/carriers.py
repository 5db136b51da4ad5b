"""What carries the replicas' sums to shards, where they are compared, and these to all: whole variables, rows of tables."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import tensorflow as tf

from tf_simigrad.core import gsnr, rows
from tf_simigrad.core.rows import Gradient
from tf_simigrad.distribute.collectives import Collectives
from tf_simigrad.distribute.packing import Packing
from tf_simigrad.distribute.row_exchange import RowExchange


class Carrier(Protocol):
    """Some of the variables, exchanged. Whether a shard is of a message or of a variable is the carrier's own affair."""

    def groups(self, in_group_a: int) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """This replica's shards of the sums of groups A and B.

        Args:
            in_group_a: How many replicas are in group A, the first ones.
        """
        ...

    def mean_squares(self) -> list[tf.Tensor]:
        """Shards of the sums of squares over all replicas."""
        ...

    def variances(self, weights: tf.Tensor, means: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Shards of the variance of the replicas' mean gradients.

        Args:
            weights: Of the replicas [replicas].
            means: Shards of the mean gradient.
        """
        ...

    def pieces(self, shards: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Shards as one tensor per variable."""
        ...

    def joined(self, pieces: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The shards of which ``pieces`` makes these."""
        ...

    def gathered(self, shards: Sequence[tf.Tensor]) -> list[Gradient]:
        """What all replicas' shards make: one gradient per variable."""
        ...


class WholeVariables:
    """Variables that travel whole, packed into few messages.

    Args:
        sums: Of this replica, one tensor per variable.
        squares: The same; empty where they do not travel.
        packing: For these variables.
        collectives: Messages among the replicas.
        keys: Of the messages.
    """

    def __init__(
        self,
        sums: Sequence[tf.Tensor],
        squares: Sequence[tf.Tensor],
        packing: Packing,
        collectives: Collectives,
        keys: Iterator[int],
    ) -> None:
        self._packing, self._collectives, self._keys = packing, collectives, keys
        self._of_replicas = self._exchanged(sums)
        self._squares = [tf.reduce_sum(s, axis=0) for s in self._exchanged(squares)] if squares else []
        self.pieces, self.joined = packing.pieces, packing.joined

    def _exchanged(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [self._collectives.exchange(message, next(self._keys)) for message in self._packing.packed(tensors)]

    def groups(self, in_group_a: int) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """See ``Carrier``."""
        a = [tf.reduce_sum(r[:in_group_a], axis=0) for r in self._of_replicas]
        return a, [tf.reduce_sum(r[in_group_a:], axis=0) for r in self._of_replicas]

    def mean_squares(self) -> list[tf.Tensor]:
        """See ``Carrier``."""
        return self._squares

    def variances(self, weights: tf.Tensor, means: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See ``Carrier``."""
        return [gsnr.variance_of_groups(r, weights, m) for r, m in zip(self._of_replicas, means, strict=True)]

    def gathered(self, shards: Sequence[tf.Tensor]) -> list[Gradient]:
        """See ``Carrier``."""
        return self._packing.unpacked([self._collectives.gather(s, next(self._keys)) for s in shards])


class TableRows:
    """Rows of large tables, each with the replica that owns its index. A shard is of one table.

    Args:
        sums: Of this replica, one per table, each of distinct indices.
        squares: The same rows; empty where they do not travel.
        exchange: Among the replicas.
    """

    def __init__(self, sums: Sequence[tf.IndexedSlices], squares: Sequence[tf.IndexedSlices], exchange: RowExchange) -> None:
        self._sums, self._exchange = sums, exchange
        self._received = exchange.exchange(sums, squares)
        self.pieces: Callable = list
        self.joined: Callable = list

    def groups(self, in_group_a: int) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """See ``Carrier``."""
        a = [r.summed_of(r.senders < in_group_a) for r in self._received]
        return a, [r.summed_of(r.senders >= in_group_a) for r in self._received]

    def mean_squares(self) -> list[tf.Tensor]:
        """See ``Carrier``."""
        return [r.summed(r.squares) for r in self._received if r.squares is not None]

    def variances(self, weights: tf.Tensor, means: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See ``Carrier``."""
        return [
            rows.variance_of_groups(r.values, r.senders, r.places, weights, m)
            for r, m in zip(self._received, means, strict=True)
        ]

    def gathered(self, shards: Sequence[tf.Tensor]) -> list[Gradient]:
        """See ``Carrier``."""
        found = self._exchange.gather(self._received, shards)
        return [tf.IndexedSlices(v, i, table.dense_shape) for table, (i, v) in zip(self._sums, found, strict=True)]


class Several:
    """Carriers of different variables as one, whose lists of shards are theirs one after the other.

    Args:
        carriers: Each with the places of its variables among all.
    """

    def __init__(self, carriers: Sequence[tuple[Carrier, Sequence[int]]]) -> None:
        self._carriers = [carrier for carrier, _ in carriers]
        self._places = [place for _, places in carriers for place in places]
        self._variables = [len(places) for _, places in carriers]
        self._shards: list[int] = []

    def groups(self, in_group_a: int) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """See ``Carrier``."""
        found = [c.groups(in_group_a) for c in self._carriers]
        self._shards = [len(a) for a, _ in found]
        return [x for a, _ in found for x in a], [x for _, b in found for x in b]

    def mean_squares(self) -> list[tf.Tensor]:
        """See ``Carrier``."""
        return [x for c in self._carriers for x in c.mean_squares()]

    def variances(self, weights: tf.Tensor, means: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See ``Carrier``."""
        return [x for c, m in self._each(means) for x in c.variances(weights, m)]

    def pieces(self, shards: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See ``Carrier``."""
        return self._ordered([x for c, of_carrier in self._each(shards) for x in c.pieces(of_carrier)])

    def joined(self, pieces: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See ``Carrier``."""
        apart = _split([pieces[place] for place in self._places], self._variables)
        return [x for c, of_carrier in zip(self._carriers, apart, strict=True) for x in c.joined(of_carrier)]

    def gathered(self, shards: Sequence[tf.Tensor]) -> list[Gradient]:
        """See ``Carrier``."""
        return self._ordered([x for c, of_carrier in self._each(shards) for x in c.gathered(of_carrier)])

    def _each(self, shards: Sequence[tf.Tensor]) -> Iterator[tuple[Carrier, Sequence[tf.Tensor]]]:
        return zip(self._carriers, _split(shards, self._shards), strict=True)

    def _ordered(self, of_variables: Sequence) -> list:
        """In the order of the places."""
        return [x for _, x in sorted(zip(self._places, of_variables, strict=True), key=lambda pair: pair[0])]


def _split(items: Sequence, lengths: Sequence[int]) -> list[Sequence]:
    ends = list(itertools.accumulate(lengths))
    return [items[end - length : end] for end, length in zip(ends, lengths, strict=True)]
