"""FLOPs are those that one counts by hand, forward and backward, through functions and branches; what they lack is said."""

import pytest
import tensorflow as tf

from models import bert, cifar_resnet
from tf_simigrad.compat import tpu_description
from tools import flops

pytestmark = pytest.mark.usefixtures("tf")


def traced(function, *shapes):
    return tf.function(function).get_concrete_function(*(tf.TensorSpec(shape) for shape in shapes))


def counted(function, *shapes):
    found = flops.count(traced(function, *shapes))
    assert found.uncounted == ()
    assert found.total == sum(found.by_op.values())
    return found.by_op


def gradient(function, variables=()):
    """Of the sum of a function with respect to variables; to its argument too, if there are none."""

    def of(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(function(x) ** 2)
        return tape.gradient(loss, list(variables) or [x])

    return of


@pytest.fixture
def dense():
    layer = tf.keras.layers.Dense(7)
    layer.build((None, 5))
    return layer


FORWARD = 2 * 3 * 5 * 7


def test_dense_forward(dense):
    assert counted(dense, [3, 5]) == {"MatMul": FORWARD}


@pytest.mark.parametrize("nested", [False, True])
def test_dense_backward(dense, nested):
    """A called function's gradient computes that of its argument too; TensorFlow leaves out what nobody asks for."""
    function = tf.function(dense) if nested else dense
    assert counted(gradient(function, dense.trainable_variables), [3, 5]) == {"MatMul": 2 * FORWARD}
    assert counted(gradient(function), [3, 5]) == {"MatMul": 2 * FORWARD}

    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(function(x) ** 2)
        return tape.gradient(loss, [x, *dense.trainable_variables])

    assert counted(both, [3, 5]) == {"MatMul": 3 * FORWARD}


@pytest.mark.parametrize(("padding", "height", "width"), [("same", 4, 5), ("valid", 3, 4)])
def test_strided_convolution(padding, height, width):
    layer = tf.keras.layers.Conv2D(6, 3, 2, padding)
    layer.build((None, 7, 9, 4))
    forward = 2 * (2 * height * width * 6) * (3 * 3 * 4)
    assert counted(layer, [2, 7, 9, 4]) == {"Conv2D": forward}
    to_weights = counted(gradient(layer, layer.trainable_variables), [2, 7, 9, 4])
    assert to_weights == {"Conv2D": forward, "Conv2DBackpropFilter": forward}
    assert counted(gradient(layer), [2, 7, 9, 4]) == {"Conv2D": forward, "Conv2DBackpropInput": forward}


def test_convolution_in_groups():
    forward = 2 * (2 * 7 * 9 * 6) * (3 * 3 * 2)
    kernel = tf.Variable(tf.zeros([3, 3, 2, 6]))
    found = counted(gradient(lambda x: tf.nn.conv2d(x, kernel, 1, "SAME"), [kernel]), [2, 7, 9, 4])
    assert found == {"Conv2D": forward, "Conv2DBackpropFilter": forward}


def test_transposed_convolution():
    """Each element of its input meets the whole kernel once."""
    layer = tf.keras.layers.Conv2DTranspose(6, 3, 2, "same")
    layer.build((None, 4, 5, 8))
    assert counted(layer, [2, 4, 5, 8]) == {"Conv2DBackpropInput": 2 * (2 * 4 * 5 * 8) * (3 * 3 * 6)}


def test_depthwise_convolution():
    layer = tf.keras.layers.DepthwiseConv2D(3, 2, "same", depth_multiplier=2)
    layer.build((None, 7, 9, 4))
    forward, name = 2 * (2 * 4 * 5 * 8) * (3 * 3), "DepthwiseConv2dNative"
    found = counted(gradient(layer, layer.trainable_variables), [2, 7, 9, 4])
    assert found == {name: forward, f"{name}BackpropFilter": forward}
    assert counted(gradient(layer), [2, 7, 9, 4]) == {name: forward, f"{name}BackpropInput": forward}


@pytest.mark.parametrize(
    ("function", "shapes", "op", "expected"),
    [
        (tf.matmul, ([3, 5], [5, 7]), "MatMul", 210),
        (lambda a, b: tf.matmul(a, b, transpose_a=True), ([5, 3], [5, 7]), "MatMul", 210),
        (lambda a, b: tf.matmul(a, b, transpose_b=True), ([3, 5], [7, 5]), "MatMul", 210),
        (lambda a, b: tf.raw_ops.SparseMatMul(a=a, b=b, transpose_a=True), ([5, 3], [5, 7]), "SparseMatMul", 210),
        (tf.matmul, ([4, 1, 3, 5], [2, 5, 7]), "BatchMatMulV2", 8 * 210),
        (lambda a, b: tf.matmul(a, b, transpose_a=True), ([4, 1, 5, 3], [2, 5, 7]), "BatchMatMulV2", 8 * 210),
        (lambda a, b: tf.raw_ops.BatchMatMul(x=a, y=b, adj_x=True), ([4, 5, 3], [4, 5, 7]), "BatchMatMul", 4 * 210),
        (lambda a, b: tf.raw_ops.BatchMatMulV3(x=a, y=b, Tout=tf.float32), ([4, 3, 5], [5, 7]), "BatchMatMulV3", 4 * 210),
    ],
)
def test_matrix_products(function, shapes, op, expected):
    assert counted(function, *shapes) == {op: expected}


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        ("aecd,abcd->acbe", ([2, 3, 4, 5], [2, 6, 4, 5]), 2 * 2 * 4 * 6 * 3 * 5),
        ("acbe,aecd->abcd", ([2, 4, 6, 3], [2, 3, 4, 5]), 2 * 2 * 4 * 6 * 3 * 5),
        ("abc,cde->abde", ([2, 3, 4], [4, 5, 6]), 2 * 2 * 3 * 5 * 6 * 4),
        ("...ij,jk->...ik", ([8, 9, 3, 5], [5, 7]), 8 * 9 * 210),
        ("...ij,...jk->...ik", ([8, 9, 3, 5], [9, 5, 7]), 8 * 9 * 210),
        ("a...b,bc...->ac...", ([3, 1, 5], [5, 7, 2]), 2 * 210),
        ("ab,cd->ad", ([3, 5], [5, 7]), 2 * 3 * 7),
        ("abc->cab", ([3, 5, 7],), 0),
    ],
)
def test_einsum(equation, shapes, expected):
    assert counted(lambda *operands: tf.raw_ops.Einsum(inputs=operands, equation=equation), *shapes) == {"Einsum": expected}


def test_einsum_backward():
    keys = tf.Variable(tf.zeros([2, 3, 4, 5]))
    found = counted(gradient(lambda queries: tf.einsum("aecd,abcd->acbe", keys, queries), [keys]), [2, 6, 4, 5])
    assert found == {"Einsum": 2 * (2 * 2 * 4 * 6 * 3 * 5)}


def test_a_function_counts_as_often_as_it_is_called():
    @tf.function
    def inner(x):
        return x @ tf.ones([5, 5])

    middle = tf.function(lambda x: inner(inner(x)))
    assert counted(lambda x: middle(x) + inner(x), [3, 5]) == {"MatMul": 3 * (2 * 3 * 5 * 5)}


def test_what_nobody_uses_does_not_count():
    @tf.function
    def inner(x):
        return x @ tf.ones([5, 7]), tf.nn.relu(x @ tf.ones([5, 2]))

    def first(x):
        tf.matmul(x, tf.ones([5, 100]))
        return inner(x)[0]

    assert counted(first, [3, 5]) == {"MatMul": 2 * 3 * 5 * 7}
    assert counted(lambda x: inner(x)[1], [3, 5]) == {"MatMul": 2 * 3 * 5 * 2}
    assert counted(lambda x: (inner(x)[0], inner(x)[1]), [3, 5]) == {"MatMul": 2 * 3 * 5 * (7 + 2)}
    assert counted(lambda x: inner(x), [3, 5]) == {"MatMul": 2 * 3 * 5 * (7 + 2)}


def test_what_only_a_variable_keeps_counts():
    variable = tf.Variable(tf.zeros([3, 7]))

    @tf.function
    def inner(x):
        variable.assign(x @ tf.ones([5, 7]))
        return tf.zeros([])

    def update(x):
        inner(x)

    assert counted(update, [3, 5]) == {"MatMul": 210}


def test_operations_with_several_results_in_a_function():
    """Their shapes differ: a product's depends on which result it takes."""

    @tf.function
    def inner(x):
        _, parts = tf.split(x, [1, 4], axis=1)
        s, u, v = tf.linalg.svd(x)
        return parts @ tf.ones([4, 2]), tf.ones([2, 7]) @ u, tf.ones([3, 5]) @ v, s[None] @ tf.ones([5, 1])

    expected = 2 * (7 * 4 * 2 + 2 * 7 * 5 + 3 * 5 * 5 + 5)
    assert counted(lambda x: inner(x), [7, 5]) == {"MatMul": expected}
    transposed = tf.function(lambda x: tf.matmul(tf.linalg.svd(x)[1], tf.ones([7, 2]), transpose_a=True))
    assert counted(lambda x: transposed(x), [7, 5]) == {"MatMul": 2 * 5 * 2 * 7}


def test_operations_with_several_lists_of_results_in_a_function():
    features = {
        "a": tf.io.VarLenFeature(tf.int64),
        "b": tf.io.VarLenFeature(tf.int64),
        "c": tf.io.FixedLenFeature([5], tf.float32),
    }
    inner = tf.function(lambda x: tf.io.parse_example(tf.as_string(x), features)["c"] @ tf.ones([5, 7]))
    assert counted(lambda x: inner(x), [3]) == {"MatMul": 210}


def test_of_branches_the_larger_counts():
    def either(x):
        return tf.cond(x[0, 0] > 0, lambda: x @ tf.ones([5, 5]), lambda: tf.function(lambda y: y @ tf.ones([5, 9]))(x)[:, :5])

    assert counted(either, [3, 5]) == {"MatMul": 2 * 3 * 5 * 9}
    assert counted(gradient(either), [3, 5]) == {"MatMul": 2 * (2 * 3 * 5 * 9)}
    branches = [lambda x=width: tf.ones([2, 3]) @ tf.ones([3, x]) @ tf.ones([x, 1]) for width in (4, 8, 6)]
    assert counted(lambda x: tf.switch_case(tf.cast(x[0], tf.int32), branches), [1]) == {"MatMul": 2 * (2 * 3 * 8 + 2 * 8)}


def loop(body):
    return lambda x: tf.while_loop(lambda x: tf.reduce_sum(x) < 9, lambda x: [body(x)], [x])[0]


def test_loops_are_reported():
    found = flops.count(traced(lambda x: loop(lambda y: y @ tf.ones([5, 5]))(x @ tf.ones([5, 5])), [3, 5]))
    assert found.by_op == {"MatMul": 150}
    (sentence,) = found.uncounted
    assert sentence == "StatelessWhile 'while' makes an unknown number of passes, of 150 FLOP each"
    assert counted(loop(lambda x: x + 1), [3, 5]) == {}


def test_other_products_are_reported():
    def function(x):
        y = tf.nn.conv3d(x, tf.ones([3, 3, 3, 4, 5]), [1] * 5, "SAME", name="volume")
        return tf.cond(x[0, 0, 0, 0, 0] > 0, lambda: tf.py_function(tf.identity, [y], tf.float32), lambda: y)

    found = flops.count(traced(function, [1, 8, 8, 8, 4]))
    assert found.by_op == {}
    assert found.uncounted == ("Conv3D 'volume' is not counted", "EagerPyFunc 'cond/EagerPyFunc' is not counted")


@pytest.mark.parametrize("shape", [[None, 5], None])
@pytest.mark.parametrize("nested", [False, True])
def test_an_unknown_dimension_is_named(shape, nested):
    def function(x):
        return tf.matmul(x, tf.ones([5, 7]), name="product")

    with pytest.raises(ValueError, match="MatMul(V2)? 'product': result 0 of .* every dimension is known"):
        flops.count(traced(tf.function(function) if nested else function, shape))


def test_resnet_20():
    model = cifar_resnet.build("resnet20")
    # (output pixels, input channels, output channels, how many) of 3x3 convolutions.
    layers = [
        (32 * 32, 3, 16, 1),
        (32 * 32, 16, 16, 6),
        (16 * 16, 16, 32, 1),
        (16 * 16, 32, 32, 5),
        (8 * 8, 32, 64, 1),
        (8 * 8, 64, 64, 5),
    ]
    convolutions = sum(pixels * 9 * before * after * many for pixels, before, after, many in layers)
    assert round((convolutions + 640) / 1e6, 1) == 40.6
    found = counted(lambda x: model(x, training=False), [1, 32, 32, 3])
    assert found == {"Conv2D": 2 * convolutions, "MatMul": 2 * 64 * 10}
    # Backward twice as many, but for the images, which need no gradient.
    trained = counted(gradient(model, model.trainable_variables), [4, 32, 32, 3])
    assert sum(trained.values()) == 4 * 2 * (3 * (convolutions + 640) - 1024 * 9 * 3 * 16)


def test_bert():
    batch, length, layers, h, inner = 3, 8, 2, 32, 64
    encoder = bert.encoder(bert.Size(layers, h, 2, inner), vocabulary=50, positions=16)
    tokens = tf.TensorSpec([batch, length], tf.int32)

    @tf.function
    def forward(word_ids, mask, type_ids):
        return encoder({"input_word_ids": word_ids, "input_mask": mask, "input_type_ids": type_ids}, training=False)

    found = flops.count(forward.get_concrete_function(tokens, tokens, tokens))
    layer = 4 * h * h + 2 * length * h + 2 * h * inner
    # Both types of segments are looked up by a product; the pooler sees the first token.
    assert found.total == 2 * batch * (length * (layers * layer + 2 * h) + h * h)
    assert found.uncounted == ()


@pytest.mark.parametrize(
    ("total", "text"),
    [
        (0, "0.00 FLOP"),
        (999, "999 FLOP"),
        (81_600_000, "81.6 MFLOP"),
        (999_999, "1.00 MFLOP"),
        (1_234_000_000_000, "1.23 TFLOP"),
        (3.5e21, "3.50 ZFLOP"),
    ],
)
def test_units(total, text):
    assert flops.describe(total) == text


@pytest.mark.parametrize(("kind", "held"), [("mirrored", 2), ("tpu", 1)])
def test_replicas_that_a_graph_holds(strategies, kind, held):
    strategy = strategies(2) if kind == "mirrored" else tpu_description.described_strategy(2)

    @tf.function
    def step(x):
        return strategy.run(lambda y: y @ tf.ones([5, 7]), (x,))

    assert strategy.num_replicas_in_sync == 2
    assert flops.count(step.get_concrete_function(tf.TensorSpec([3, 5]))).by_op == {"MatMul": held * 210}
