"""Every private name of models, variables and TensorFlow that the package relies on exists, and does what is assumed of it."""

import math
import os
import warnings

import numpy as np
import pytest

from tests.compat.small import only_keras_3, only_tf_keras, small_model, variable_at_1
from tf_simigrad.compat import keras_private, tf_private

pytestmark = pytest.mark.usefixtures("tf")


# ---- which Keras it is


def test_the_module_of_the_model_tells_which_keras_it_is(tf, k):
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")  # TensorFlow's own switch
    others = "Keras 2" if tf.__version__.startswith("2.15.") else "Keras 3"
    assert keras_private.name_of_keras() == ("tf_keras" if legacy else others)
    assert keras_private.KERAS_3 is (keras_private.name_of_keras() == "Keras 3")
    assert keras_private.backend() == "tensorflow"


def test_no_keras_distribution_is_set(k):
    """``keras.distribution.distribution()`` is None until ``set_distribution``; tf_keras has none."""
    assert keras_private.keras_distribution() is None


@only_keras_3
def test_a_keras_distribution_is_seen(k):
    distribution = k.distribution.DataParallel(devices=["cpu:0"])
    try:
        k.distribution.set_distribution(distribution)
        assert keras_private.keras_distribution() is distribution
    finally:
        k.distribution.set_distribution(None)


# ---- the model


@pytest.mark.parametrize(("argument", "steps"), [({}, 1), ({"steps_per_execution": 3}, 3)], ids=["default", "three"])
def test_steps_per_execution(k, argument, steps):
    """``_steps_per_execution`` (tf_keras)."""
    assert keras_private.steps_per_execution(small_model(k, **argument)) == steps


def test_compiled_identity_changes_with_compile(k):
    """``_compile_loss`` (Keras 3), ``compiled_loss`` (tf_keras): made anew by each ``compile``, whatever the optimizer."""
    model = small_model(k)
    first = keras_private.compiled_identity(model)
    kept = model._compile_loss if keras_private.KERAS_3 else model.compiled_loss  # or its id might come back
    assert keras_private.compiled_identity(model) == first
    model.compile(optimizer=model.optimizer, loss="mse")
    assert keras_private.compiled_identity(model) != first
    assert kept is not None


def test_training_is_passed_where_the_model_takes_it(tf, k):
    """``_call_has_training_arg`` (Keras 3)."""
    seen = []

    class Taking(k.Model):
        def call(self, x, training=False):
            seen.append(training)
            return x

    class Plain(k.Model):
        def call(self, x):
            seen.append("none")
            return x

    models = [Taking(), Plain()]
    for model in models:
        keras_private.call_in_training(model, tf.ones((2, 1)))
    assert seen == [True, "none"]
    if keras_private.KERAS_3:
        assert [model._call_has_training_arg for model in models] == [True, False]


def test_overrides_are_seen(k):
    class Own(k.Model):
        def train_step(self, data):
            return {}

        def compute_metrics(self, *args, **kwargs):
            return {}

    plain, own = small_model(k), Own()
    assert (keras_private.overrides_train_step(plain), keras_private.overrides_train_step(own)) == (False, True)
    assert (keras_private.overrides_compute_metrics(plain), keras_private.overrides_compute_metrics(own)) == (False, True)
    plain.train_step = lambda data: {}
    assert keras_private.overrides_train_step(plain)


X, Y = np.arange(12, dtype="float32").reshape(4, 3), np.arange(4, dtype="float32")[:, None]
SAMPLE_WEIGHT = np.array([1.0, 0.0, 2.0, 1.0], "float32")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_compiled_loss_is_a_replicas_mean_over_the_replicas(tf, k, pair, replicas, weighted):
    """``_compute_loss`` (Keras 3), ``compute_loss`` and ``_validate_target_and_loss`` (tf_keras), with penalties."""
    strategy = pair if replicas == 2 else tf.distribute.get_strategy()
    with strategy.scope():
        layer = k.layers.Dense(1, kernel_initializer="ones", kernel_regularizer=k.regularizers.L2(0.1))
        model = k.Sequential([k.Input((3,)), layer])
        model.compile(loss="mse")
    weight = SAMPLE_WEIGHT if weighted else np.ones(4, "float32")

    @tf.function
    def losses():
        def one():
            y_pred = keras_private.call_in_training(model, tf.constant(X))
            given = tf.constant(weight) if weighted else None
            return keras_private.compiled_loss(model, tf.constant(X), tf.constant(Y), y_pred, given)

        return strategy.experimental_local_results(strategy.run(one))

    error = (X.sum(axis=1, keepdims=True) - Y)[:, 0]
    expected = (np.mean(weight * error**2) + 0.1 * 3) / replicas
    assert [float(loss) for loss in losses()] == pytest.approx([expected] * replicas, rel=1e-6)


def test_the_log_of_the_loss_is_what_was_tracked(tf, k):
    """``_loss_tracker`` (Keras 3); tf_keras tracks inside ``compute_loss``, and a ``loss_fn`` by a metric of our own."""
    model = small_model(k)
    own = keras_private.own_loss_metric(model)
    for mean, weight in ((2.0, 1.0), (5.0, 3.0)):
        keras_private.track_loss(model, tf.constant(mean), tf.constant(weight))
        if own is not None:
            own.update_state(mean, sample_weight=weight)
    loss = model.get_metrics_result()["loss"] if own is None else own.result()
    assert float(loss) == pytest.approx((2.0 + 5.0 * 3) / 4)


@only_tf_keras
def test_compute_loss_tracks_the_loss(tf, k):
    model = k.Sequential([k.Input((3,)), k.layers.Dense(1, kernel_initializer="ones")])
    model.compile(loss="mse")
    y_pred = keras_private.call_in_training(model, tf.constant(X))
    loss = keras_private.compiled_loss(model, tf.constant(X), tf.constant(Y), y_pred, None)
    assert float(model.get_metrics_result()["loss"]) == pytest.approx(float(loss))
    with pytest.raises(ValueError, match="Target data is missing"):
        keras_private.compiled_loss(model, tf.constant(X), None, y_pred, None)


def test_the_train_counter_advances(k):
    """``_train_counter`` (tf_keras); Keras 3 has none to advance."""
    model = small_model(k)
    for steps in (1, 4):
        keras_private.count_train_steps(model, steps)
    if not keras_private.KERAS_3:
        assert int(model._train_counter.numpy()) == 5


def test_all_layers_are_found(k):
    """``_flatten_layers``, through a model inside a model."""
    inner = k.Sequential([k.Input((3,)), k.layers.Dense(2, kernel_regularizer="l2", name="penalised"),
                          k.layers.BatchNormalization(name="inner_norm")], name="inner")  # fmt: skip
    model = k.Sequential([k.Input((3,)), inner, k.layers.BatchNormalization(name="outer_norm"),
                          k.layers.Dense(1, bias_regularizer="l1", name="out")])  # fmt: skip
    assert keras_private.batch_dependent_layers(model) == ["inner_norm", "outer_norm"]
    assert keras_private.regularised_layers(model) == ["penalised", "out"]


def test_statistics_that_replicas_keep_apart(k):
    model = small_model(k)
    norm = model.get_layer("norm")
    statistics = keras_private.unsynchronised_statistics(model, 2)
    assert [id(v) for v in statistics] == [id(norm.moving_mean), id(norm.moving_variance)]
    assert keras_private.unsynchronised_statistics(model, 1) == []
    norm.trainable = False
    assert keras_private.unsynchronised_statistics(model, 2) == []


def test_how_statistics_are_kept_on_two_replicas(tf, k, pair):
    """Both Kerases update them apart; a read gives the first replica's under Keras 3, the mean under tf_keras."""
    with pair.scope():
        norm = k.layers.BatchNormalization(momentum=0.0)
        norm.build((None, 1))
    mean = keras_private.tf_variable(norm.moving_mean)

    @tf.function
    def step():
        def one():
            rank = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
            norm(tf.fill([4, 1], 10.0 * rank), training=True)

        pair.run(one)

    step()
    assert [float(part.numpy()[0]) for part in pair.experimental_local_results(mean)] == [0.0, 10.0]
    read = float(tf.convert_to_tensor(mean)[0])
    assert read == (0.0 if keras_private.KERAS_3 else 5.0)


# ---- building before the first batch


def deferred(k, metrics=("mae",)):
    """A compiled model whose variables wait for the first batch."""

    class Model(k.Model):
        def __init__(self):
            super().__init__()
            self.dense = k.layers.Dense(1)

        def call(self, x, training=False):
            return self.dense(x)

    model = Model()
    model.compile(optimizer=k.optimizers.SGD(0.1), loss="mse", metrics=list(metrics))
    return model


def loss_of_own(model, data):
    x, y = data
    return (model(x, training=True) - y) ** 2


@pytest.mark.parametrize("own_loss", [False, True], ids=["compiled_loss", "loss_fn"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_deferred_model_is_built_from_the_spec(tf, k, pair, replicas, own_loss):
    """``_compile_loss``, ``_compile_metrics`` (Keras 3), ``compiled_loss``, ``compiled_metrics``; ``built`` and ``build``."""
    strategy = pair if replicas == 2 else tf.distribute.get_strategy()
    with strategy.scope():
        # Under a strategy Keras 3 makes the variables of metrics itself, before it asks for a train function.
        model = deferred(k, metrics=() if keras_private.KERAS_3 and replicas == 2 else ("mae",))
    assert not keras_private.is_built(model)
    assert not keras_private.is_ready(model, with_loss=False)
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2 * replicas, drop_remainder=True)
    iterator = iter(strategy.experimental_distribute_dataset(dataset) if replicas == 2 else dataset)
    keras_private.build_from(model, tf_private.first_replica_spec(iterator.element_spec), loss_of_own if own_loss else None)
    assert keras_private.is_built(model)
    assert keras_private.is_ready(model, with_loss=False)
    assert keras_private.is_ready(model, with_loss=True) != own_loss  # a loss_fn leaves the compiled loss unbuilt
    assert sorted(tuple(v.shape) for v in model.trainable_variables) == [(1,), (3, 1)]
    assert len(list(iterator)) == 4 // (2 * replicas)  # nothing was consumed


def test_the_first_epoch_of_unknown_size_counts(tf, k):
    """The second epoch offers more than the first had: it ends where ``steps_after_first_epoch`` says."""
    lengths = iter([2, 4])

    def elements():
        for _ in range(next(lengths)):
            yield X, Y

    specs = (tf.TensorSpec((4, 3), tf.float32), tf.TensorSpec((4, 1), tf.float32))
    dataset, seen = tf.data.Dataset.from_generator(elements, output_signature=specs), []
    counter = k.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    with warnings.catch_warnings():  # of data that ran out, as it is meant to
        warnings.simplefilter("ignore", UserWarning)
        small_model(k).fit(dataset, epochs=2, verbose=0, callbacks=[counter])
    assert seen == [0, 1, *range(keras_private.steps_after_first_epoch(first=2, elements=1))]


def test_a_replica_without_examples(tf, k, pair):
    """``empty_batches_are_safe``: under Keras 3 the moving statistics of that replica become NaN."""
    with pair.scope():
        model = small_model(k)
    dataset = tf.data.Dataset.from_tensor_slices((X[:1], Y[:1])).batch(2)  # one example for two replicas

    sizes = []

    @tf.function
    def losses(iterator):
        def one(data):
            x, y = data
            sizes.append(x.shape[0])
            return keras_private.compiled_loss(model, x, y, keras_private.call_in_training(model, x), None)

        return pair.experimental_local_results(pair.run(one, (next(iterator),)))

    full, empty = losses(iter(pair.experimental_distribute_dataset(dataset)))
    statistics = pair.experimental_local_results(keras_private.tf_variable(model.get_layer("norm").moving_mean))
    safe = keras_private.empty_batches_are_safe(model)
    assert sizes == [None, None]
    assert math.isfinite(float(full))
    assert math.isfinite(float(empty)) or not safe
    assert [bool(np.isfinite(part).all()) for part in statistics] == [True, safe]


def test_the_train_function_is_made_anew(k):
    """``train_function``: ``make_train_function`` returns early where it is set, and ``fit`` calls what stands there."""
    model = small_model(k)
    model.train_function = mine = lambda iterator: {}
    model.make_train_function()
    assert model.train_function is mine
    made = keras_private.restored_train_function(model)
    assert model.train_function is made is not mine
    model.fit(X, Y, verbose=0)


# ---- variables


def test_paths_of_variables(tf, k):
    """``path`` (Keras 3), ``name`` (tf_keras)."""
    paths = [keras_private.variable_path(v) for v in small_model(k).trainable_variables]
    assert [path.split("/")[-2:] for path in paths] == [
        ["hidden", "kernel"], ["hidden", "bias"], ["norm", "gamma"], ["norm", "beta"], ["out", "kernel"], ["out", "bias"],
    ]  # fmt: skip
    assert keras_private.variable_path(tf.Variable(1.0, name="plain")) == "plain"


def test_the_variable_of_tensorflow(tf, pair):
    plain = tf.Variable(1.0)
    assert keras_private.tf_variable(plain) is plain
    with pair.scope():
        kept = keras_private.tf_variable(variable_at_1(tf))
    assert len(pair.experimental_local_results(kept)) == 2
    assert isinstance(kept, tf.Variable)


# ---- TensorFlow


def test_autograph_is_enabled_in_the_context(tf):
    """``ag_ctx.ControlStatusCtx``, ``ag_ctx.Status``."""
    status = tf.__internal__.autograph.control_status_ctx
    seen = []
    tf.function(lambda: seen.append(status().status.name), autograph=False)()
    with tf_private.autograph_enabled():
        seen.append(status().status.name)
    assert seen == ["UNSPECIFIED", "ENABLED"] or seen == ["DISABLED", "ENABLED"]
    assert status().status.name != "ENABLED"


@only_tf_keras
def test_layers_are_converted_in_the_context(tf, k):
    """An ``if`` on a tensor in ``call``, in a function that is not converted itself."""

    class Absolute(k.layers.Layer):
        def call(self, x):
            if tf.reduce_sum(x) > 0:
                return x
            return -x

    layer = Absolute()

    def outer(x):
        with tf_private.autograph_enabled():
            return layer(x)

    assert float(tf.function(outer, autograph=False)(tf.constant([-2.0]))[0]) == 2.0
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        tf.function(lambda x: layer(x), autograph=False)(tf.constant([-2.0]))


def test_autograph_is_on_under_tf_keras_only(tf):
    """Keras 3 does not convert ``call``; tf_keras does, in its own train function."""
    status = tf.__internal__.autograph.control_status_ctx
    with keras_private.autograph_of_keras():
        inside = status().status.name
    assert (inside == "ENABLED") == (not keras_private.KERAS_3)


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_per_replica_specs(tf, pair, drop_remainder):
    """``PerReplicaSpec`` and its ``_value_specs``."""
    dataset = tf.data.Dataset.from_tensor_slices((X, {"y": Y})).batch(4, drop_remainder=drop_remainder)
    x, y = tf_private.first_replica_spec(iter(pair.experimental_distribute_dataset(dataset)).element_spec)
    batch = 2 if drop_remainder else None
    assert (x.shape.as_list(), x.dtype) == ([batch, 3], tf.float32)
    assert y["y"].shape.as_list() == [batch, 1]
    plain = iter(dataset).element_spec
    assert tf_private.first_replica_spec(plain) == plain


def test_several_processes_are_seen(tf, pair):
    """``_in_multi_worker_mode``."""
    for strategy in (pair, tf.distribute.get_strategy(), tf.distribute.OneDeviceStrategy("CPU:0")):
        assert tf_private.is_multi_worker(strategy) is False


@pytest.mark.parametrize(("count", "endless"), [(None, True), (3, False)])
def test_a_distributed_iterator_knows_whether_it_ends(tf, pair, count, endless):
    """``DistributedIteratorBase._cardinality``."""
    data = tf.data.Dataset.from_tensors([1.0, 2.0]).repeat(count)
    assert tf_private.is_endless(iter(pair.experimental_distribute_dataset(data))) is endless
    assert tf_private.is_endless(iter(data)) is False


def test_what_a_running_function_raises_is_waited_for(tf):
    """``context.async_wait``."""
    fails = tf.function(lambda x: tf.debugging.check_numerics(x, "it is not a number"), autograph=False)
    argument = tf.constant(float("nan"))
    tf_private.wait_for_calls()
    tf.config.experimental.set_synchronous_execution(False)
    try:
        fails(argument)
        with pytest.raises(tf.errors.InvalidArgumentError, match="it is not a number"):
            tf_private.wait_for_calls()
    finally:
        tf.experimental.async_clear_error()
        tf.config.experimental.set_synchronous_execution(True)
