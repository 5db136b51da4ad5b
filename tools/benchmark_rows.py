"""Time per example of fit where an embedding's gradient stays rows, beside the dense gradient, in alternating blocks."""

import numpy as np
import tensorflow as tf

import tf_simigrad as sg
from tools import benchmark_overhead
from tools.building import stateless_sgd

IDS, WIDTH = 4, 16


def measure(strategy, micro_steps, blocks, steps, examples, seed, table_rows):
    """The result of ``benchmark_overhead.side_by_side``: "plain" has the dense gradient."""
    models = {name: make_model(strategy, table_rows) for name in ("plain", "adaptive")}
    limits = {"plain": None, "adaptive": 0}
    callbacks = {
        name: sg.AdaptiveBatch(sg.FixedBatch(micro_steps * examples), learning_rate_rule="none", dense_table_elements=limit)
        for name, limit in limits.items()
    }
    dataset = make_dataset(examples, seed, table_rows)
    found = benchmark_overhead.side_by_side(models, callbacks, dataset, micro_steps, blocks, steps, examples, seed)
    names = {"adaptive_ms_per_example": "rows_ms_per_example", "plain_ms_per_example": "dense_ms_per_example"}
    return {
        **{names.get(name, name): value for name, value in found.items() if name != "plain_ms_per_step"},
        "table_rows": table_rows,
        "table_width": WIDTH,
        "touched_rows": len(np.unique(ids(examples, seed, table_rows))),
    }


def ids(examples, seed, table_rows):
    """Rows of a table, some of them often, as words and goods are: [examples, IDS]."""
    drawn = np.random.default_rng(seed).zipf(1.1, size=(examples, IDS))
    return (drawn % table_rows).astype("int32")


def make_dataset(examples, seed, table_rows):
    labels = np.random.default_rng(seed).integers(2, size=(examples, 1)).astype("float32")
    return tf.data.Dataset.from_tensors((tf.constant(ids(examples, seed, table_rows)), tf.constant(labels))).repeat()


def make_model(strategy, table_rows):
    """A table, and a layer that costs next to nothing beside it; SGD without state."""
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input((IDS,), dtype="int32"), layers.Embedding(table_rows, WIDTH), layers.Flatten(), layers.Dense(1)]
        )
        model.compile(optimizer=stateless_sgd(1e-3), loss=tf.keras.losses.BinaryCrossentropy(from_logits=True))
    return model
