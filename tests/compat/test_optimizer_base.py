"""What the base of our optimizers assumes of Keras's base class exists, and does what is assumed of it."""

import inspect

import numpy as np
import pytest

from tf_simigrad.compat import optimizer_base
from tf_simigrad.compat.keras_private import KERAS_3, tf_variable
from tf_simigrad.compat.optimizer_base import KERAS_ARGUMENTS, OptimizerBase, serializable

pytestmark = pytest.mark.usefixtures("tf")

only_keras_3 = pytest.mark.skipif(not KERAS_3, reason="a name of Keras 3")
only_tf_keras = pytest.mark.skipif(KERAS_3, reason="a name of tf_keras")


@serializable
class Counting(OptimizerBase):
    """Subtracts the gradient times the rate; its slots hold how often it has stepped, and the number of the last step."""

    slot_names = ("count", "last")

    def __init__(self, learning_rate=0.5, extra="x", **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.extra, self.seen, self.built_with = extra, [], []

    def on_build(self, paths):
        self.built_with.append(tuple(paths))

    def step(self, at):
        self.seen.append(at)
        count, last = at.slots
        return at.learning_rate * at.gradient, (count + 1.0, 0.0 * last + at.number)

    def hyperparameters(self):
        return {"extra": self.extra}


@pytest.fixture
def pair(tf):
    """Two replicas whose collectives have keys of their own: TensorFlow's count from 1 in every strategy."""
    keyed = type("Keyed", (tf.distribute.MirroredStrategy,), {"_collective_key_base": 80_000})
    return keyed(["CPU:0", "CPU:1"])


def kernels(tf, count=2, dtype="float32"):
    """Variables of ones, "a/kernel" and so on."""
    layers = [
        tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name=name, dtype=dtype) for name in "abc"[:count]
    ]
    tf.keras.Sequential([tf.keras.Input((1,)), *layers])
    return [layer.trainable_variables[0] for layer in layers]


def value_of(variable):
    return float(np.array(variable).ravel()[0])


def slots_of(optimizer):
    """Values of the optimizer's variables of the shape of a kernel, in order."""
    return [value_of(v) for v in optimizer.variables if tuple(v.shape) == (1, 1)]


def test_build_registers_the_variables_once(tf):
    """``built`` (Keras 3), ``_built``, ``_build_index_dict`` (tf_keras); ``add_variable`` appends to ``variables``."""
    optimizer, variables = Counting(), kernels(tf)
    assert not (optimizer.built if KERAS_3 else getattr(optimizer, "_built", False))
    optimizer.build(variables)
    assert optimizer.built if KERAS_3 else optimizer._built
    known = len(optimizer.variables)
    assert slots_of(optimizer) == [0.0] * 4
    optimizer.build(variables)
    assert len(optimizer.variables) == known
    assert len(optimizer.built_with) == 1
    assert [path.split("/")[-2:] for path in optimizer.built_with[0]] == [["a", "kernel"], ["b", "kernel"]]


@pytest.mark.parametrize("traced", [False, True])
def test_what_a_step_is_given(tf, traced):
    """``update_step`` with the rate (Keras 3) or without; ``_get_variable_index``, or ``_index_dict`` and ``_var_key``."""
    optimizer, variables = Counting(0.25), kernels(tf)

    def step():
        optimizer.apply_gradients([(tf.constant([[2.0]]), variables[1])])

    optimizer.build(variables)
    run = tf.function(step) if traced else step
    for _ in range(3):
        run()
    assert [value_of(v) for v in variables] == [1.0, 1.0 - 3 * 0.25 * 2.0]
    assert slots_of(optimizer) == [0.0, 0.0, 3.0, 3.0]
    at = optimizer.seen[-1]
    assert at.path.endswith("b/kernel")
    assert {t.dtype for t in (at.weight, at.gradient, *at.slots, at.learning_rate, at.number)} == {tf.float32}
    assert (at.learning_rate.shape.rank, at.number.shape.rank) == (0, 0)


@pytest.mark.parametrize("made", ["in_scope", pytest.param("before", marks=only_tf_keras)])
def test_on_two_replicas_each_steps_once(tf, pair, made):
    """``update_step`` runs in the update context of each replica's variable, and the slots are mirrored with it.

    tf_keras takes optimizers that were made before the scope was entered.
    """
    optimizer = Counting(0.25) if made == "before" else None
    with pair.scope():
        optimizer, variables = optimizer or Counting(0.25), kernels(tf)
        optimizer.build(variables)

    @tf.function
    def step():
        pair.run(lambda: optimizer.apply_gradients([(tf.constant([[1.0]]), v) for v in variables]))

    step()
    step()
    held = [tf_variable(v) for v in (*variables, *optimizer.variables) if tuple(v.shape) == (1, 1)]
    parts = [[value_of(part) for part in pair.experimental_local_results(v)] for v in held]
    assert parts == [[0.0, 0.0]] * 2 + [[2.0, 2.0]] * 4  # gradients are added up: 1 - 2 * 0.25 * 2
    assert int(optimizer.iterations.numpy()) == 2


def test_another_strategy_is_refused(tf, pair):
    """``variable_created_in_scope``, and ``_distribution_strategy`` (Keras 3): where Keras took the optimizer to belong."""
    with pair.scope():
        optimizer, variables = Counting(), kernels(tf)
    with pytest.raises(ValueError, match="belong to different strategies"):
        optimizer.build(variables)
    outside, others = Counting(), kernels(tf)
    with pair.scope():
        with pytest.raises(ValueError, match="belong to different strategies"):
            optimizer.build(others)
        if KERAS_3:
            with pytest.raises(ValueError, match="belong to different strategies"):
                outside.build(variables)
        optimizer.build(variables)


@only_keras_3
def test_keras_3_counts_once_per_replica_in_another_strategy(tf, pair):
    """Why an optimizer made outside of the scope is refused: here the count of steps would be the number of replicas."""
    optimizer = tf.keras.optimizers.SGD(0.1)
    with pair.scope():
        variables = kernels(tf)
        optimizer.build(variables)
    tf.function(lambda: pair.run(lambda: optimizer.apply_gradients([(tf.constant([[1.0]]), v) for v in variables])))()
    assert int(optimizer.iterations.numpy()) == 2


def test_slots_of_half_precision_are_float32(tf):
    """``add_variable_from_reference`` would give them the dtype of the variable."""
    (variable,) = kernels(tf, 1, dtype="float16")
    optimizer = Counting()
    optimizer.build([variable])
    assert [tf.as_dtype(v.dtype) for v in optimizer.variables if tuple(v.shape) == (1, 1)] == [tf.float32] * 2
    name = "name" if KERAS_3 else "variable_name"
    reference = optimizer.add_variable_from_reference(variable, **{name: "slot"})
    assert tf.as_dtype(reference.dtype) == tf.float16


def test_the_rate(tf):
    """``_build_learning_rate`` and ``_learning_rate`` (tf_keras): a schedule is followed, a number may be set."""
    optimizer, (variable,) = Counting(0.5), kernels(tf, 1)
    optimizer.apply_gradients([(tf.constant([[1.0]]), variable)])
    optimizer.learning_rate = 0.25
    optimizer.apply_gradients([(tf.constant([[1.0]]), variable)])
    assert value_of(variable) == 0.25

    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [0.5, 0.25, 0.125])
    optimizer, (variable,) = Counting(schedule), kernels(tf, 1)
    for expected in (0.5, 0.25, 0.125):
        optimizer.apply_gradients([(tf.constant([[1.0]]), variable)])
        assert value_of(variable) == expected
    assert isinstance(schedule, optimizer_base.Schedule)


def test_the_rate_in_the_configuration(tf):
    """``_serialize_hyperparameter`` (tf_keras): a number or the schedule's configuration."""
    assert Counting(0.25).get_config()["learning_rate"] == 0.25
    assert type(Counting(0.25).get_config()["learning_rate"]) is float
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.25, decay_steps=3, decay_rate=0.5)
    config = Counting(schedule).get_config()
    assert config["learning_rate"]["class_name"] == "ExponentialDecay"
    again = Counting.from_config(config)
    assert float(np.array(again.learning_rate)) == 0.25
    assert again.get_config() == Counting(schedule).get_config() | {"name": again.name}


def test_the_arguments_of_keras(tf):
    """Each of ``KERAS_ARGUMENTS`` is one of the base class, and ``get_config`` returns it; its ``weight_decay`` stays out."""
    parameters = inspect.signature(tf.keras.optimizers.Optimizer.__init__).parameters
    if not any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        assert set(parameters) >= KERAS_ARGUMENTS
    values = {
        "clipnorm": 0.5, "clipvalue": None, "global_clipnorm": None, "use_ema": True, "ema_momentum": 0.75,
        "ema_overwrite_frequency": 3, "name": "own", "loss_scale_factor": 8.0, "gradient_accumulation_steps": 2,
        "jit_compile": False,
    }  # fmt: skip
    passed = {name: values[name] for name in KERAS_ARGUMENTS}
    config = Counting(extra="y", **passed).get_config()
    assert {name: config[name] for name in passed} == passed
    assert config["extra"] == "y"
    unknown = set(config) - KERAS_ARGUMENTS - {"extra", "learning_rate", "is_legacy_optimizer"}
    assert not unknown, "an argument of this Keras that ours does not pass on"


@pytest.mark.parametrize("name", [None, "own"])
def test_the_name(name):
    """tf_keras demands one."""
    assert Counting(name=name).name in ("own", "Counting", *(f"counting{end}" for end in ("", *(f"_{i}" for i in range(99)))))
    assert (Counting(name=name).name == "own") == (name == "own")


def test_keras_decays_nothing(tf):
    """``weight_decay`` None; tf_keras's own default is 0, for which it still subtracts 0 times the weight."""
    optimizer, (variable,) = Counting(), kernels(tf, 1)
    assert optimizer.weight_decay is None
    optimizer.apply_gradients([(tf.constant([[0.0]]), variable)])
    assert value_of(variable) == 1.0
    optimizer.weight_decay = 0.5
    optimizer.apply_gradients([(tf.constant([[0.0]]), variable)])
    assert value_of(variable) == 0.75  # what would happen if it were not None


def test_keras_has_the_method_that_ours_refuses(tf):
    assert callable(tf.keras.optimizers.Optimizer.exclude_from_weight_decay)
    with pytest.raises(ValueError, match="exclude_from_decay="):
        Counting().exclude_from_weight_decay(var_names=["kernel"])


def test_rows_of_a_sparse_gradient_are_summed(tf):
    """A gradient need not know its dense shape."""
    layer = tf.keras.layers.Embedding(3, 1, embeddings_initializer="ones")
    layer.build(None)
    optimizer = Counting(1.0)
    slices = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([2, 0, 2]))
    optimizer.apply_gradients([(slices, layer.trainable_variables[0])])
    assert np.array(layer.trainable_variables[0]).ravel().tolist() == [-1.0, 1.0, -4.0]


@only_tf_keras
def test_a_compiled_step(tf):
    """``jit_compile`` may be set; ``_update_step_xla`` tells variables of one shape apart."""
    optimizer, variables = Counting(0.25), kernels(tf, 3)
    optimizer.jit_compile = True
    optimizer.build(variables)
    step = tf.function(
        lambda: optimizer.apply_gradients([(tf.constant([[float(i)]]), v) for i, v in enumerate(variables)])
    )  # fmt: skip
    step()
    step()
    assert [value_of(v) for v in variables] == [1.0, 0.5, 0.0]
    assert slots_of(optimizer) == [2.0] * 6


def test_the_registered_name(tf):
    """A saved model looks the class up by it."""
    name = tf.keras.utils.get_registered_name(Counting)
    assert name == "tf_simigrad>Counting"
    assert tf.keras.utils.get_registered_object(name) is Counting
    serialized = tf.keras.optimizers.serialize(Counting(0.25, extra="y"))
    again = tf.keras.optimizers.deserialize(serialized)
    assert (type(again), again.extra) == (Counting, "y")
