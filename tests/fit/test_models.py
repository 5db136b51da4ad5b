"""Every kind of model and data: two micro-steps of half the batch are one step of plain Keras on the whole batch."""

import numpy as np
import pytest

import tf_simigrad as sg
from tests.fit import cases
from tests.fit.cases import CASES

BATCH = 8
COUNT = 5 * BATCH


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_equals_plain_keras_on_the_whole_batch(tf, strategies, name, replicas):
    case, sgd = CASES[name], lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9)
    data = case.data(COUNT)
    plain = cases.compiled(tf.keras, case, sgd())
    plain_logs = cases.fit(plain, data, batch_size=BATCH, epochs=2, **case.fit).history

    with strategies(replicas).scope():
        model = cases.compiled(tf.keras, case, sgd())
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(batch_size=BATCH))
    logs = cases.fit(model, data, batch_size=BATCH // 2, epochs=2, callbacks=[adaptive], **case.fit).history

    cases.assert_same_weights(model, plain, 2e-6)
    assert len(adaptive.history) == 10 and adaptive.traces == 1
    assert {r.batch_size for r in adaptive.history} == {BATCH}
    if name not in ("compute_loss", "two_outputs", "targets_by_name", "add_loss", "sample_weight", "class_weight"):
        # the loss over an epoch is a mean over examples at the weights before each update: the same in both
        np.testing.assert_allclose(logs["loss"], plain_logs["loss"], rtol=1e-5)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    "kwargs", [{"steps_per_execution": 5}, {"steps_per_execution": 4}, {"run_eagerly": True}, {"jit_compile": True}], ids=str
)
def test_ways_to_run_give_the_same_weights_and_reports(tf, strategies, kwargs, replicas):
    if kwargs.get("jit_compile") and replicas > 1:
        pytest.skip("refused off TPU: test_refusals")
    data = CASES["sequential"].data(11 * 4)  # 11 elements: neither 4 nor 5 divides them
    runs = []
    for options in ({}, kwargs):
        with strategies(replicas).scope():
            model = cases.compiled(tf.keras, CASES["sequential"], tf.keras.optimizers.SGD(0.1), **options)
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(batch_size=12))
        cases.fit(model, data, batch_size=4, epochs=2, callbacks=[adaptive])
        runs.append((model, adaptive))
    (plain, expected), (model, got) = runs
    cases.assert_same_weights(model, plain)
    assert [r.examples_seen for r in got.history] == [r.examples_seen for r in expected.history]
    assert [r.micro_steps for r in got.history] == [3] * 7 + [1]  # 22 micro-steps: carried over the epoch, flushed at the end
    for a, b in zip(got.history, expected.history, strict=True):
        assert a.similarity == pytest.approx(b.similarity, abs=1e-5)
    if "run_eagerly" not in kwargs:
        assert got.traces == 1


@pytest.fixture
def float16(tf):
    """The global policy mixed_float16, and ``scaled(optimizer)``: a loss scale of 1,024, below which nothing here overflows."""
    policy = tf.keras.mixed_precision
    before = policy.global_policy().name if hasattr(policy, "global_policy") else policy.dtype_policy().name
    setter = policy.set_global_policy if hasattr(policy, "set_global_policy") else policy.set_dtype_policy
    setter("mixed_float16")
    yield lambda optimizer: policy.LossScaleOptimizer(optimizer, initial_scale=1024.0)
    setter(before)


def test_float16_equals_the_large_batch(tf, strategies, float16):
    """Up to the rounding of float16 gradients, 2^-11 of their size, over 10 updates."""
    models = []
    for replicas, element in ((1, BATCH), (2, BATCH // 2)):
        callbacks = [] if element == BATCH else [sg.AdaptiveBatch(sg.FixedBatch(batch_size=BATCH))]
        with strategies(replicas).scope():
            model = cases.compiled(tf.keras, CASES["sequential"], float16(tf.keras.optimizers.SGD(0.1, momentum=0.9)))
        cases.fit(model, CASES["sequential"].data(COUNT), batch_size=element, epochs=2, callbacks=callbacks)
        models.append(model)
    cases.assert_same_weights(*models, tolerance=2e-3)


def test_overflow_drops_the_update_whole(tf, strategies, float16):
    with strategies(2).scope():
        model = cases.compiled(tf.keras, CASES["sequential"], float16(tf.keras.optimizers.SGD(0.1, momentum=0.9)))
    x, y = CASES["sequential"].data(COUNT)
    x[BATCH + 3] = np.inf  # in the second replica's half of the second update's first micro-batch
    adaptive = sg.AdaptiveBatch(sg.SimiGrad(target_similarity=0.5, min_batch_size=BATCH, max_batch_size=BATCH))
    history = cases.fit(model, (x, y), batch_size=BATCH // 2, epochs=1, callbacks=[adaptive]).history
    assert [r.skipped for r in adaptive.history] == [False, True, False, False, False]
    assert adaptive.skipped_updates == 1 and history["skipped_updates"] == [1.0]
    assert int(model.optimizer.iterations.numpy()) == 4
    assert adaptive.examples_seen == COUNT
    scale = model.optimizer.dynamic_scale.numpy() if hasattr(model.optimizer, "dynamic_scale") else model.optimizer.loss_scale
    assert float(scale) == 512.0
    assert all(np.isfinite(w).all() for w in model.get_weights())


@pytest.mark.parametrize("replicas", [1, 2])
def test_loss_fn_trains_a_model_with_its_own_train_step(tf, strategies, replicas):
    class Custom(tf.keras.Model):
        def train_step(self, data):
            raise AssertionError("must not run")

    def loss_fn(model, data):
        x, y = data
        return tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True))

    def build(kind):
        tf.keras.utils.set_random_seed(7)
        inputs = tf.keras.Input((cases.FEATURES,))
        model = kind(inputs, tf.keras.layers.Dense(cases.CLASSES)(inputs))
        model.compile(tf.keras.optimizers.SGD(0.1), cases.cross_entropy(tf.keras))
        return model

    data = cases.arrays(COUNT)
    plain = build(tf.keras.Model)
    expected = cases.fit(plain, data, batch_size=BATCH).history["loss"]
    with strategies(replicas).scope():
        model = build(Custom)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(batch_size=BATCH), loss_fn=loss_fn)
    got = cases.fit(model, data, batch_size=BATCH // 2, callbacks=[adaptive]).history["loss"]
    cases.assert_same_weights(model, plain)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("own_metrics", [False, True])
def test_loss_fn_with_metrics_that_nothing_updates(tf, strategies, own_metrics):
    """Metrics of compile, or a model that names its own: the loss is logged in any case."""

    class Own(tf.keras.Model):
        def train_step(self, data):
            raise AssertionError("must not run")

        @property
        def metrics(self):
            return [self.tracker]

    def loss_fn(model, data):
        return tf.reduce_mean(tf.square(model(data[0], training=True)))

    with strategies(2).scope():
        inputs = tf.keras.Input((cases.FEATURES,))
        model = (Own if own_metrics else tf.keras.Model)(inputs, tf.keras.layers.Dense(1)(inputs))
        if own_metrics:
            model.tracker = tf.keras.metrics.Mean(name="total_loss")
        model.compile(tf.keras.optimizers.SGD(0.0), "mse", metrics=None if own_metrics else ["mae"])
    x, _ = cases.arrays(COUNT)
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)
    logs = model.fit(data, epochs=2, verbose=0, callbacks=[sg.AdaptiveBatch(sg.FixedBatch(8), loss_fn=loss_fn)]).history
    expected = float(np.mean(model.predict(x, verbose=0, batch_size=8) ** 2))
    assert logs["loss"] == pytest.approx([expected] * 2, rel=1e-5)


def test_loss_fn_with_weights_is_a_mean_over_tokens(tf, strategies):
    """Micro-batches with different numbers of tokens: the update is the mean over all tokens, not the mean of means."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(COUNT, 5, cases.FEATURES)).astype("float32")
    mask = (rng.uniform(size=(COUNT, 5)) < np.linspace(0.1, 1.0, COUNT)[:, None]).astype("float32")
    mask[:, 0] = 1.0
    y = rng.normal(size=(COUNT, 5, 1)).astype("float32")

    def token_loss(model, data):
        (inputs, weight), targets = data
        errors = tf.square(model(inputs, training=True) - targets)[..., 0]
        tokens = tf.reduce_sum(weight)
        return tf.reduce_sum(errors * weight) / tokens, tokens

    def build():
        tf.keras.utils.set_random_seed(7)
        model = tf.keras.Sequential([tf.keras.Input((5, cases.FEATURES)), tf.keras.layers.Dense(1)])
        model.compile(tf.keras.optimizers.SGD(0.1), "mse")
        return model

    dataset = tf.data.Dataset.from_tensor_slices(((x, mask), y))
    weights = []
    for replicas, element in ((1, BATCH), (1, 4), (2, 4)):
        with strategies(replicas).scope():
            model = build()
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(batch_size=BATCH), loss_fn=token_loss)
        model.fit(dataset.batch(element, drop_remainder=True), epochs=1, verbose=0, callbacks=[adaptive])
        assert {r.batch_size for r in adaptive.history} == {BATCH}
        weights.append(model)
    expected = _token_sgd(x, mask, y, build().get_weights(), BATCH, 0.1)
    for model in weights:
        for a, b in zip(model.get_weights(), expected, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6)


def _token_sgd(x, mask, y, weights, batch, rate):
    kernel, bias = (w.astype("float64") for w in weights)
    for start in range(0, len(x), batch):
        part = slice(start, start + batch)
        error = (x[part] @ kernel + bias - y[part]) * mask[part][..., None]
        tokens = mask[part].sum()
        kernel = kernel - rate * 2 * np.einsum("ntf,nto->fo", x[part], error) / tokens
        bias = bias - rate * 2 * error.sum((0, 1)) / tokens
    return kernel, bias
