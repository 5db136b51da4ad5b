"""What LARS, LAMB and Adam have in common, under either Keras: the oracle, dtypes, sparse gradients, Keras's arguments."""

import warnings

import numpy as np
import pytest

from tests.optimizers.family import FAMILY, KERNELS, LAYERS, ONE_EACH, apply_all, arrays, layers, random_gradients
from tf_simigrad.compat import keras_private

pytestmark = pytest.mark.usefixtures("tf")

STEPS = 50
only_keras_3 = pytest.mark.skipif(not keras_private.KERAS_3, reason="an argument of Keras 3")
only_tf_keras = pytest.mark.skipif(keras_private.KERAS_3, reason="an argument of tf_keras")

# which variables decay, which are adapted, and the arguments that say so
EXCLUSIONS = {
    "default": ({}, KERNELS, KERNELS),
    "none": ({"exclude_from_decay": [], "exclude_from_adaptation": []}, [True] * 6, [True] * 6),
    "own": (
        {"exclude_from_decay": ["second/"], "exclude_from_adaptation": ["kernel$", "norm"]},
        [True] * 4 + [False] * 2,
        [False, True, False, False, False, True],
    ),
}


def given(name, arguments):
    """The arguments that this optimizer has: Adam adapts nothing."""
    return {k: v for k, v in arguments.items() if FAMILY[name].kind.__name__ != "adam" or k != "exclude_from_adaptation"}


@pytest.mark.parametrize("exclusion", EXCLUSIONS)
@pytest.mark.parametrize("name", FAMILY)
def test_fifty_steps_against_numpy(tf, name, exclusion):
    """With decay, a bias, a normalisation, a kernel of zeros, gradients of zero, and a rate that a schedule changes."""
    arguments, decays, adapts = EXCLUSIONS[exclusion]
    member, variables = FAMILY[name], layers(tf).trainable_variables
    values = [member.rate, member.rate / 2, member.rate / 5]
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([9, 29], values)
    optimizer = member.make(schedule, **given(name, arguments))
    before, gradients = arrays(variables), random_gradients(variables, STEPS)
    apply_all(tf, optimizer, variables, gradients)
    rates = [values[0]] * 10 + [values[1]] * 20 + [values[2]] * 20
    assert int(optimizer.iterations.numpy()) == STEPS
    for i, (now, start) in enumerate(zip(arrays(variables), before, strict=True)):
        expected = member.expected(start, [row[i] for row in gradients], rates, decays[i], adapts[i])
        np.testing.assert_allclose(now, expected, rtol=0, atol=1e-6, err_msg=LAYERS[i])
    assert [v.dtype for v in optimizer.variables if len(v.shape) == 2] == [tf.float32] * (2 * len(optimizer.slot_names))


@pytest.mark.parametrize("name", ONE_EACH)
def test_the_learning_rate_may_be_changed(tf, name):
    member, variables = FAMILY[name], layers(tf).trainable_variables
    optimizer = member.make()
    before, gradients = arrays(variables), random_gradients(variables, 6)
    apply_all(tf, optimizer, variables, gradients[:3])
    optimizer.learning_rate = 3 * member.rate
    apply_all(tf, optimizer, variables, gradients[3:])
    rates = [member.rate] * 3 + [3 * member.rate] * 3
    expected = member.expected(before[0], [row[0] for row in gradients], rates)
    np.testing.assert_allclose(arrays(variables)[0], expected, rtol=0, atol=1e-6)


@only_keras_3
@pytest.mark.parametrize("name", ONE_EACH)
def test_the_learning_rate_may_be_a_callable(tf, name):
    member, variables = FAMILY[name], layers(tf).trainable_variables
    before, gradients = arrays(variables), random_gradients(variables, 3)
    apply_all(tf, member.make(lambda: member.rate), variables, gradients)
    expected = member.expected(before[0], [row[0] for row in gradients], [member.rate] * 3)
    np.testing.assert_allclose(arrays(variables)[0], expected, atol=1e-6)


# ---- dtypes


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ONE_EACH)
def test_other_dtypes_are_computed_in_float32(tf, name, dtype):
    """Each step of a half-precision variable is the float32 step from its value, rounded once; the slots stay float32."""
    member = FAMILY[name]
    wide = "float64" if dtype == "float64" else "float32"
    variables, copies = layers(tf, dtype).trainable_variables, layers(tf, wide).trainable_variables
    optimizer, reference = member.make(), member.make()
    optimizer.build(variables)
    reference.build(copies)
    for row in random_gradients(variables, 5):
        for copy, variable in zip(copies, variables, strict=True):
            copy.assign(tf.cast(tf.convert_to_tensor(variable), wide))
        row = [tf.cast(g, dtype) for g in row]
        optimizer.apply_gradients(zip(row, variables, strict=True))
        reference.apply_gradients(zip([tf.cast(g, wide) for g in row], copies, strict=True))
        for variable, copy in zip(variables, copies, strict=True):
            expected = tf.cast(tf.convert_to_tensor(copy), variable.dtype)  # tf_keras normalises in float32
            np.testing.assert_array_equal(tf.convert_to_tensor(variable), expected)
    assert dtype in {tf.as_dtype(v.dtype).name for v in variables}
    assert {tf.as_dtype(v.dtype) for v in optimizer.variables if v.shape.rank != 0} == {tf.float32}


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_norms_do_not_overflow_in_float16(tf, name):
    """The squared norms are 9e4 and 8.1e9; float16 ends at 65504."""
    member = FAMILY[name]
    layer = tf.keras.layers.Dense(300, use_bias=False, kernel_initializer="ones", dtype="float16")
    layer.build((None, 300))
    optimizer, (variable,) = member.make(rate=5.0 if name == "lars" else 0.05), layer.trainable_variables
    optimizer.apply_gradients([(tf.fill((300, 300), tf.constant(300.0, tf.float16)), variable)])
    gradient = np.full((300, 300), 300.0)
    expected = member.expected(np.ones((300, 300)), [gradient], [float(optimizer.learning_rate)])
    assert not np.allclose(expected, 1.0, atol=0.02)
    np.testing.assert_allclose(np.array(variable), expected, atol=5e-4)


@pytest.mark.parametrize("name", ONE_EACH)
def test_scaled_losses(tf, name):
    """Norms are taken of unscaled gradients, and a gradient that is not finite changes nothing."""
    member, variables, copies = FAMILY[name], layers(tf).trainable_variables, layers(tf).trainable_variables
    scaled = tf.keras.mixed_precision.LossScaleOptimizer(member.make(), initial_scale=2.0**10)

    def apply(row):
        if not keras_private.KERAS_3:  # there the training step unscales, here the optimizer does
            row = scaled.get_unscaled_gradients(row)
        scaled.apply_gradients(zip(row, variables, strict=True))

    gradients = random_gradients(variables, 5)
    for row in gradients:
        apply([tf.constant(g * 2.0**10) for g in row])
    kept = arrays(variables)
    apply([tf.constant(g + np.inf) for g in gradients[1]])
    apply_all(tf, member.make(), copies, gradients)
    for now, before, plain in zip(arrays(variables), kept, arrays(copies), strict=True):
        np.testing.assert_array_equal(now, before)
        np.testing.assert_allclose(now, plain, rtol=0, atol=1e-6)


# ---- gradients


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ONE_EACH)
def test_sparse_gradients_are_dense_ones(tf, name, dtype):
    """Rows that share an index are summed, rows without one have a gradient of 0 and move like the others."""
    member, results = FAMILY[name], []
    indices, rng = [3, 0, 3, 3], np.random.default_rng(2)
    values = [rng.normal(size=(4, 2)).astype(dtype) for _ in range(4)]
    for sparse in (True, False):
        tf.keras.utils.set_random_seed(5)
        layer = tf.keras.layers.Embedding(5, 2, dtype=dtype)
        layer.build(None)
        (variable,), optimizer = layer.trainable_variables, member.make()
        for rows in values:
            gradient = tf.IndexedSlices(tf.constant(rows), tf.constant(indices), tf.constant([5, 2]))
            if not sparse:
                dense = np.zeros((5, 2), "float32")
                np.add.at(dense, indices, rows.astype("float32"))
                gradient = tf.constant(dense)
            optimizer.apply_gradients([(gradient, variable)])
        results.append(np.array(variable, "float32"))
    np.testing.assert_allclose(results[0], results[1], rtol=0, atol=1e-6 if dtype == "float32" else 1e-4)


@pytest.mark.parametrize("name", ONE_EACH)
def test_variables_without_gradients_are_skipped(tf, name):
    member, variables = FAMILY[name], layers(tf).trainable_variables
    before, gradients = arrays(variables), random_gradients(variables, 2)[1]
    optimizer = member.make()
    optimizer.build(variables)
    row = [None if i in (0, 4) else tf.constant(g) for i, g in enumerate(gradients)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Keras's, of variables without gradients
        optimizer.apply_gradients(zip(row, variables, strict=True))
    for i, (now, start) in enumerate(zip(arrays(variables), before, strict=True)):
        assert np.array_equal(now, start) == (i in (0, 4, 5))  # the last one's gradient is 0, and it does not decay


@pytest.mark.parametrize("name", ONE_EACH)
def test_clipping_comes_first(tf, name):
    member = FAMILY[name]
    for argument, clipped in (
        ({"clipvalue": 0.05}, lambda row: [np.clip(g, -0.05, 0.05) for g in row]),
        ({"clipnorm": 0.1}, lambda row: [g * 0.1 / max(0.1, np.linalg.norm(g)) for g in row]),
        ({"global_clipnorm": 0.1}, lambda row: [g * 0.1 / max(0.1, np.sqrt(sum((x**2).sum() for x in row))) for g in row]),
    ):
        variables = layers(tf).trainable_variables
        before, gradients = arrays(variables), random_gradients(variables, 5)
        apply_all(tf, member.make(**argument), variables, gradients)
        expected = member.expected(before[0], [clipped(row)[0] for row in gradients], [member.rate] * 5)
        np.testing.assert_allclose(arrays(variables)[0], expected, rtol=0, atol=1e-6, err_msg=str(argument))


# ---- other arguments of Keras


@pytest.mark.parametrize("name", ONE_EACH)
def test_the_moving_average_of_the_weights(tf, name):
    """Every second step the weights become their average; both Kerases begin it at the first weights that they see."""
    member, variables = FAMILY[name], layers(tf).trainable_variables
    before, gradients = arrays(variables)[0], random_gradients(variables, 2)
    apply_all(tf, member.make(use_ema=True, ema_momentum=0.75, ema_overwrite_frequency=2), variables, gradients)
    first, second = (
        member.expected(before, [row[0] for row in gradients[:n]], [member.rate] * n) for n in (1, 2)
    )  # fmt: skip
    average = first if keras_private.KERAS_3 else 0.75 * before + 0.25 * first
    np.testing.assert_allclose(arrays(variables)[0], 0.75 * average + 0.25 * second, rtol=0, atol=1e-6)


@only_tf_keras
@pytest.mark.parametrize("name", ONE_EACH)
def test_compiled_by_xla(tf, name):
    """tf_keras compiles the step of each variable on a GPU; here it is told to on a CPU."""
    member, variables = FAMILY[name], layers(tf).trainable_variables
    optimizer = member.make()
    optimizer.jit_compile = True
    before, gradients = arrays(variables), random_gradients(variables, 5)
    apply_all(tf, optimizer, variables, gradients)
    for i in (0, 4):
        expected = member.expected(before[i], [row[i] for row in gradients], [member.rate] * 5)
        np.testing.assert_allclose(arrays(variables)[i], expected, rtol=0, atol=1e-6)


@only_keras_3
@pytest.mark.parametrize("name", ONE_EACH)
def test_accumulation_by_the_optimizer(tf, name):
    member, variables, copies = FAMILY[name], layers(tf).trainable_variables, layers(tf).trainable_variables
    gradients = random_gradients(variables, 6)
    apply_all(tf, member.make(gradient_accumulation_steps=2), variables, gradients)
    means = [[(a + b) / 2 for a, b in zip(*rows, strict=True)] for rows in zip(gradients[::2], gradients[1::2], strict=True)]
    apply_all(tf, member.make(), copies, means)
    for now, plain in zip(arrays(variables), arrays(copies), strict=True):
        np.testing.assert_allclose(now, plain, rtol=0, atol=1e-6)
