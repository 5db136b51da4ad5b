"""The layout of gradients in messages: nothing is lost, and every replica's row holds its share of every variable."""

import math

import numpy as np
import pytest

from tf_simigrad.distribute import packing

pytestmark = pytest.mark.one_keras

SHAPES = [(7,), (), (3, 5), (0, 2), (1,), (13, 2)]


def tensors(tf):
    rng = np.random.default_rng(0)
    return [tf.constant(rng.normal(size=shape), tf.float32) for shape in SHAPES]


@pytest.mark.parametrize("bucket_elements", [1, 9, 10_000])
@pytest.mark.parametrize("replicas", [1, 2, 5, 40])
def test_unpacked_is_what_was_packed(tf, monkeypatch, replicas, bucket_elements):
    monkeypatch.setattr(packing, "BUCKET_ELEMENTS", bucket_elements)
    layout, given = packing.Packing([tf.TensorShape(s) for s in SHAPES], replicas), tensors(tf)
    matrices = layout.packed(given)
    assert all(m.shape[0] == replicas for m in matrices)
    for before, after in zip(given, layout.unpacked(matrices), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("replicas", [2, 5])
def test_a_row_holds_a_shard_of_each_variable(tf, replicas):
    layout, given = packing.Packing([tf.TensorShape(s) for s in SHAPES], replicas), tensors(tf)
    assert layout.shard_sizes == [-(-math.prod(s) // replicas) for s in SHAPES]
    rows = layout.packed(given)
    shards = [layout.pieces([matrix[r] for matrix in rows]) for r in range(replicas)]
    for i, tensor in enumerate(given):
        assert [s[i].shape[0] for s in shards] == [layout.shard_sizes[i]] * replicas
        joined = np.concatenate([s[i] for s in shards])
        np.testing.assert_array_equal(joined[: tf.size(tensor)], np.ravel(tensor))
        assert not joined[tf.size(tensor) :].any()
    for r in range(replicas):
        for vector, matrix in zip(layout.joined(shards[r]), rows, strict=True):
            np.testing.assert_array_equal(vector, matrix[r])


@pytest.mark.parametrize(
    ("sizes", "elements", "buckets"),
    [
        ([5], 10, [[0]]),
        ([5, 5, 1], 10, [[0, 1], [2]]),
        ([4, 4, 4, 4, 4], 10, [[0, 1, 2], [3, 4]]),
        ([99, 1, 1], 10, [[0], [1, 2]]),
        ([1, 99, 1], 10, [[0, 1], [2]]),
        ([3, 2, 1], 1, [[0], [1], [2]]),
        ([0, 0, 10, 0], 10, [[2]]),
        ([1] * 7, 3, [[0, 1, 2], [3, 4, 5], [6]]),
    ],
    ids=str,
)
def test_pack_order(sizes, elements, buckets):
    assert packing.pack_order(sizes, elements) == buckets
