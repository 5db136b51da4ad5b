"""Sums of rows over many micro-steps against a dense table in numpy."""

import numpy as np
import pytest

from tf_simigrad.distribute.replicas import Replicas
from tf_simigrad.train.row_sums import RowSums

pytestmark = pytest.mark.one_keras

TABLE, COLUMNS = (1000, 3), 2


@pytest.mark.parametrize("replicas", [1, 2])
def test_many_micro_steps_against_numpy(tf, strategies, replicas):
    """Each replica its own; again after clearing, with the room that is there; memory follows the distinct rows."""
    strategy = strategies(replicas)
    sums = RowSums(Replicas(strategy), tf.TensorShape(TABLE), COLUMNS)

    @tf.function(reduce_retracing=True)
    def add(indices, values):
        strategy.run(sums.add, args=(indices, values))

    @tf.function
    def read_and_clear():
        def one():
            read = sums.read()
            with tf.control_dependencies([tf.identity(s.values) for s in read]):
                sums.clear()
            return [(s.indices, s.values) for s in read]

        return strategy.run(one)

    def distributed(make):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(make(context.replica_id_in_sync_group))
        )

    rng = np.random.default_rng(0)
    for micro_steps, distinct in ((50, 20), (3, 40), (1, 5)):
        expected = np.zeros((replicas, *TABLE[:1], COLUMNS, *TABLE[1:]))
        for _ in range(micro_steps):
            count = int(rng.integers(0, 8))
            indices = [rng.integers(0, distinct, size=count) * (r + 1) for r in range(replicas)]
            values = rng.normal(size=(replicas, count, COLUMNS, *TABLE[1:])).astype("float32")
            for r in range(replicas):
                np.add.at(expected[r], indices[r], values[r])
            add(distributed(lambda r, i=indices: i[r].astype("int64")), distributed(lambda r, v=values: v[r]))
        columns = read_and_clear()
        for r in range(replicas):
            local = [[strategy.experimental_local_results(t)[r].numpy() for t in column] for column in columns]
            assert len(set(local[0][0])) == len(local[0][0]) <= distinct
            for c, (indices, values) in enumerate(local):
                np.testing.assert_array_equal(indices, local[0][0])
                dense = np.zeros(TABLE)
                dense[indices] = values
                np.testing.assert_allclose(dense, expected[r, :, c], rtol=1e-5, atol=1e-5)
    # 40 distinct rows at most, twice as much room, and what came last: not the 200 rows that were added, nor the table's 1,000
    assert max(len(part.numpy()) for v in sums.variables[:1] for part in Replicas(strategy).local(v)) <= 2 * 40 + 8


def test_resetting_from_the_host_forgets_the_rows(tf, strategies):
    replicas = Replicas(strategies(1))
    sums = RowSums(replicas, tf.TensorShape(TABLE), 1)
    add = tf.function(lambda: sums.add(tf.constant([4], tf.int64), tf.ones([1, 1, 3])))
    add()
    sums.reset()
    (read,) = tf.function(sums.read)()
    assert len(read.indices) == 0
    add()
    (read,) = tf.function(sums.read)()
    assert list(read.indices.numpy()) == [4] and list(read.values.numpy()[0]) == [1, 1, 1]
