"""What LARS, LAMB and Adam have in common, under either Keras: the oracle, dtypes, sparse gradients, Keras's arguments."""

import logging
import warnings

import numpy as np
import pytest

import tf_simigrad as sg
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


# ---- bad input

KINDS = {"LARS": FAMILY["lars"].kind, "LAMB": FAMILY["lamb"].kind, "Adam": FAMILY["adam"].kind}
BAD = [
    ({"learning_rate": -0.1}, "learning_rate=-0.1 must be a finite number, 0 or more"),
    ({"learning_rate": float("nan")}, "learning_rate=nan must be a finite number"),
    ({"learning_rate": None}, "learning_rate=None must be a number, 0 or more, or a tf.keras.*LearningRateSchedule"),
    ({"learning_rate": "0.1"}, "learning_rate='0.1' must be a number"),
    ({"learning_rate": True}, "learning_rate=True must be a finite number"),
    ({"weight_decay": -1e-4}, "weight_decay=-0.0001 must be a finite number, 0 or more"),
    ({"weight_decay": None}, "weight_decay=None must be"),
    ({"epsilon": -1e-8}, "epsilon=-1e-08 must be a finite number"),
    ({"exclude_from_decay": "bias"}, "exclude_from_decay='bias' must be a list of patterns"),
    ({"exclude_from_decay": None}, r"exclude_from_decay=None must be a list of patterns.*\[\] names no variable"),
    ({"exclude_from_decay": ["bias", "(kernel"]}, r"the pattern '\(kernel' in exclude_from_decay is no regular expression"),
    ({"clipnorm": -1.0}, "clipnorm=-1.0 must be a finite number, above 0"),
    ({"global_clipnorm": 0.0}, "global_clipnorm=0.0 must be a finite number, above 0"),
    ({"clipvalue": "1"}, "clipvalue='1' must be a finite number, above 0"),
    ({"decay": 1e-4}, "has no argument decay. Beside its own it takes those of Keras: clipnorm, clipvalue"),
    ({"lr": 0.1, "beta": 1}, "has no argument beta, lr"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[str(arguments) for arguments, _ in BAD])
@pytest.mark.parametrize("name", KINDS)
def test_bad_arguments_are_refused(name, arguments, message):
    with pytest.raises(ValueError, match=f"^{name}.*{message}"):
        KINDS[name](**{"learning_rate": 0.1, **arguments})


@pytest.mark.parametrize("name", ["LARS", "LAMB"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.5, "=0.5 must be None, or \\(low, high\\)"),
        ("01", "='01' must be None"),
        ((1.0,), "=\\(1.0,\\) must be None"),
        ((1.0, 2.0, 3.0), ".* must be None"),
        ((-1.0, 2.0), r"\[0\]=-1.0 must be a finite number, 0 or more"),
        ((0.0, 0.0), r"\[1\]=0.0 must be a finite number, above 0"),
        ((0.0, float("inf")), r"\[1\]=inf must be a finite number"),
        ((2.0, 1.0), "=\\(2.0, 1.0\\) must be \\(low, high\\) with low no larger than high"),
        ((None, 1.0), r"\[0\]=None must be"),
    ],
)
def test_bad_bounds_are_refused(name, value, message):
    with pytest.raises(ValueError, match=f"^{name}: trust_ratio_bounds{message}"):
        KINDS[name](0.1, trust_ratio_bounds=value)


@pytest.mark.parametrize("name", ["LARS", "LAMB"])
@pytest.mark.parametrize("value", ["bias", [1], None])
def test_bad_patterns_of_adaptation_are_refused(name, value):
    with pytest.raises(ValueError, match=f"^{name}: exclude_from_adaptation=.* must be a list of patterns"):
        KINDS[name](0.1, exclude_from_adaptation=value)


def test_whole_numbers_and_numbers_of_numpy_are_numbers(tf):
    for rate in (2, np.float32(2), np.int64(2), np.float64(2)):
        optimizer = sg.LARS(rate, momentum=0, weight_decay=np.float32(0.5), trust_ratio_bounds=[0, 1])
        assert float(optimizer.learning_rate) == 2.0
        config = optimizer.get_config()
        assert (config["momentum"], config["weight_decay"], config["trust_ratio_bounds"]) == (0.0, 0.5, [0.0, 1.0])
        assert {type(config[key]) for key in ("learning_rate", "momentum", "weight_decay")} == {float}


@pytest.mark.parametrize("name", KINDS)
def test_excluding_in_the_way_of_keras_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} does not use exclude_from_weight_decay.*exclude_from_decay="):
        KINDS[name](0.1, weight_decay=0.1).exclude_from_weight_decay(var_names=["bias"])


@pytest.mark.parametrize("name", KINDS)
def test_a_pattern_that_matches_nothing_is_warned_of_once(tf, caplog, name):
    """The default ones, which match no variable of this layer, are not."""
    layer = tf.keras.layers.Dense(1, use_bias=False, name="alone")
    layer.build((None, 1))
    with caplog.at_level(logging.WARNING, logger="tf_simigrad"):
        KINDS[name](0.1).build(layer.trainable_variables)
        assert not caplog.records
        optimizer = KINDS[name](0.1, exclude_from_decay=["kernel", "Bias"])
        optimizer.build(layer.trainable_variables)
        optimizer.build(layer.trainable_variables)
        if name != "Adam":
            KINDS[name](0.1, exclude_from_adaptation=["gamma"]).build(layer.trainable_variables)
    messages = [record.getMessage() for record in caplog.records]
    assert f"{name}: the pattern 'Bias' in exclude_from_decay matches no trainable variable" in messages[0]
    assert "kernel" in messages[0]
    assert [("exclude_from_adaptation" in m) for m in messages[1:]] == ([] if name == "Adam" else [True])
