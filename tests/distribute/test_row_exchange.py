"""The rows of large tables over replicas: mean, moments and variances are those of the dense table."""

import numpy as np
import pytest

from tests.distribute.test_reduction import MEAN, MOMENT, TIMEOUT_SECONDS, Probe, counters_of, expected_moments, flat
from tf_simigrad.distribute import reduction as reductions
from tf_simigrad.distribute import row_exchange
from tf_simigrad.distribute.reduction_records import Needs, Totals
from tf_simigrad.distribute.replicas import Replicas
from tf_simigrad.records import Moments

pytestmark = pytest.mark.one_keras

SHAPES = [(40, 3), (7,), (11,), (300, 2, 2)]
TABLES = (0, 2, 3)  # the second is a variable that travels whole, the third has rows of one number


def sparse_sums(replicas, seed, most=12):
    """Per replica and table the rows that it has touched, by index; the last replica has touched nothing of the first table."""
    rng = np.random.default_rng(seed)
    found = []
    for replica in range(replicas):
        of_replica = []
        for place, shape in enumerate(SHAPES):
            count = shape[0] if place not in TABLES else int(rng.integers(1, min(most, shape[0])))
            count = 0 if (replica, place) == (replicas - 1, 0) else count
            indices = rng.permutation(shape[0])[:count]
            table = np.zeros(shape, "float32")
            table[indices] = 1.0 + rng.normal(size=(count, *shape[1:]))
            of_replica.append((indices, table))
        found.append(of_replica)
    return found


class Distributed:
    """A reduction that is traced once, and run on sums in either form."""

    def __init__(self, tf, strategy, needs):
        self.tf, self.strategy = tf, strategy
        reduction = reductions.AllToAllReduction(Replicas(strategy), needs, TIMEOUT_SECONDS)
        self.traces = 0

        @tf.function(reduce_retracing=True)
        def run(sums, squares, counters):
            self.traces += 1

            def one(sums, squares, counters):
                reduced = reduction(Totals([self.slices(sums)], counters[None], self.slices(squares)), tf.constant(1.0))
                gradients = [tf.convert_to_tensor(g) for g in reduced.gradients]
                sizes = [tf.size(g.indices) for g in reduced.gradients if isinstance(g, tf.IndexedSlices)]
                by_variable = () if reduced.by_variable is None else reduced.by_variable
                return gradients, sizes, reduced.moments, by_variable, reduced.adapted

            return strategy.run(one, args=(sums, squares, counters))

        self._run = run

    def slices(self, sums):
        return [
            self.tf.IndexedSlices(s[1], s[0], self.tf.constant(shape, self.tf.int64)) if isinstance(s, tuple) else s
            for s, shape in zip(sums, SHAPES, strict=False)
        ]

    def __call__(self, sums, counters, squares=()):
        """What every replica gets: [replica](gradients, rows of each table, moments, moments by variable, adapted)."""
        tf, strategy = self.tf, self.strategy

        def distributed(make):
            return strategy.experimental_distribute_values_from_function(
                lambda context: tf.constant(make(context.replica_id_in_sync_group))
            )

        def of(sums, place):
            if place not in TABLES:
                return distributed(lambda r: sums[r][place][1])
            return (distributed(lambda r: sums[r][place][0].astype("int64")),
                    distributed(lambda r: sums[r][place][1][sums[r][place][0]]))  # fmt: skip

        given = [of(sums, place) for place in range(len(SHAPES))]
        squared = [of(squares, place) for place in range(len(SHAPES))] if squares else []
        results = self._run(given, squared, distributed(lambda r: counters[r]))
        local = strategy.experimental_local_results
        return [tf.nest.map_structure(lambda v, r=r: local(v)[r].numpy(), results) for r in range(len(sums))]


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_the_table_is_reduced_without_being_dense(tf, strategies, replicas):
    """With other rows each time, and one trace."""
    run = Distributed(tf, strategies(replicas), Needs(by_variable=True))
    counters = counters_of([3.0, 1.0, 5.0, 0.5, 2.0][:replicas])
    for seed, most in ((0, 12), (1, 3), (2, 12), (3, 200)):
        sums = sparse_sums(replicas, seed, most)
        whole, expected = expected_moments([[t for _, t in s] for s in sums], counters, in_group_a=replicas // 2)
        results = run(sums, counters)
        touched = [len({i for s in sums for i in s[place][0]}) for place in TABLES]
        for gradients, sizes, moments, by_variable, _ in results:
            np.testing.assert_allclose(flat(gradients), whole, **MEAN)
            assert list(sizes) == touched
            for name, value, right in zip(Moments._fields, moments, expected, strict=True):
                np.testing.assert_allclose(value, right, **MOMENT, err_msg=name)
            for place in range(len(SHAPES)):
                _, alone = expected_moments([[s[place][1]] for s in sums], counters, in_group_a=replicas // 2)
                np.testing.assert_allclose(by_variable.dot[place], alone.dot, **MOMENT)
        for result in results[1:]:  # the same bits everywhere
            np.testing.assert_array_equal(flat(result[0]), flat(results[0][0]))
    assert run.traces < 4  # sizes that happen to be the same on all replicas are traced as static


@pytest.mark.parametrize("groups", ["replicas", "micro_steps"])
def test_what_acts_on_shards_sees_the_variances_of_the_rows(tf, strategies, groups):
    replicas, weights = 4, np.array([3.0, 1.0, 5.0, 0.5])
    run = Distributed(tf, strategies(replicas), Needs(adapt=Probe(tf, groups)))
    sums = sparse_sums(replicas, seed=4)
    squares = [[(i, 3 * np.abs(t)) for i, t in s] for s in sums] if groups == "micro_steps" else ()
    counters = counters_of(weights)
    vectors = np.array([flat([t for _, t in s]) for s in sums])
    mean = vectors.sum(axis=0) / weights.sum()
    if groups == "replicas":
        variance, count = weights @ (vectors / weights[:, None] - mean) ** 2 / weights.sum(), replicas
    else:
        variance = sum(flat([t for _, t in s]) for s in squares) / weights.sum() - mean**2
        count = counters[:, 3].sum()
    for gradients, _, _, _, adapted in run(sums, counters, squares):
        np.testing.assert_allclose(flat(gradients), mean / 2, **MEAN)
        np.testing.assert_allclose(adapted, [count, 1.0, variance.sum()], rtol=2e-5)


def test_indices_and_values_travel_to_the_bit(tf, strategies):
    """An index is bits in a float32 column, where they may be those of a NaN or of a number too small to be normal."""
    replicas = strategies(2)
    indices = np.array([0, 1, 2, 3, 2**20 + 1, 2**24 + 1, 2**31 - 1, 2**31 - 2], "int64")

    reduction = reductions.AllToAllReduction(Replicas(replicas), Needs(), TIMEOUT_SECONDS)

    @tf.function
    def run():
        def one():
            shape = tf.constant([2**31, 1], tf.int64)
            sums = tf.IndexedSlices(tf.reshape(tf.cast(tf.range(8), tf.float32), [8, 1]), tf.constant(indices), shape)
            reduced = reduction(Totals([[sums]], tf.ones([1, 5])), tf.constant(1.0))
            return reduced.gradients[0].indices, reduced.gradients[0].values

        return replicas.run(one)

    for found, values in zip(*(replicas.experimental_local_results(v) for v in run()), strict=True):
        assert dict(zip(found.numpy(), values.numpy()[:, 0], strict=True)) == dict(zip(indices, range(8), strict=True))


@pytest.mark.parametrize("counts", [(0, 0), (1, 5000), (4096, 4095), (2**24 + 3, 7)])
def test_counts_are_exact_beyond_what_float32_holds(tf, counts):
    exchanges = [row_exchange.RowExchange(None, 2, tf.constant(r), lambda vector: vector) for r in (0, 1)]
    said = [e._largest([tf.constant(c), tf.constant(3)]) for e, c in zip(exchanges, counts, strict=True)]
    assert max(int(s[0]) for s in said) == max(counts)
    assert all(int(s[1]) == 3 for s in said)


def test_a_message_is_filled_up_by_less_than_a_fifth(tf):
    ladder = row_exchange.LADDER
    assert all(1 < b / a < 1.2 for a, b in zip(ladder, ladder[1:], strict=False))
    assert ladder[-1] > 2**38
    for length in (1, 255, 257, 100_000):
        rung, message = row_exchange._message([tf.ones([2, length])])
        assert message.shape[1] == ladder[int(rung)] >= length
        assert ladder[int(rung)] == min(rung for rung in ladder if rung >= length)
