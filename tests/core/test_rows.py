"""Rows of large tables against dense arrays in numpy."""

import numpy as np
import pytest

from tests import vrgd_oracle
from tf_simigrad.core import gsnr, rows, similarity
from tf_simigrad.core.by_layer import by_layer

pytestmark = pytest.mark.one_keras

TABLE = (9, 2, 3)


def dense(indices, values):
    table = np.zeros((TABLE[0], *values.shape[1:]))
    np.add.at(table, indices, values)
    return table


def some_rows(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, TABLE[0], size=count), rng.normal(size=(count, *TABLE[1:])).astype("float32")


@pytest.mark.parametrize("count", [0, 1, 40])
def test_rows_of_the_same_index_are_summed(tf, count):
    indices, values = some_rows(count)
    found, sums = rows.summed(tf.constant(indices, tf.int64), tf.constant(values))
    assert sorted(found.numpy()) == sorted(set(indices))
    np.testing.assert_allclose(dense(found.numpy(), sums.numpy()), dense(indices, values), rtol=1e-5, atol=1e-5)


def test_a_gradient_becomes_float32_rows_of_distinct_indices(tf):
    indices, values = some_rows(20)
    slices = tf.IndexedSlices(tf.cast(values, tf.float16), tf.constant(indices, tf.int32), tf.constant(TABLE))
    found = rows.of_gradient(slices)
    assert found.values.dtype == tf.float32 and found.indices.dtype == tf.int64
    assert len(set(found.indices.numpy())) == len(found.indices)
    np.testing.assert_allclose(tf.convert_to_tensor(found), dense(indices, values.astype("float16")), atol=1e-3)


def test_a_dense_gradient_becomes_all_of_its_rows(tf):
    found = rows.of_gradient(tf.reshape(tf.range(6, dtype=tf.float16), [3, 2]))
    assert found.values.dtype == tf.float32 and list(found.indices.numpy()) == [0, 1, 2]
    np.testing.assert_array_equal(tf.convert_to_tensor(found), [[0, 1], [2, 3], [4, 5]])


def test_values_and_like_are_each_others_inverse(tf):
    slices = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([4, 1], tf.int64), tf.constant([5, 3], tf.int64))
    mixed = [tf.zeros([2]), slices]
    doubled = rows.like(mixed, [2 * v for v in rows.values(mixed)])
    assert not isinstance(doubled[0], tf.IndexedSlices)
    np.testing.assert_array_equal(tf.convert_to_tensor(doubled[1])[:, 0], [0, 2, 0, 0, 2])


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0, 1.0], [3.0, 0.5, 2.0, 0.0]], ids=["equal", "one_empty"])
def test_variance_over_groups_that_do_not_say_their_zeros(tf, weights):
    """A row that only some groups have is compared with the zeros of the others."""
    rng = np.random.default_rng(1)
    sums = np.zeros((4, 6, 2))  # groups, distinct rows, elements
    for group, weight in enumerate(weights):
        touched = rng.permutation(6)[: 3 if weight else 0]
        sums[group, touched] = rng.normal(size=(len(touched), 2))
    weight = np.array(weights)
    mean = sums.sum(axis=0) / weight.sum()
    expected = gsnr.variance_of_groups(*(tf.constant(a, tf.float32) for a in (sums, weight, mean)))
    group, place = np.nonzero(sums.any(axis=2))
    found = rows.variance_of_groups(
        tf.constant(sums[group, place], tf.float32), tf.constant(group, tf.int32), tf.constant(place, tf.int32),
        tf.constant(weight, tf.float32), tf.constant(mean, tf.float32),
    )  # fmt: skip
    by_hand = sum(w * (s / w - mean) ** 2 for s, w in zip(sums, weight, strict=True) if w) / weight.sum()
    np.testing.assert_allclose(found, by_hand, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_rows_have_the_statistics_of_the_table(tf):
    """Untouched rows are zeros, which neither dot products nor the mean ratio of a layer count."""
    rng = np.random.default_rng(2)
    groups = rng.normal(size=(8, 4, 3)) + 1.0
    table = np.zeros((8, 50, 3))
    table[:, [3, 7, 20, 49]] = groups

    @tf.function
    def of(means, variances):
        sums = gsnr.layer_sums([means], [variances])
        (factor,) = gsnr.multipliers([means], [variances], sums, tf.constant(0.1), tf.constant(1.0))
        return factor, similarity.group_products([means], [variances])

    def constants(groups):
        return tf.constant(groups.mean(axis=0), tf.float32), tf.constant(groups.var(axis=0), tf.float32)

    unknown = [tf.TensorSpec([None, 3])] * 2
    factor, products = of.get_concrete_function(*unknown)(*constants(groups))
    of_table, products_of_table = of(*constants(table))
    np.testing.assert_allclose(factor, vrgd_oracle.multiplier(groups, 0.1, 1.0), rtol=2e-5)
    np.testing.assert_allclose(factor, of_table.numpy()[[3, 7, 20, 49]], rtol=2e-5)
    np.testing.assert_allclose(products, products_of_table, rtol=1e-5)


def test_layers_of_unknown_shape_are_not_compiled(tf):
    """Each number of rows would be compiled anew; results stay in the order of the layers."""
    calls = []

    @by_layer
    def doubled(layers, common):
        calls.append(len(layers))
        return [common * x for (x,) in layers]

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def run(x):
        return doubled([(x,), (tf.constant([1.0]),), (2 * x,), (tf.constant([5.0]),)], tf.constant(2.0))

    assert [list(t.numpy()) for t in run(tf.constant([3.0, 4.0]))] == [[6.0, 8.0], [2.0], [12.0, 16.0], [10.0]]
    graph = run.get_concrete_function().graph
    compiled = [op for op in graph.get_operations() if op.type in ("PartitionedCall", "StatefulPartitionedCall")]
    assert calls == [2, 2] and len(compiled) == 1 and len(compiled[0].outputs) == 2
