"""VRGD in ``fit`` against numpy: the five VR optimizers, over replicas and micro-steps; its state; what it refuses."""

import logging

import numpy as np
import pytest

import tf_simigrad as sg
from tests.fit import cases
from tests.vrgd_oracle import Layer

MICRO, UPDATES = 6, 50

OPTIMIZERS = {
    "sgd": (lambda **vrgd: sg.vr_sgd(0.3, **vrgd), 0.3, 0.0),
    "momentum": (lambda **vrgd: sg.vr_momentum(0.05, weight_decay=0.01, **vrgd), 0.05, 0.01),
    "lars": (lambda **vrgd: sg.vr_lars(5.0, weight_decay=0.01, **NO_EXCLUSIONS, **vrgd), 5.0, 0.01),
    "adam": (lambda **vrgd: sg.vr_adam(0.01, weight_decay=0.01, exclude_from_decay=[], **vrgd), 0.01, 0.01),
    "lamb": (lambda **vrgd: sg.vr_lamb(0.02, weight_decay=0.01, **NO_EXCLUSIONS, **vrgd), 0.02, 0.01),
}
NO_EXCLUSIONS = {"exclude_from_decay": [], "exclude_from_adaptation": []}


def within(strategy, make, **arguments):
    """Keras 3's optimizers belong to the strategy in whose scope they are made."""
    with strategy.scope():
        return make(**arguments)


def network(tf, optimizer, strategy):
    with strategy.scope():
        optimizer = optimizer() if callable(optimizer) else optimizer
        tf.keras.utils.set_random_seed(3)
        layers = tf.keras.layers
        model = tf.keras.Sequential([tf.keras.Input((cases.FEATURES,)), layers.Dense(5, activation="tanh"), layers.Dense(3)])
        model.compile(optimizer, cases.cross_entropy(tf.keras))
    return model


def fitted(tf, strategy, pair, micro_steps, updates=UPDATES):
    """Trains on as many elements as the updates need: the weights before, the model, the callback and the logs."""
    optimizer, transform = pair
    replicas = strategy.num_replicas_in_sync
    element = MICRO * replicas
    x, y = cases.arrays(element * micro_steps * updates)
    model = network(tf, optimizer, strategy)
    before = model.get_weights()
    adaptive = sg.AdaptiveBatch(
        sg.FixedBatch(element * micro_steps), transform=transform, learning_rate_rule="none", statistic="all_pairs"
    )
    logs = cases.fit(model, (x, y), batch_size=element, callbacks=[adaptive]).history
    return before, model, adaptive, logs


def in_groups(replicas, micro_steps, groups, updates=UPDATES):
    """[update][group] -> rows: each micro-batch of each replica by itself, or all of a replica together."""
    rows = np.arange(MICRO * replicas * micro_steps * updates).reshape(updates, micro_steps, replicas, MICRO)
    by_replica = rows.swapaxes(1, 2)
    return by_replica.reshape(updates, replicas, -1) if groups == "replicas" else by_replica.reshape(updates, -1, MICRO)


@pytest.fixture(scope="module")
def tape(tf):
    """``tape(weights, x, y)``: the gradients of the mean loss at these weights."""
    twin, loss = network(tf, "sgd", tf.distribute.get_strategy()), cases.cross_entropy(tf.keras)

    @tf.function(reduce_retracing=True)
    def gradients(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, twin(x))
        return tape.gradient(value, twin.trainable_variables)

    def at(weights, x, y):
        twin.set_weights(weights)
        return [g.numpy().astype("float64") for g in gradients(tf.constant(x), tf.constant(y))]

    return at


def by_numpy(tape, name, before, groups, weight_decay, rate, **arguments):
    """The weights after all updates, with gradients of each group from a tape and everything else from numpy."""
    x, y = cases.arrays(groups.size)
    layers = [Layer(w, rate, weight_decay) for w in before]
    for update in groups:
        per_group = [tape([layer.w for layer in layers], x[rows], y[rows]) for rows in update]
        for layer, of_layer in zip(layers, zip(*per_group, strict=True), strict=True):
            getattr(layer, name)(np.array(of_layer), **arguments)
    return [layer.w for layer in layers]


@pytest.mark.parametrize(
    ("replicas", "micro_steps", "groups"),
    [(1, 8, "micro_steps"), (2, 4, "micro_steps"), (4, 2, "micro_steps"), (4, 2, "replicas")],
    ids=str,
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_five_optimizers_against_numpy(tf, strategies, tape, name, replicas, micro_steps, groups):
    make, rate, decay = OPTIMIZERS[name]
    pair = within(strategies(replicas), make, groups=groups)
    before, model, adaptive, logs = fitted(tf, strategies(replicas), pair, micro_steps)
    rows = in_groups(replicas, micro_steps, groups)
    assert len(adaptive.history) == UPDATES and logs["vrgd_groups"][-1] == len(rows[0])
    for got, expected in zip(model.get_weights(), by_numpy(tape, name, before, rows, decay, rate), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("name", ["adam", "lamb"])
def test_the_second_moment_of_the_raw_gradient(tf, strategies, tape, name, replicas):
    make, rate, decay = OPTIMIZERS[name]
    pair = within(strategies(replicas), make, second_moment="raw")
    before, model, *_ = fitted(tf, strategies(replicas), pair, 8 // replicas)
    rows = in_groups(replicas, 8 // replicas, "micro_steps")
    expected = by_numpy(tape, name, before, rows, decay, rate, raw_second=True)
    for got, right, scaled in zip(model.get_weights(), expected, by_numpy(tape, name, before, rows, decay, rate), strict=True):
        np.testing.assert_allclose(got, right, rtol=0, atol=1e-5)
        assert np.abs(right - scaled).max() > 1e-3


def test_half_of_a_pair_is_refused(tf, strategies):
    model = network(tf, sg.vr_adam(0.01, second_moment="raw")[0].__class__(0.01), strategies(1))
    with pytest.raises(ValueError, match="has lost its VRGD"):
        cases.fit(model, cases.arrays(8), batch_size=8)
    with pytest.raises(ValueError, match="second_moment='own' is not known. Pass one of 'scaled', 'raw'"):
        sg.vr_lamb(0.01, second_moment="own")


@pytest.mark.parametrize("name", ["momentum", "lamb"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_gamma_1_is_the_base_optimizer(tf, strategies, name, replicas):
    make, *_ = OPTIMIZERS[name]
    steps = 8 // replicas
    _, model, _, logs = fitted(tf, strategies(replicas), within(strategies(replicas), make, gamma=1.0), steps, updates=10)
    optimizer, transform = within(strategies(replicas), make)
    rest = transform[1:] if isinstance(transform, list) else None
    _, base, _, _ = fitted(tf, strategies(replicas), (optimizer, rest), steps, updates=10)
    cases.assert_same_weights(model, base)
    assert logs["vrgd_multiplier"] == pytest.approx([1.0])


@pytest.mark.parametrize("replicas", [1, 4])
def test_identical_gradients_give_the_base_optimizer(tf, strategies, replicas):
    x, y = (np.tile(a, (40 * 8, *[1] * (a.ndim - 1))) for a in cases.arrays(MICRO))
    weights = []
    for transform in (sg.VRGD(), None):
        model = network(tf, lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9), strategies(replicas))
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(8 * MICRO), transform=transform)
        cases.fit(model, (x, y), batch_size=MICRO * replicas, callbacks=[adaptive])
        weights.append(model)
    cases.assert_same_weights(*weights)


def test_rows_of_an_embedding_that_nobody_touched_do_not_drag_the_others(tf, strategies):
    """A vocabulary ten times as large: the same steps of the rows in use."""
    rng = np.random.default_rng(5)
    tokens, y = rng.integers(0, 11, size=(320, 4)).astype("int32"), rng.integers(0, 3, size=320).astype("int32")
    found = []
    for vocabulary in (11, 110):
        layers = tf.keras.layers
        table = np.random.default_rng(1).normal(size=(110, 5)).astype("float32")[:vocabulary]
        tf.keras.utils.set_random_seed(0)
        model = tf.keras.Sequential([tf.keras.Input((4,), dtype="int32"), layers.Embedding(vocabulary, 5), layers.Flatten(),
                                     layers.Dense(3)])  # fmt: skip
        model.set_weights([table, *(w * 0 + 0.1 for w in model.get_weights()[1:])])
        model.compile(tf.keras.optimizers.SGD(0.5), cases.cross_entropy(tf.keras))
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(64), transform=sg.VRGD())
        cases.fit(model, (tokens, y), batch_size=8, callbacks=[adaptive])
        found.append(model.get_weights())
    np.testing.assert_allclose(found[1][0][:11], found[0][0], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(found[1][0][11:], table[11:])


def test_all_zero_gradients_leave_the_weights_alone(tf, strategies):
    x, y = cases.arrays(64)
    model = network(tf, lambda: tf.keras.optimizers.SGD(0.1), strategies(2))
    adaptive = sg.AdaptiveBatch(
        sg.FixedBatch(32), transform=sg.VRGD(ratio_momentum=0.9), loss_fn=lambda m, d: 0.0 * tf.reduce_sum(m(d[0]))
    )
    before = model.get_weights()
    cases.fit(model, (x, y), batch_size=8, callbacks=[adaptive])
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_skipped_update_leaves_the_averages_alone(tf, strategies):
    """Infinite inputs in the second update of three: the third is the second of a run without it."""
    averages = []
    for skipped in (False, True):
        x, y = cases.arrays(3 * 32)
        if skipped:
            x[40] = np.inf
        else:
            x, y = np.delete(x, slice(32, 64), axis=0), np.delete(y, slice(32, 64))
        model = network(tf, lambda: tf.keras.optimizers.SGD(0.1), strategies(2))
        vrgd = sg.VRGD(ratio_momentum=0.9)
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(32), transform=vrgd)
        cases.fit(model, (x, y), batch_size=8, callbacks=[adaptive])
        assert adaptive.skipped_updates == skipped
        averages.append([np.array(strategies(2).experimental_local_results(v)) for v in vrgd.variables])
    assert averages[0][-1].tolist() == [2.0, 2.0]
    for a, b in zip(*averages, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_the_averages_are_in_the_checkpoint(tf, strategies, tmp_path):
    """Two epochs and two more, against four: the same bits."""
    finals = []
    for parts in ((4,), (2, 4)):
        folder = tmp_path / str(len(parts))
        for epochs in parts:
            optimizer, vrgd = within(strategies(2), sg.vr_adam, learning_rate=0.01)
            model = network(tf, optimizer, strategies(2))
            adaptive = sg.AdaptiveBatch(sg.FixedBatch(32), transform=vrgd)
            checkpoint = sg.EpochCheckpoint(folder, adaptive)
            done = checkpoint.restore(model)
            both = [adaptive, checkpoint]
            cases.fit(model, cases.arrays(80), batch_size=8, epochs=epochs, initial_epoch=done, callbacks=both)
        finals.append(model)
    cases.assert_same_weights(*finals, tolerance=0)
    other = sg.AdaptiveBatch(sg.FixedBatch(32))
    model = network(tf, lambda: sg.vr_adam(0.01)[0], strategies(2))
    sg.EpochCheckpoint(tmp_path / "1", other).restore(model)
    with pytest.raises(ValueError, match="moving averages of VRGD were saved with shapes"):
        cases.fit(model, cases.arrays(80), batch_size=8, epochs=9, initial_epoch=4, callbacks=[other])


def test_a_short_update_is_left_unscaled(tf, strategies):
    """Two micro-steps are left for the last update, where the ratio of two groups would only cut the rate."""
    x, y = cases.arrays(4 * MICRO + 2 * MICRO)
    model, plain = (network(tf, tf.keras.optimizers.SGD(0.1), strategies(1)) for _ in range(2))
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(4 * MICRO), transform=sg.VRGD(), learning_rate_rule="none")
    weights = []

    class Weights(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            weights.append(model.get_weights())

    logs = cases.fit(model, (x, y), batch_size=MICRO, callbacks=[adaptive, Weights()]).history
    plain.set_weights(weights[3])
    plain.train_on_batch(x[4 * MICRO :], y[4 * MICRO :])
    cases.assert_same_weights(model, plain)
    assert (logs["vrgd_groups"], logs["vrgd_multiplier"]) == ([2.0], [1.0])


def test_the_minimum_is_raised_to_four_groups(tf, strategies, caplog):
    policy = sg.SimiGrad(0.2, min_batch_size=8, max_batch_size=256)
    model = network(tf, "sgd", strategies(2))
    adaptive = sg.AdaptiveBatch(policy, transform=sg.VRGD())
    with caplog.at_level(logging.WARNING, "tf_simigrad"):
        cases.fit(model, cases.arrays(160), batch_size=8, callbacks=[adaptive])
    assert min(r.micro_steps for r in adaptive.history) == 2
    messages = " ".join(r.getMessage() for r in caplog.records)
    assert "2 micro-steps or more (VRGD compares 4 groups of gradients or more)" in messages
    assert "VRGD compares 4 groups of gradients in an update; with fewer than 8" in messages


@pytest.mark.parametrize(("replicas", "policy", "groups", "message"), [
    (2, sg.FixedBatch(32), "replicas", r"groups='replicas'\) needs 4 replicas or more"),
    (1, sg.FixedBatch(16), "micro_steps", "has 2 micro-steps of 8, and 4 are needed, because VRGD compares 4 groups"),
    (1, sg.SimiGrad(0.2, 8, 24), "micro_steps", "max_batch_size=24 is too small.*because VRGD compares 4 groups"),
])  # fmt: skip
def test_too_few_groups_are_refused(tf, strategies, replicas, policy, groups, message):
    model = network(tf, "sgd", strategies(replicas))
    with pytest.raises(ValueError, match=message):
        adaptive = sg.AdaptiveBatch(policy, transform=sg.VRGD(groups=groups))
        cases.fit(model, cases.arrays(64), batch_size=8, callbacks=[adaptive])


@pytest.mark.one_keras
@pytest.mark.parametrize(("arguments", "message"), [
    ({"gamma": 0.0}, "gamma=0.0 must be above 0 and at most 1"),
    ({"gamma": True}, "gamma=True"),
    ({"gamma": 0.5, "upper": 0.4}, "upper=0.4 must be a finite number, gamma=0.5 or more"),
    ({"ratio_momentum": 1.0}, "ratio_momentum=1.0 must be 0 or more and below 1"),
    ({"groups": "layers"}, "groups='layers' is not known. Pass one of 'micro_steps', 'replicas'"),
])  # fmt: skip
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        sg.VRGD(**arguments)


@pytest.mark.one_keras
def test_vrgd_comes_first_and_once():
    for transforms in ([sg.L2(0.1), sg.VRGD()], [sg.VRGD(), sg.VRGD()]):
        with pytest.raises(ValueError, match="VRGD must be the first transform"):
            sg.AdaptiveBatch(sg.FixedBatch(8), transform=transforms)


@pytest.mark.parametrize("replicas", [1, 2])
def test_statistics_of_each_variable(tf, strategies, replicas):
    """Against the two groups' gradients of each variable."""
    x, y = cases.arrays(24)
    model = network(tf, lambda: tf.keras.optimizers.SGD(0.0), strategies(replicas))
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(24), statistic="two_groups_by_variable", transform=sg.VRGD())
    logs = cases.fit(model, (x, y), batch_size=6, callbacks=[adaptive]).history
    rows = np.arange(24).reshape(4, 6)
    halves = (rows[::2], rows[1::2]) if replicas == 1 else (rows[:, :3], rows[:, 3:])
    loss, gradients = cases.cross_entropy(tf.keras), []
    for half in halves:
        with tf.GradientTape() as tape:
            value = loss(y[half.ravel()], model(x[half.ravel()]))
        gradients.append(tape.gradient(value, model.trainable_variables))
    from tf_simigrad.compat.keras_private import variable_path

    for variable, a, b in zip(model.trainable_variables, *gradients, strict=True):
        a, b = np.ravel(a), np.ravel(b)
        path = variable_path(variable)
        cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        assert logs[f"similarity/{path}"] == pytest.approx([cosine], abs=1e-5)
        scale = 6 * np.sum((a - b) ** 2) / (a @ b)
        expected = [scale if scale > 0 else np.nan]
        assert logs[f"noise_scale/{path}"] == pytest.approx(expected, rel=1e-3, nan_ok=True)
        assert 0.1 <= logs[f"vrgd_multiplier/{path}"][0] <= 1.0


def test_several_elements_per_call_take_the_same_steps(tf, strategies):
    models = []
    for per_call in (1, 4):
        with strategies(2).scope():
            model = network(tf, "sgd", strategies(2))
            optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
            model.compile(optimizer, cases.cross_entropy(tf.keras), steps_per_execution=per_call)
        vrgd = sg.VRGD(ratio_momentum=0.9)
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(16), transform=vrgd, statistic="two_groups_by_variable")
        cases.fit(model, cases.arrays(96), batch_size=8, callbacks=[adaptive])
        models.append(model)
    cases.assert_same_weights(*models)
