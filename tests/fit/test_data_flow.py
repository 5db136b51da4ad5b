"""Elements, epochs, ends: what is counted, carried, flushed, discarded; plain again afterwards."""

import copy
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import tf_simigrad as sg
from tests.fit import cases
from tests.fit.cases import CASES
from tests.policies import Cycle


def model_on(tf, strategies, replicas=1, optimizer=None, **kwargs):
    with strategies(replicas).scope():
        return cases.compiled(tf.keras, CASES["sequential"], optimizer or tf.keras.optimizers.SGD(0.1, momentum=0.9), **kwargs)


def dataset(tf, count, batch, drop_remainder=True):
    return tf.data.Dataset.from_tensor_slices(cases.arrays(count)).batch(batch, drop_remainder=drop_remainder)


def unknown_size(dataset):
    return dataset.filter(lambda *element: True)


class Recorder:
    """A callback that notes what a hook sees."""

    def __new__(cls, tf, **hooks):
        return type("Recording", (tf.keras.callbacks.Callback,), hooks)()


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("known", [True, False])
def test_pending_is_carried_over_epochs_and_flushed_before_the_last_validation(tf, strategies, replicas, known):
    """5 elements of 4, batches of 12: 12, then 8 + 4, 12, flush of the last 4; validation sees the flushed weights."""
    model = model_on(tf, strategies, replicas)
    data = dataset(tf, 20, 4)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(12))
    seen = []
    watch = Recorder(tf, on_test_begin=lambda self, logs=None: seen.append([w.copy() for w in self.model.get_weights()]))
    model.fit(data if known else unknown_size(data), epochs=2, verbose=0, validation_data=data, callbacks=[watch, adaptive])
    assert [(r.batch_size, r.micro_steps, r.examples_seen) for r in adaptive.history] == [
        (12, 3, 12),
        (12, 3, 24),
        (12, 3, 36),
        (4, 1, 40),
    ]
    assert adaptive.discarded_examples == 0 and adaptive.traces == 1
    for at_validation, final in zip(seen[-1], model.get_weights(), strict=True):
        np.testing.assert_array_equal(at_validation, final)


@pytest.mark.parametrize("replicas", [1, 2])
def test_flush_uses_the_rate_and_mean_of_its_true_examples(tf, strategies, replicas):
    x, y = cases.arrays(16)
    plain = model_on(tf, strategies, optimizer=tf.keras.optimizers.SGD(0.1))
    plain.train_on_batch(x[:12], y[:12])
    plain.optimizer.learning_rate = 0.1 * (4 / 12) ** 0.5
    plain.train_on_batch(x[12:], y[12:])
    model = model_on(tf, strategies, replicas, optimizer=tf.keras.optimizers.SGD(0.1))
    model.fit(dataset(tf, 16, 4), verbose=0, callbacks=[sg.AdaptiveBatch(sg.FixedBatch(12))])
    cases.assert_same_weights(model, plain)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("last", [1, 3])
def test_short_last_element_is_weighted_by_its_examples(tf, strategies, replicas, last):
    """With one example on two replicas one of them has none: no NaN, no half weight."""
    count = 8 + last
    plain = model_on(tf, strategies)
    x, y = cases.arrays(count)
    plain.train_on_batch(x, y)
    model = model_on(tf, strategies, replicas)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(12))
    logs = model.fit(dataset(tf, count, 4, drop_remainder=False), verbose=0, callbacks=[adaptive]).history
    assert [r.batch_size for r in adaptive.history] == [count] and not adaptive.history[0].skipped
    assert adaptive.history[0].similarity is not None
    cases.assert_same_weights(model, plain)
    assert np.isfinite(logs["loss"]).all()


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_steps_per_epoch_and_initial_epoch(tf, strategies, steps_per_execution):
    model = model_on(tf, strategies, 2, steps_per_execution=steps_per_execution)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8))
    history = model.fit(
        dataset(tf, 40, 4).repeat(), steps_per_epoch=6, initial_epoch=2, epochs=5, verbose=0, callbacks=[adaptive]
    )
    assert history.epoch == [2, 3, 4]
    assert adaptive.examples_seen == 3 * 6 * 4 and len(adaptive.history) == 9


def test_data_that_ends_early(tf, strategies):
    """10 elements are promised and 5 come: they are flushed where the train function sees the end, counted in any case.

    Keras 3 knows the size of this dataset and stops without a sixth call.
    """
    for source, sizes in ((dataset(tf, 20, 4), ([12], [12, 8])), (unknown_size(dataset(tf, 20, 4)), ([12, 8],))):
        model = model_on(tf, strategies)
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(12))
        model.fit(source, steps_per_epoch=10, epochs=1, verbose=0, callbacks=[adaptive])
        assert [r.batch_size for r in adaptive.history] in sizes
        assert adaptive.examples_seen + adaptive.discarded_examples == 20


def test_epochs_of_unknown_and_unequal_size(tf, strategies):
    """2 elements, then 4: what each Keras reads of the second epoch is flushed at its end, nothing is discarded."""
    lengths = iter([2, 4])
    x, y = cases.arrays(4)

    def elements():
        for _ in range(next(lengths)):
            yield x, y

    specs = (tf.TensorSpec(x.shape, tf.float32), tf.TensorSpec(y.shape, tf.int32))
    model = model_on(tf, strategies)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8))
    data = tf.data.Dataset.from_generator(elements, output_signature=specs)
    logs = model.fit(data, epochs=2, verbose=0, callbacks=[adaptive]).history
    assert adaptive.discarded_examples == 0 and adaptive.examples_seen in (16, 20)
    assert logs["examples_seen"][-1] >= 16


def test_stopping_inside_an_accumulation_discards_and_says_so(tf, strategies, caplog):
    model = model_on(tf, strategies, 2)

    def stop(self, batch, logs=None):
        self.model.stop_training = batch == 3

    adaptive = sg.AdaptiveBatch(sg.FixedBatch(12))
    model.fit(dataset(tf, 40, 4), epochs=3, verbose=0, callbacks=[adaptive, Recorder(tf, on_train_batch_end=stop)])
    assert [r.batch_size for r in adaptive.history] == [12]
    assert adaptive.discarded_examples == 4 and "4 examples of 1 micro-steps are discarded" in caplog.text


def test_a_second_fit_goes_on_without_a_trace(tf, strategies):
    model = model_on(tf, strategies, 2)
    adaptive = sg.AdaptiveBatch(Cycle((8, 16)))
    for epoch in (0, 1):
        model.fit(dataset(tf, 24, 8), initial_epoch=epoch, epochs=epoch + 1, verbose=0, callbacks=[adaptive])
    assert [r.batch_size for r in adaptive.history] == [8, 16, 8, 16] and adaptive.examples_seen == 48
    assert adaptive.traces == 1
    other = model_on(tf, strategies, 2)
    other.fit(dataset(tf, 24, 8), verbose=0, callbacks=[adaptive])
    assert adaptive.examples_seen == 24, "another model begins anew"


def test_layers_frozen_between_fits(tf, strategies):
    model = model_on(tf, strategies)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8))
    model.fit(dataset(tf, 16, 4), verbose=0, callbacks=[adaptive])
    model.layers[0].trainable = False
    model.compile(tf.keras.optimizers.SGD(0.1), cases.cross_entropy(tf.keras))
    before = [w.copy() for w in model.get_weights()]
    model.fit(dataset(tf, 16, 4), verbose=0, callbacks=[adaptive])
    frozen, trained = model.get_weights()[:2], model.get_weights()[2:]
    assert all((a == b).all() for a, b in zip(before[:2], frozen, strict=True))
    assert any((a != b).any() for a, b in zip(before[2:], trained, strict=True))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("replicas", [1, 2])
def test_plain_fit_is_plain_again_after_an_exception(tf, strategies, replicas, error):
    def fail(self, batch, logs=None):
        if batch == 2:
            raise error("stop here")

    model = model_on(tf, strategies, replicas)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(16))
    with pytest.raises(error):
        model.fit(dataset(tf, 40, 4), verbose=0, callbacks=[adaptive, Recorder(tf, on_train_batch_end=fail)])
    twin = model_on(tf, strategies, replicas)
    for m in (model, twin):
        logs = m.fit(dataset(tf, 24, 4), epochs=2, verbose=0).history
        assert "batch_size" not in logs
    cases.assert_same_weights(model, twin, 0.0)
    assert int(model.optimizer.iterations.numpy()) == 12
    model.fit(dataset(tf, 16, 4), verbose=0, callbacks=[adaptive])
    assert adaptive.discarded_examples == 12 and adaptive.examples_seen == 16


@pytest.mark.parametrize("replicas", [1, 2])
def test_train_on_batch_inside_a_callback_is_plain_and_only_once(tf, strategies, replicas):
    model = model_on(tf, strategies, replicas)
    x, y = cases.arrays(8)

    def disturb(self, batch, logs=None):
        if batch == 3:
            self.model.train_on_batch(x, y)

    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8))
    model.fit(dataset(tf, 32, 4), verbose=0, callbacks=[adaptive, Recorder(tf, on_train_batch_end=disturb)])
    assert [r.batch_size for r in adaptive.history] == [8] * 4
    assert int(model.optimizer.iterations.numpy()) == 5


def test_plain_fit_is_plain_where_the_call_was_announced_and_never_came(tf, strategies):
    def fail(self, batch, logs=None):
        raise RuntimeError("stop here")

    model = model_on(tf, strategies)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8))
    with pytest.raises(RuntimeError):
        model.fit(dataset(tf, 32, 4), verbose=0, callbacks=[adaptive, Recorder(tf, on_train_batch_begin=fail)])
    model.fit(dataset(tf, 32, 4), verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 8
    assert "make_train_function" not in vars(model)


@pytest.mark.parametrize("replicas", [1, 2])
def test_elements_of_several_sizes_are_counted_and_said(tf, strategies, caplog, replicas):
    """2 examples, then 16 each: planned by the first, then by the largest."""
    x, y = cases.arrays(2 + 16 * 8)
    edges = [0, 2, *range(18, len(x) + 1, 16)]

    def elements():
        for a, b in zip(edges, edges[1:], strict=False):
            yield x[a:b], y[a:b]

    specs = (tf.TensorSpec((None, x.shape[1]), tf.float32), tf.TensorSpec((None,), tf.int32))
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(32))
    data = tf.data.Dataset.from_generator(elements, output_signature=specs)
    adaptive_model = model_on(tf, strategies, replicas)
    adaptive_model.fit(data.repeat(), steps_per_epoch=27, verbose=0, callbacks=[adaptive])
    assert adaptive.history[0].batch_size > 32 and "differ in size" in caplog.text
    assert all(r.batch_size <= 32 for r in adaptive.history[1:])
    assert adaptive.examples_seen == 3 * len(x)


def test_a_gradient_that_comes_late(tf, strategies):
    """Run eagerly, a variable may have no gradient in one micro-step and one in the next."""

    class Sometimes(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.always, self.rarely = tf.keras.layers.Dense(cases.CLASSES), tf.keras.layers.Dense(cases.CLASSES)
            self.calls = 0

        def call(self, inputs, training=False):
            self.calls += bool(training)
            extra = self.rarely(inputs)
            return self.always(inputs) + extra if self.calls % 4 == 3 else self.always(inputs)

    tf.keras.utils.set_random_seed(7)
    model = Sometimes()
    model(np.zeros((1, cases.FEATURES), "float32"))
    model.compile(tf.keras.optimizers.SGD(0.1), cases.cross_entropy(tf.keras), run_eagerly=True)
    before = model.rarely.get_weights()[0]
    model.fit(dataset(tf, 40, 4), verbose=0, callbacks=[sg.AdaptiveBatch(sg.FixedBatch(8))])
    assert np.abs(model.rarely.get_weights()[0] - before).max() > 0


def test_the_callback_can_be_copied(tf, strategies):
    """As tuners do: each copy trains by itself."""
    original = sg.AdaptiveBatch(sg.NoiseScale(target_similarity=0.3, min_batch_size=8, max_batch_size=16))
    for adaptive in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
        model_on(tf, strategies).fit(dataset(tf, 16, 4), verbose=0, callbacks=[adaptive])
        assert len(adaptive.history) >= 1 and not original.history


def test_plain_fit_after_a_finished_one(tf, strategies):
    model = model_on(tf, strategies, 2)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8))
    model.fit(dataset(tf, 24, 4), verbose=0, callbacks=[adaptive])
    updates = int(model.optimizer.iterations.numpy())
    model.fit(dataset(tf, 24, 4), verbose=0)
    assert (updates, int(model.optimizer.iterations.numpy()), len(adaptive.history)) == (3, 9, 3)


def test_a_thousand_changes_trace_once(tf, strategies):
    model = model_on(tf, strategies, 2)
    adaptive = sg.AdaptiveBatch(Cycle((4, 8)))
    model.fit(dataset(tf, 12, 4).repeat(), steps_per_epoch=1500, verbose=0, callbacks=[adaptive])
    changes = sum(a.batch_size != b.batch_size for a, b in zip(adaptive.history, adaptive.history[1:], strict=False))
    assert len(adaptive.history) == 1000 and changes == 999 and adaptive.traces == 1


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads as Linux lists them")
def test_updates_leave_no_threads_behind(tf, strategies):
    """Collectives with a timeout do, on CPU: 12 per update on two replicas."""
    model = model_on(tf, strategies, 2)
    counts = []
    count = Recorder(tf, on_train_batch_end=lambda self, batch, logs=None: counts.append(len(os.listdir("/proc/self/task"))))
    data = dataset(tf, 12, 4).repeat()
    model.fit(data, steps_per_epoch=60, verbose=0, callbacks=[sg.AdaptiveBatch(sg.FixedBatch(4)), count])
    assert counts[-1] - counts[9] < 20


def test_set_batch_size_during_training(tf, strategies, caplog):
    model = model_on(tf, strategies)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8))

    def change(self, batch, logs=None):
        if batch == 3:
            adaptive.set_batch_size(13)

    with caplog.at_level("INFO", "tf_simigrad"):
        model.fit(dataset(tf, 32, 4), verbose=0, callbacks=[adaptive, Recorder(tf, on_train_batch_end=change)])
    assert [r.batch_size for r in adaptive.history] == [8, 8, 12, 4]
    assert "set_batch_size(13): 3 micro-steps, 12 examples" in caplog.text


def test_numpy_arrays_and_a_generator(tf, strategies):
    x, y = cases.arrays(24)

    def batches():
        for start in range(0, 24, 4):
            yield x[start : start + 4], y[start : start + 4]

    models = []
    for source in ({"x": x, "y": y, "batch_size": 4, "shuffle": False}, {"x": batches()}):
        model = model_on(tf, strategies)
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(8))
        model.fit(**source, verbose=0, callbacks=[adaptive])
        assert len(adaptive.history) == 3
        models.append(model)
    cases.assert_same_weights(*models)
