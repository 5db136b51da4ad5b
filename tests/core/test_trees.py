"""Sums and products over lists of tensors are those of one long vector."""

import numpy as np
import pytest

from tf_simigrad.core import trees

pytestmark = [pytest.mark.one_keras, pytest.mark.usefixtures("tf")]

SHAPES = [(), (1,), (7,), (3, 5), (2, 1, 3, 2)]
ROUNDING = 1e-6  # 54 float32 products, each good to 6e-8


def random_list(seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype("float32") for shape in SHAPES]


def flat(arrays):
    return np.concatenate([np.ravel(a).astype("float64") for a in arrays])


def tensors(tf, arrays):
    return [tf.constant(a) for a in arrays]


@pytest.mark.parametrize("count", range(1, len(SHAPES) + 1))
def test_products_are_those_of_the_long_vector(tf, count):
    a, b = random_list(0)[:count], random_list(1)[:count]
    left, right = tensors(tf, a), tensors(tf, b)
    scale = np.linalg.norm(flat(a)) * np.linalg.norm(flat(b))
    np.testing.assert_allclose(trees.dot(left, right), flat(a) @ flat(b), rtol=0, atol=ROUNDING * scale)
    np.testing.assert_allclose(trees.squared_norm(left), flat(a) @ flat(a), rtol=ROUNDING)
    assert trees.dot(left, right).shape == ()
    assert trees.dot(left, right).dtype == tf.float32


def test_lists_of_different_lengths_are_refused(tf):
    with pytest.raises(ValueError, match="zip"):
        trees.dot(tensors(tf, random_list(0)), tensors(tf, random_list(1)[:-1]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dense_is_float32(tf, dtype):
    value = tf.cast([1.5, -2.0, 0.25], dtype)  # exact in all of them
    result = trees.dense(value)
    assert result.dtype == tf.float32
    np.testing.assert_array_equal(result, [1.5, -2.0, 0.25])


def test_dense_sums_the_rows_that_share_an_index(tf):
    rows = tf.constant([[1.0, 2.0], [3.0, 4.0], [10.0, 20.0]])
    slices = tf.IndexedSlices(rows, tf.constant([2, 0, 2]), tf.constant([4, 2]))
    np.testing.assert_array_equal(trees.dense(slices), [[3.0, 4.0], [0.0, 0.0], [11.0, 22.0], [0.0, 0.0]])


def test_squared_norm_of_half_precision_does_not_overflow(tf):
    gradient = trees.dense(tf.constant([300.0, 400.0], tf.float16))  # 90,000 is beyond float16
    np.testing.assert_allclose(trees.squared_norm([gradient]), 250_000.0, rtol=ROUNDING)
