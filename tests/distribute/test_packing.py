"""The layout of gradients in messages: nothing is lost, and every replica's row holds its share of every variable."""

import math

import numpy as np
import pytest

from tf_simigrad.distribute import packing

pytestmark = pytest.mark.one_keras

SHAPES = [(7,), (), (3, 5), (0, 2), (1,), (13, 2), (10, 4), (3, 40, 3), (40,)]


def tensors(tf):
    rng = np.random.default_rng(0)
    return [tf.constant(rng.normal(size=shape), tf.float32) for shape in SHAPES]


@pytest.fixture(params=[1, 30, 10_000], ids=lambda elements: f"alone_from_{elements}")
def alone(request, monkeypatch):
    """How large a variable has to be for a message of its own."""
    monkeypatch.setattr(packing, "ALONE_ELEMENTS", request.param)


@pytest.mark.parametrize("any_axis", [False, True])
@pytest.mark.parametrize("bucket_elements", [1, 9, 10_000])
@pytest.mark.parametrize("replicas", [1, 2, 5, 40])
def test_unpacked_is_what_was_packed(tf, monkeypatch, alone, replicas, bucket_elements, any_axis):
    monkeypatch.setattr(packing, "BUCKET_ELEMENTS", bucket_elements)
    layout, given = packing.Packing([tf.TensorShape(s) for s in SHAPES], replicas, any_axis), tensors(tf)
    matrices = layout.packed(given)
    assert all(m.shape[0] == replicas for m in matrices)
    assert sorted(i for message in layout.messages for i in message) == [0, 1, 2, 4, 5, 6, 7, 8]
    for before, after in zip(given, layout.unpacked(matrices), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("any_axis", [False, True])
@pytest.mark.parametrize("replicas", [2, 5])
def test_a_row_holds_a_shard_of_each_variable(tf, alone, replicas, any_axis):
    layout, given = packing.Packing([tf.TensorShape(s) for s in SHAPES], replicas, any_axis), tensors(tf)
    assert [math.prod(shape) for shape in layout.shard_shapes] == [-(-math.prod(s) // replicas) for s in SHAPES]
    rows = layout.packed(given)
    shards = [layout.pieces([matrix[r] for matrix in rows]) for r in range(replicas)]
    for i, tensor in enumerate(given):
        assert [tuple(s[i].shape) for s in shards] == [layout.shard_shapes[i]] * replicas
        every = np.concatenate([np.ravel(s[i]) for s in shards])
        padding = every.size - tensor.numpy().size
        np.testing.assert_array_equal(np.sort(every), np.sort(np.append(np.ravel(tensor), [0.0] * padding)))
    for r in range(replicas):
        for vector, matrix in zip(layout.joined(shards[r]), rows, strict=True):
            np.testing.assert_array_equal(vector, matrix[r])


@pytest.mark.parametrize(
    ("shape", "any_axis", "shard_shape"),
    [
        ((10, 4), False, (5, 4)),
        ((3, 40), False, (60,)),
        ((3, 40), True, (3, 20)),
        ((3, 40, 6), True, (3, 20, 6)),
        ((3, 5), True, (8,)),
        ((4,), True, (2,)),
    ],
    ids=str,
)
def test_a_large_variable_is_cut_where_it_divides(tf, monkeypatch, shape, any_axis, shard_shape):
    monkeypatch.setattr(packing, "ALONE_ELEMENTS", 4)
    layout = packing.Packing([tf.TensorShape(shape)], 2, any_axis)
    assert layout.shard_shapes == [shard_shape]
    x = np.arange(math.prod(shape), dtype="float32").reshape(shape)
    (rows,) = layout.packed([tf.constant(x)])
    flat = len(shard_shape) < len(shape)
    axis = 0 if flat else next(i for i in range(len(shape)) if shape[i] != shard_shape[i])
    whole = np.append(np.ravel(x), [0.0] * (-x.size % 2)) if flat else x
    np.testing.assert_array_equal(rows, np.split(whole, 2, axis))


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
