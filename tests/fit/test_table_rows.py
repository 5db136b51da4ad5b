"""Gradients of large tables that stay rows: the weights of dense ones, and no tensor of the table's size on the way."""

import json
import shutil

import numpy as np
import pytest

import tf_simigrad as sg
from tests.policies import Cycle
from tf_simigrad.compat.keras_private import KERAS_3
from tf_simigrad.train.update import INPUT_SPECS

ROWS, WIDTH, IDS, CLASSES = 60, 5, 4, 3
MICRO = 4
RATE = 0.05
OPTIMIZERS = {
    "sgd": lambda k: (k.optimizers if KERAS_3 else k.optimizers.legacy).SGD(
        RATE
    ),  # tf_keras's newer one has a slot it needs not
    "clipped": lambda k: k.optimizers.SGD(RATE, momentum=0.9, nesterov=True, global_clipnorm=0.3),
    "adam": lambda k: k.optimizers.Adam(RATE / 10, clipnorm=0.5),
    "adagrad": lambda k: k.optimizers.Adagrad(RATE),
    "lamb": lambda k: sg.LAMB(RATE, weight_decay=0.01),
}


def model_under(tf, strategy, optimizer="sgd", **compile_arguments):
    with strategy.scope():
        keras = tf.keras
        keras.utils.set_random_seed(7)
        layers = keras.layers
        model = keras.Sequential(
            [keras.Input((IDS,), dtype="int32"), layers.Embedding(ROWS, WIDTH, name="table"), layers.Flatten(),
             layers.Dense(CLASSES, name="head")], name="net",
        )  # fmt: skip
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(OPTIMIZERS[optimizer](keras), loss, **compile_arguments)
    return model


def examples(count):
    """A few rows in most examples, others in hardly any."""
    rng = np.random.default_rng(3)
    return (rng.zipf(1.3, size=(count, IDS)) % ROWS).astype("int32"), rng.integers(0, CLASSES, size=count)


def fit(tf, model, adaptive, count=24, **arguments):
    element = MICRO * model.distribute_strategy.num_replicas_in_sync
    data = tf.data.Dataset.from_tensor_slices(examples(count * element)).batch(element, drop_remainder=True)
    return model.fit(data, verbose=0, callbacks=[adaptive], **arguments).history


def policy(replicas, micro_steps=(1, 3, 2)):
    return Cycle(tuple(MICRO * replicas * steps for steps in micro_steps))


def assert_alike(left, right, tolerance):
    for a, b in zip(left.get_weights(), right.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("replicas", "optimizer", "statistic"),
    [(1, "sgd", "two_groups"), *((2, name, "two_groups") for name in OPTIMIZERS if name != "lamb"), (1, "lamb", "two_groups"),
     (1, "sgd", "two_groups_by_variable"), (1, "sgd", "all_pairs")],
)  # fmt: skip
def test_rows_train_as_the_dense_gradient_does(tf, strategies, replicas, optimizer, statistic):
    trained, histories, logs = [], [], []
    for limit in (None, 0):
        model = model_under(tf, strategies(replicas), optimizer)
        adaptive = sg.AdaptiveBatch(policy(replicas), statistic=statistic, dense_table_elements=limit)
        logs.append(fit(tf, model, adaptive))
        trained.append(model)
        histories.append(adaptive.history)
        assert adaptive.traces == 1
    assert_alike(*trained, tolerance=1e-6)
    assert len(histories[0]) == 12
    for dense, by_rows in zip(*histories, strict=True):
        assert by_rows[:3] == dense[:3]
        assert by_rows.similarity == pytest.approx(dense.similarity, abs=2e-6)
        assert (by_rows.noise_scale is None) == (dense.noise_scale is None)
        assert by_rows.noise_scale == (dense.noise_scale and pytest.approx(dense.noise_scale, rel=1e-3))
    assert logs[0].keys() == logs[1].keys()


@pytest.mark.parametrize(
    ("replicas", "groups"),
    [(1, "micro_steps"), (2, "micro_steps"), pytest.param(4, "replicas", marks=pytest.mark.slow)],
)
def test_vrgd_scales_rows_as_the_dense_gradient(tf, strategies, replicas, groups):
    trained, multipliers = [], []
    for limit in (None, 0):
        model = model_under(tf, strategies(replicas))
        adaptive = sg.AdaptiveBatch(
            policy(replicas, (4, 5)), transform=[sg.VRGD(groups=groups), sg.L2(0.01)], dense_table_elements=limit
        )
        multipliers.append(fit(tf, model, adaptive, count=27)["vrgd_multiplier"])
        trained.append(model)
    assert_alike(*trained, tolerance=2e-6)
    assert multipliers[0] == pytest.approx(multipliers[1], rel=1e-5)
    assert multipliers[0][0] < 0.95


def shapes_of(graph):
    """The static shapes of all tensors of a graph and of the functions that it calls, with the kinds of their operations."""
    graphs = [graph, *(function.graph for function in graph._functions.values())]
    for each in graphs:
        for operation in each.get_operations():
            for output in operation.outputs:
                if output.shape.rank is not None:
                    yield operation.type, output.shape


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("limit", [None, 0])
def test_nothing_of_the_size_of_the_table_is_computed(tf, strategies, replicas, limit):
    """In the micro-step and in the update of SGD with VRGD, unless rows are not asked for: then the test must find it."""
    strategy = strategies(replicas)
    model = model_under(tf, strategy)
    adaptive = sg.AdaptiveBatch(policy(replicas, (4,)), transform=sg.VRGD(), dense_table_elements=limit)
    element = (tf.TensorSpec([MICRO, IDS], tf.int32), tf.TensorSpec([MICRO], tf.int64))
    adaptive.check(model)
    parts = adaptive.train_parts(model, element)
    accumulate = tf.function(lambda data: strategy.run(parts.step.accumulate, (data, tf.constant(0))))
    micro_step = accumulate.get_concrete_function(element).graph
    update = (
        tf.function(lambda *inputs: parts.step.update(type(INPUT_SPECS)(*inputs))).get_concrete_function(*INPUT_SPECS).graph
    )
    held = {"ReadVariableOp", "Identity", "VarHandleOp"}  # the table itself
    found = [
        kind for graph in (micro_step, update, parts.step.update_graph()) for kind, shape in shapes_of(graph)
        if shape.num_elements() in (ROWS * WIDTH, -(-ROWS * WIDTH // replicas)) and kind not in held
    ]  # fmt: skip
    assert bool(found) == (limit is None), found
    sizes = [v.shape.num_elements() for v in parts.accumulator.variables]
    assert (ROWS * WIDTH in sizes) == (limit is None)


def test_several_elements_per_call(tf, strategies):
    trained = []
    for together in (1, 5):
        model = model_under(tf, strategies(2), steps_per_execution=together)
        # 30 elements of 8, of which updates take 3.
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(24), dense_table_elements=0)
        fit(tf, model, adaptive, count=30)
        assert len(adaptive.history) == 10
        trained.append(model)
    assert_alike(*trained, tolerance=1e-6)


def test_only_tables_above_the_limit_are_rows(tf, strategies, caplog):
    caplog.set_level("INFO", logger="tf_simigrad")
    for limit, are_rows in ((ROWS * WIDTH, False), (ROWS * WIDTH - 1, True)):
        caplog.clear()
        fit(tf, model_under(tf, strategies(1)), sg.AdaptiveBatch(sg.FixedBatch(8), dense_table_elements=limit), count=4)
        assert ("are kept as rows" in caplog.text) == are_rows
    assert "table/embeddings are kept as rows: more than 299 elements each" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "compile_arguments", "reason"),
    [
        ({"transform": sg.VRGD(ratio_momentum=0.9)}, {}, "VRGD keeps a number for each element; without ratio_momentum"),
        ({}, {"jit_compile": True}, "jit_compile needs shapes that are known beforehand"),
    ],
    ids=["state", "jit"],
)
def test_what_needs_them_dense_makes_them_so_and_says_why(tf, strategies, caplog, arguments, compile_arguments, reason):
    model = model_under(tf, strategies(1), **compile_arguments)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(16), dense_table_elements=0, **arguments)
    fit(tf, model, adaptive, count=8)
    assert "table/embeddings are dense, however few rows are touched" in caplog.text and reason in caplog.text
    assert any(v.shape == (ROWS, WIDTH) for v in adaptive.train_parts(model, None).accumulator.variables)


def test_a_gradient_that_becomes_dense_is_all_of_its_rows(tf, strategies):
    """The same callback on elements of another structure, for which the loss decays the table."""

    def loss_fn(model, data):
        x, y, *more = data
        loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True))
        return loss + (0.01 * tf.reduce_sum(tf.square(model.trainable_variables[0])) if more else 0.0)

    trained = []
    for limit in (None, 0):
        model = model_under(tf, strategies(1))
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(8), loss_fn=loss_fn, dense_table_elements=limit)
        x, y = examples(16)
        for arrays in ((x, y), (x, y, np.ones(16, "float32"))):
            model.fit(tf.data.Dataset.from_tensor_slices(arrays).batch(4), verbose=0, callbacks=[adaptive])
        trained.append(model)
    assert_alike(*trained, tolerance=1e-6)


def test_rows_without_their_shape_are_refused(tf, strategies):
    class Shapeless(sg.Transform):
        def __call__(self, gradients, variables):
            return [tf.IndexedSlices(g.values, g.indices) if isinstance(g, tf.IndexedSlices) else g for g in gradients]

    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8), transform=Shapeless(), dense_table_elements=0)
    with pytest.raises(ValueError, match=r"Shapeless returned gradients of shapes \[None, \[20, 3\]"):
        fit(tf, model_under(tf, strategies(1)), adaptive, count=4)


def test_a_transform_is_given_rows(tf, strategies):
    seen = []

    class Halve(sg.Transform):
        def __call__(self, gradients, variables):
            seen.append(gradients[0])
            return [tf.IndexedSlices(g.values / 2, g.indices, g.dense_shape) if isinstance(g, tf.IndexedSlices) else g / 2
                    for g in gradients]  # fmt: skip

    halved, plain = (model_under(tf, strategies(1)) for _ in range(2))
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(8), transform=Halve(), dense_table_elements=0)
    fit(tf, halved, adaptive, count=8)
    assert isinstance(seen[0], tf.IndexedSlices)
    plain.optimizer.learning_rate = RATE / 2
    fit(tf, plain, sg.AdaptiveBatch(sg.FixedBatch(8), dense_table_elements=None), count=8)
    assert_alike(halved, plain, tolerance=1e-6)


@pytest.mark.parametrize("replicas", [1, 2])
def test_pending_rows_are_saved_and_resumed(tf, strategies, tmp_path, replicas):
    """3 elements an epoch, 2 an update: one micro-step is pending at the end of the first."""

    def run(folder, epochs):
        model = model_under(tf, strategies(replicas), "clipped")
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(2 * MICRO * replicas), transform=[], dense_table_elements=0)
        checkpoint = sg.EpochCheckpoint(folder, adaptive)
        element = MICRO * replicas
        data = tf.data.Dataset.from_tensor_slices(examples(3 * element)).batch(element, drop_remainder=True)
        done = checkpoint.restore(model)
        model.fit(data, epochs=epochs, initial_epoch=done, verbose=0, callbacks=[adaptive, checkpoint])
        return model, adaptive

    straight, expected = run(tmp_path / "straight", 4)
    # What a run of one epoch would flush at its end is pending where it is the first of four.
    run(tmp_path / "broken", 4)
    shutil.rmtree(tmp_path / "broken" / "epoch-00004")
    saved = json.loads((tmp_path / "broken" / "epoch-00003" / "adaptive.json").read_text())
    assert saved["loop"]["pending_steps"] == 1
    resumed, adaptive = run(tmp_path / "broken", 4)
    assert adaptive.history == expected.history
    for a, b in zip(resumed.get_weights(), straight.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("limit", [-1, 1.5, True, "all"])
def test_a_limit_that_is_no_number_of_elements_is_refused(limit):
    with pytest.raises(ValueError, match="dense_table_elements=.* must be a whole number of elements, 0 or more, or None"):
        sg.AdaptiveBatch(sg.FixedBatch(8), dense_table_elements=limit)
