"""``fit`` under TPUStrategy: the strategy's own class over one core, whose programs run on the CPU in place of a TPU."""

import numpy as np
import pytest
import tensorflow as tf

import tf_simigrad as sg
from tests.fit.cases import arrays, assert_same_weights, cross_entropy, sequential
from tests.policies import Cycle
from tf_simigrad.compat import keras_private
from tf_simigrad.fit import checks

pytestmark = pytest.mark.skipif(keras_private.KERAS_3, reason="TPUStrategy is supported under tf_keras only")

MICRO_BATCH, MICRO_STEPS = 4, (4, 5)  # four groups are VRGD's fewest
EXAMPLES = MICRO_BATCH * sum(MICRO_STEPS) * 2


def compiled(strategy, metrics=("accuracy",), **kwargs):
    tf.keras.utils.set_random_seed(3)
    with strategy.scope():
        model = sequential(tf.keras)
        optimizer, transform = sg.vr_lars(0.3)
        model.compile(optimizer, cross_entropy(tf.keras), metrics=list(metrics), **kwargs)
    return model, transform


def dataset(drop_remainder=True, count=EXAMPLES):
    return tf.data.Dataset.from_tensor_slices(arrays(count)).batch(MICRO_BATCH, drop_remainder)


def adaptive_for(transform, **kwargs):
    return sg.AdaptiveBatch(Cycle(tuple(MICRO_BATCH * k for k in MICRO_STEPS)), transform=transform, **kwargs)


@pytest.mark.parametrize("steps_per_execution", [1, 5])
def test_a_core_takes_the_steps_of_a_cpu(one_core, steps_per_execution):
    """Metrics, epochs, validation and the flush of an unfinished accumulation with it."""
    seen = {}
    for name, strategy in (("tpu", one_core), ("cpu", tf.distribute.get_strategy())):
        model, transform = compiled(strategy, steps_per_execution=steps_per_execution)
        adaptive = adaptive_for(transform)
        logs = model.fit(dataset(count=EXAMPLES + MICRO_BATCH), epochs=2, validation_data=dataset(), verbose=0,
                         callbacks=[adaptive]).history  # fmt: skip
        seen[name] = (model, adaptive, logs)
    (model, adaptive, logs), (other, expected, others) = seen["tpu"], seen["cpu"]
    assert_same_weights(model, other)
    assert adaptive.traces == 1
    assert [r.batch_size for r in adaptive.history] == [r.batch_size for r in expected.history]
    np.testing.assert_allclose([r.similarity for r in adaptive.history], [r.similarity for r in expected.history], atol=1e-5)
    assert set(logs) == set(others)
    for name in logs:
        np.testing.assert_allclose(logs[name], others[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_metrics_are_fetched_once_per_update(one_core, monkeypatch):
    """What the micro-steps in between show is what the last update left."""
    model, transform = compiled(one_core)
    adaptive, shown = adaptive_for(transform), []

    class Shown(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            shown.append(logs["loss"])

    model.fit(dataset(), verbose=0, callbacks=[adaptive, Shown()])
    assert len(shown) == 2 * sum(MICRO_STEPS)
    ends = np.cumsum(MICRO_STEPS * 2) - 1
    changes = [i for i in range(1, len(shown)) if shown[i] != shown[i - 1]]
    assert changes == list(ends)


def test_data_of_unknown_length_ends_like_any_other(one_core):
    """Metrics of the last micro-steps, and the flush at the end, where nobody can tell which they are."""
    x, y = arrays(EXAMPLES + MICRO_BATCH)
    spec = (tf.TensorSpec(x.shape[1:], x.dtype), tf.TensorSpec([], y.dtype))
    unknown = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=spec)
    unknown = unknown.batch(MICRO_BATCH, drop_remainder=True)
    model, transform = compiled(one_core)
    adaptive = adaptive_for(transform)
    logs = model.fit(unknown, epochs=2, verbose=0, callbacks=[adaptive]).history
    known, transform = compiled(one_core)
    expected = adaptive_for(transform)
    others = known.fit(dataset(count=EXAMPLES + MICRO_BATCH), epochs=2, verbose=0, callbacks=[expected]).history
    assert_same_weights(model, known, tolerance=0)
    assert [r.batch_size for r in adaptive.history] == [r.batch_size for r in expected.history]
    np.testing.assert_allclose(logs["loss"], others["loss"], rtol=1e-6)


class Interrupt(tf.keras.callbacks.Callback):
    """Ends ``fit`` by an exception when the second epoch begins, as a preempted machine would."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise InterruptedError


def resumable(strategy, folder):
    model, _ = compiled(strategy)
    with strategy.scope():
        optimizer, transform = sg.vr_adam(0.01)
        model.compile(optimizer, cross_entropy(tf.keras))
    adaptive = adaptive_for(transform)
    return model, adaptive, sg.EpochCheckpoint(folder, adaptive)


def test_an_interrupted_training_resumes_to_the_same_bits(one_core, tmp_path):
    """With pending sums and VRGD's averages, which live on the cores."""
    data = dataset(count=EXAMPLES + MICRO_BATCH)
    whole, adaptive, _ = resumable(one_core, tmp_path / "unused")
    whole.fit(data, epochs=2, verbose=0, callbacks=[adaptive])

    model, adaptive, checkpoint = resumable(one_core, tmp_path)
    with pytest.raises(InterruptedError):
        model.fit(data, epochs=2, verbose=0, callbacks=[adaptive, checkpoint, Interrupt()])
    model, adaptive, checkpoint = resumable(one_core, tmp_path)
    assert checkpoint.restore(model) == 1
    model.fit(data, epochs=2, initial_epoch=1, verbose=0, callbacks=[adaptive, checkpoint])
    assert_same_weights(model, whole, tolerance=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dataset(drop_remainder=False), r"shape \(None, 6\).*drop_remainder=True"),
        (lambda: dataset().map(lambda x, y: (x[:, : tf.reduce_sum(y)], y)), r"shape \(4, None\).*padded_batch"),
        (lambda: dataset().map(lambda x, y: (tf.strings.as_string(x), y)), "holds strings"),
    ],
)
def test_elements_that_no_program_can_take_are_refused(one_core, make, message):
    model, transform = compiled(one_core)
    with pytest.raises(ValueError, match=message):
        model.fit(make(), verbose=0, callbacks=[adaptive_for(transform)])


@pytest.mark.parametrize(
    ("spec", "message"), [(None, "tf.data.Dataset"), (tf.RaggedTensorSpec([4, None]), "dense tensors only")]
)
def test_specs_that_fit_itself_does_not_let_through_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        checks.check_static_shapes(spec)


def test_what_does_not_work_on_a_tpu_is_refused(one_core):
    model, transform = compiled(one_core, run_eagerly=True)
    with pytest.raises(ValueError, match="run_eagerly"):
        adaptive_for(transform).check(model)


def test_float16_is_refused(one_core):
    """tf_keras refuses to make such an optimizer there; one made outside of the scope it does not see."""
    model, transform = compiled(one_core)
    model.optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="mixed_bfloat16"):
        adaptive_for(transform).check(model)


def test_bfloat16_keeps_weights_and_sums_in_float32(one_core):
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model, transform = compiled(one_core)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    assert model.layers[0].compute_dtype == "bfloat16"
    adaptive = adaptive_for(transform)
    logs = model.fit(dataset(), verbose=0, callbacks=[adaptive]).history
    plain, transform = compiled(one_core)
    expected = plain.fit(dataset(), verbose=0, callbacks=[adaptive_for(transform)]).history
    assert {v.dtype for v in model.variables} == {tf.float32}
    assert len(adaptive.history) == 4 and all(not r.skipped for r in adaptive.history)
    # bfloat16 has 8 bits: the loss is that of float32 to about a hundredth.
    np.testing.assert_allclose(logs["loss"], expected["loss"], rtol=0.02)
