"""Every private name of the Kerases' optimizers that the package relies on exists, and does what is assumed of it."""

import numpy as np
import pytest

from tests.compat.small import only_keras_3, only_tf_keras, value_of, variable_at_1
from tf_simigrad.compat import keras_optimizer, keras_private

pytestmark = pytest.mark.usefixtures("tf")


# ---- the optimizer: rates


def schedule(k):
    return k.optimizers.schedules.PiecewiseConstantDecay([2, 5], [0.5, 0.25, 0.125])


@pytest.mark.parametrize("step", [0, 3, 100])
def test_learning_rate_attribute_holds_a_rate_or_a_schedule(tf, k, step):
    """``_learning_rate``."""
    constant, scheduled = k.optimizers.SGD(0.1), k.optimizers.SGD(schedule(k))
    number = tf.constant(step, tf.int64)
    assert float(keras_optimizer.base_learning_rate(constant, number)) == pytest.approx(0.1)
    assert float(keras_optimizer.base_learning_rate(scheduled, number)) == {0: 0.5, 3: 0.25, 100: 0.125}[step]
    constant.learning_rate = 0.2
    assert float(keras_optimizer.base_learning_rate(constant, number)) == pytest.approx(0.2)


@only_keras_3
def test_learning_rate_attribute_holds_a_callable(tf, k):
    optimizer = k.optimizers.SGD(lambda: 0.3)
    assert float(keras_optimizer.base_learning_rate(optimizer, tf.constant(0, tf.int64))) == pytest.approx(0.3)


@only_tf_keras
def test_tf_keras_says_whether_it_compiles_steps_by_xla(k):
    """``jit_compile``, which it sets to False by itself where there is no GPU."""
    optimizer = k.optimizers.SGD(0.1)
    assert keras_optimizer.compiles_by_xla(optimizer) is optimizer.jit_compile
    optimizer.jit_compile = True
    assert keras_optimizer.compiles_by_xla(k.mixed_precision.LossScaleOptimizer(optimizer))
    assert not keras_optimizer.compiles_by_xla(k.optimizers.legacy.SGD(0.1))


RATES = {"SGD": (lambda k, rate: k.optimizers.SGD(rate), lambda rate: 1 - rate),
         # a first step of Adam is the rate in the direction of the gradient; decoupled decay takes rate * decay of the weight
         "AdamW": (lambda k, rate: k.optimizers.AdamW(rate, weight_decay=0.5), lambda rate: 1 - 0.5 * rate - rate),
         "SGD_decayed": (lambda k, rate: k.optimizers.SGD(rate, weight_decay=0.5), lambda rate: 1 - 0.5 * rate - rate),
         }  # fmt: skip


@pytest.mark.parametrize("held", ["constant", "schedule"])
@pytest.mark.parametrize("name", RATES)
def test_a_replaced_rate_is_what_apply_takes(tf, k, name, held):
    """``_get_current_learning_rate`` (Keras 3) and ``_learning_rate`` (tf_keras) set on the instance, weight decay included."""
    make, expected = RATES[name]
    optimizer, variable = make(k, 0.7 if held == "constant" else schedule(k)), variable_at_1(tf)
    keras_optimizer.build(optimizer, [variable])

    @tf.function
    def step(rate):
        with keras_optimizer.reduced_gradients(optimizer), keras_optimizer.learning_rate(optimizer, rate):
            keras_optimizer.apply(optimizer, [tf.constant([[1.0]])], [variable])

    before = float(np.array(optimizer.learning_rate))
    step(tf.constant(0.01))
    assert value_of(variable) == pytest.approx(expected(0.01), abs=1e-5)
    assert float(np.array(optimizer.learning_rate)) == before
    assert keras_optimizer.iterations(optimizer) == 1


def test_the_rate_is_put_back_after_an_error(tf, k):
    optimizer = k.optimizers.SGD(0.7)
    names = set(vars(optimizer))
    held = vars(optimizer).get("_learning_rate")
    rate = keras_optimizer.learning_rate(optimizer, tf.constant(0.01))
    with pytest.raises(KeyError), keras_optimizer.reduced_gradients(optimizer), rate:
        raise KeyError
    assert set(vars(optimizer)) == names
    assert vars(optimizer).get("_learning_rate") is held
    assert float(np.array(optimizer.learning_rate)) == pytest.approx(0.7)
    optimizer.learning_rate = 0.3
    assert float(np.array(optimizer.learning_rate)) == pytest.approx(0.3)


# ---- the optimizer: gradients that are reduced already


def applied_by_two_replicas(tf, pair, make, apply):
    """An optimizer, a weight of 1, and a step on gradients of 1 on each of two replicas."""
    with pair.scope():
        optimizer, variable = make(tf.keras), variable_at_1(tf)
        keras_optimizer.build(optimizer, [variable])
    run = tf.function(lambda: pair.run(lambda: apply(optimizer, [tf.constant([[1.0]])], [variable])))
    return optimizer, variable, run


def test_reduced_gradients_are_not_added_up_again(tf, pair):
    """``_all_reduce_sum_gradients`` set on the instance (Keras 3), ``experimental_aggregate_gradients`` (tf_keras)."""

    def make(k):
        return k.optimizers.SGD(0.1)

    def plainly(optimizer, gradients, variables):
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    optimizer, variable, run = applied_by_two_replicas(tf, pair, make, keras_optimizer.apply)
    with keras_optimizer.reduced_gradients(optimizer):
        run()
    assert value_of(keras_private.tf_variable(variable)) == pytest.approx(0.9)

    _, variable, run = applied_by_two_replicas(tf, pair, make, plainly)
    run()
    assert value_of(keras_private.tf_variable(variable)) == pytest.approx(0.8)


class LeavesClipping:
    """tf-models-official's AdamWeightDecay: clips by itself unless gradients come reduced."""

    def __init__(self, gradient_clip_norm):
        self.gradient_clip_norm = gradient_clip_norm

    def apply_gradients(self, pairs, experimental_aggregate_gradients=True):
        self.given, self.aggregates = [g for g, _ in pairs], experimental_aggregate_gradients


@only_tf_keras
@pytest.mark.parametrize(("norm", "expected"), [(0.5, 0.3), (2.0, 0.6), (0.0, 0.6)])
def test_what_an_optimizer_leaves_to_its_caller_is_clipped(tf, norm, expected):
    """``gradient_clip_norm``: by the norm of all gradients, here 1; the real one is in tests/optimizers/test_others.py."""
    optimizer, variables = LeavesClipping(norm), [variable_at_1(tf) for _ in range(3)]
    keras_optimizer.apply(optimizer, [tf.constant([[0.6]]), None, tf.constant([[0.8]])], variables)
    assert optimizer.aggregates is False
    assert optimizer.given[1] is None
    assert float(optimizer.given[0][0, 0]) == pytest.approx(expected)


@only_keras_3
def test_a_loss_scale_factor_is_not_divided_out_of_unscaled_gradients(tf, k):
    """``loss_scale_factor`` None on the instance."""
    optimizer, variable = k.optimizers.SGD(0.1, loss_scale_factor=64.0), variable_at_1(tf)
    assert float(keras_optimizer.loss_scale(optimizer)) == 64.0
    with keras_optimizer.reduced_gradients(optimizer):
        keras_optimizer.apply(optimizer, [tf.constant([[1.0]])], [variable])
    assert value_of(variable) == pytest.approx(0.9)
    assert optimizer.loss_scale_factor == 64.0
    optimizer.apply([tf.constant([[1.0]])], [variable])
    assert value_of(variable) == pytest.approx(0.9 - 0.1 / 64)


@only_keras_3
def test_accumulation_by_the_optimizer_is_seen(k):
    assert keras_optimizer.accumulation_steps(k.optimizers.SGD(0.1)) is None
    assert keras_optimizer.accumulation_steps(k.optimizers.SGD(0.1, gradient_accumulation_steps=4)) == 4
    scaled = k.mixed_precision.LossScaleOptimizer(k.optimizers.SGD(0.1, gradient_accumulation_steps=4))
    assert keras_optimizer.accumulation_steps(scaled) == 4


@pytest.mark.parametrize("legacy", [False, pytest.param(True, marks=only_tf_keras)], ids=["optimizer", "legacy"])
def test_build_creates_the_variables_once(tf, k, legacy):
    """``built`` (Keras 3), ``_create_all_weights`` (legacy)."""
    optimizer = (k.optimizers.legacy if legacy else k.optimizers).SGD(0.1, momentum=0.9)
    variable = variable_at_1(tf)
    keras_optimizer.build(optimizer, [variable])
    variables = optimizer.variables() if legacy else optimizer.variables
    shapes = [tuple(v.shape) for v in variables]
    assert shapes.count((1, 1)) == 1
    keras_optimizer.build(optimizer, [variable])
    assert [tuple(v.shape) for v in (optimizer.variables() if legacy else optimizer.variables)] == shapes


# ---- the first generation of optimizers


@only_tf_keras
@pytest.mark.parametrize("step", [0, 4])
def test_legacy_rates(tf, k, step):
    """``_get_hyper``, ``_initial_decay``."""
    number = tf.constant(step, tf.int64)
    assert keras_optimizer.is_legacy(k.optimizers.legacy.SGD(0.1))
    assert not keras_optimizer.is_legacy(k.optimizers.SGD(0.1))
    decayed = k.optimizers.legacy.SGD(0.1, decay=0.5)
    assert float(keras_optimizer.base_learning_rate(decayed, number)) == pytest.approx(0.1 / (1 + 0.5 * step))
    scheduled = k.optimizers.legacy.SGD(schedule(k))
    assert float(keras_optimizer.base_learning_rate(scheduled, number)) == {0: 0.5, 4: 0.25}[step]


@only_tf_keras
def test_a_legacy_optimizer_without_a_rate(tf, k):
    """``_hyper``."""

    class Wrapper(k.optimizers.legacy.Optimizer):
        def get_config(self):
            return {}

    with pytest.raises(ValueError, match="Wrapper holds no learning rate.*compile the model with it"):
        keras_optimizer.base_learning_rate(Wrapper("wrapper"), tf.constant(0, tf.int64))


@only_tf_keras
def test_a_replaced_legacy_rate_is_what_apply_takes(tf, k, pair):
    """``_decayed_lr`` set on the instance."""
    optimizer, variable, _ = applied_by_two_replicas(tf, pair, lambda k: k.optimizers.legacy.SGD(0.7, decay=0.5), None)

    @tf.function
    def step(rate):
        with keras_optimizer.reduced_gradients(optimizer), keras_optimizer.learning_rate(optimizer, rate):
            pair.run(lambda: keras_optimizer.apply(optimizer, [tf.constant([[1.0]])], [variable]))

    for _ in range(2):
        step(tf.constant(0.01))
    assert value_of(variable) == pytest.approx(0.98)
    assert "_decayed_lr" not in vars(optimizer)
    assert value_of(optimizer.learning_rate) == pytest.approx(0.7)


# ---- loss scaling

GROWTH_STEPS = 3
FINITE = [True, True, True, True, False, True, True, True, False, False]
# doubles after three finite steps in a row, halves after one that is not, and counts anew after either
SCALES = [8, 8, 16, 16, 8, 8, 8, 16, 8, 4]


def scaled(k, inner=None):
    return k.mixed_precision.LossScaleOptimizer(inner or k.optimizers.SGD(0.1), initial_scale=8.0,
                                                dynamic_growth_steps=GROWTH_STEPS)  # fmt: skip


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("legacy", [False, pytest.param(True, marks=only_tf_keras)], ids=["optimizer", "legacy"])
def test_a_dynamic_loss_scale_follows_the_updates(tf, k, pair, replicas, legacy):
    """``step_counter``, ``dynamic_scale``, ``_stateful_handle_non_finite_grads``; ``_loss_scale.update`` (tf_keras)."""
    strategy = pair if replicas == 2 else tf.distribute.get_strategy()
    with strategy.scope():
        optimizer, variable = scaled(k, k.optimizers.legacy.SGD(0.1) if legacy else None), variable_at_1(tf)
        keras_optimizer.build(optimizer, [variable])
        step = tf.function(lambda finite: keras_optimizer.update_loss_scale(optimizer, finite))
        scales = []
        for finite in FINITE:
            step(tf.constant(finite))
            scales.append(float(keras_optimizer.loss_scale(optimizer)))
    assert scales == SCALES
    assert value_of(keras_private.tf_variable(variable)) == 1.0
    assert keras_optimizer.has_loss_scale(optimizer)
    assert not keras_optimizer.has_loss_scale(keras_optimizer.inner(optimizer))


def test_the_loss_scale_optimizer_itself_does_the_same(tf, k):
    optimizer, variable = scaled(k), variable_at_1(tf)
    scales = []
    for finite in FINITE:
        optimizer.apply_gradients([(tf.constant([[1.0 if finite else float("inf")]]), variable)])
        scales.append(float(keras_optimizer.loss_scale(optimizer)))
    assert scales == SCALES


def test_a_loss_scale_optimizer_gives_the_inner_one_unscaled_gradients(tf, k):
    optimizer, variable = scaled(k), variable_at_1(tf)
    keras_optimizer.build(optimizer, [variable])
    with keras_optimizer.reduced_gradients(optimizer), keras_optimizer.learning_rate(optimizer, tf.constant(0.5)):
        keras_optimizer.apply(optimizer, [tf.constant([[1.0]])], [variable])
    assert value_of(variable) == 0.5
    assert keras_optimizer.iterations(optimizer) == 1
    assert float(keras_optimizer.base_learning_rate(optimizer, tf.constant(0, tf.int64))) == pytest.approx(0.1)


@only_tf_keras
def test_a_fixed_loss_scale_stays(tf, k):
    """``dynamic``."""
    optimizer = k.mixed_precision.LossScaleOptimizer(k.optimizers.SGD(0.1), dynamic=False, initial_scale=8.0)
    keras_optimizer.build(optimizer, [variable_at_1(tf)])
    keras_optimizer.update_loss_scale(optimizer, tf.constant(False))
    assert float(keras_optimizer.loss_scale(optimizer)) == 8.0


def test_an_optimizer_without_loss_scale(tf, k):
    optimizer = k.optimizers.SGD(0.1)
    assert keras_optimizer.loss_scale(optimizer) is None
    assert keras_optimizer.inner(optimizer) is optimizer
    keras_optimizer.update_loss_scale(optimizer, tf.constant(False))
