"""Equal for equal data, different for data in another order, with one other value, or of other examples."""

import numpy as np
import pytest

from tf_simigrad.core.fingerprint import SAMPLE, fingerprint

pytestmark = pytest.mark.one_keras


def of(tf, *arrays):
    return float(fingerprint([tf.constant(a) for a in arrays]))


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64", "bool"])
@pytest.mark.parametrize("size", [1, 7, SAMPLE, 5 * SAMPLE + 3])
def test_it_is_the_same_for_the_same_values_only(tf, dtype, size):
    rng = np.random.default_rng(size)
    left, right = (rng.integers(0, 2 if dtype == "bool" else 200, size).astype(dtype) for _ in range(2))
    if size == 1:
        left, right = np.array([1], dtype), np.array([0], dtype)
    assert of(tf, left) == of(tf, left.copy()) != of(tf, right)
    stride = size // SAMPLE + 1
    sample = left[::stride].astype("float64")
    assert of(tf, left) == pytest.approx(sample @ np.linspace(1, 2, len(sample)), rel=1e-4)


def test_order_counts(tf):
    assert of(tf, np.array([1.0, 2.0, 4.0], "float32")) != of(tf, np.array([4.0, 2.0, 1.0], "float32"))


def test_what_holds_no_real_numbers_is_left_out(tf):
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
    assert float(fingerprint([tf.constant(["a"]), ragged, None])) == 0.0
    assert float(fingerprint([tf.constant(["a"]), tf.constant([2.0])])) == 2.0


def test_a_batch_without_examples(tf):
    assert float(fingerprint([tf.zeros([0, 3])])) == 0.0
