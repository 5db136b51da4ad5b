"""Time per example of fit with the callback at a fixed batch size, beside plain fit, in alternating blocks of one process."""

import gc
import os
import sys
import time

import numpy as np
import tensorflow as tf

import tf_simigrad as sg
from tools.progress import Progress

IMAGE = (32, 32, 3)
CLASSES = 10
RESAMPLES = 10_000


class Span(tf.keras.callbacks.Callback):
    """Notes the times at the end of two steps of an epoch: what `fit` does before and after them is not in between.

    The processor time of all threads stands beside the time that passed: other processes disturb it less.
    """

    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = first, last
        self.times = {}

    def on_train_batch_end(self, batch, logs=None):
        if batch in (self.first, self.last):
            # The step is over once its loss can be read.
            float(logs["loss"])
            self.times[batch] = np.array([time.perf_counter(), time.process_time()])

    @property
    def seconds(self):
        return self.times[self.last] - self.times[self.first]


def measure(strategy, micro_steps, blocks, steps, examples, seed):
    dataset = make_dataset(examples, seed)
    models = {name: make_model(strategy) for name in ("plain", "adaptive")}
    # One callback for all blocks: it keeps its traces as long as the model stays the same.
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(micro_steps * examples), learning_rate_rule="none")
    return side_by_side(models, {"plain": None, "adaptive": adaptive}, dataset, micro_steps, blocks, steps, examples, seed)


def side_by_side(models, adaptive, dataset, micro_steps, blocks, steps, examples, seed):
    """Times fit of two models, called "plain" and "adaptive", in blocks whose order is drawn.

    Args:
        models: By name.
        adaptive: The ``AdaptiveBatch`` of each, or None.
        dataset: Endless elements.
        micro_steps: Elements of an update.
        blocks: Of each.
        steps: Elements of a block that are timed.
        examples: Of an element.
        seed: Of the order and the resampling.
    """
    callbacks = {name: [] if callback is None else [callback] for name, callback in adaptive.items()}

    def ms_per_example(name, steps):
        # The first update is not timed, and the timed steps are whole updates: none is counted without its micro-steps.
        span = Span(micro_steps - 1, micro_steps + steps - 1)
        gc.collect()
        models[name].fit(
            dataset, steps_per_epoch=micro_steps + steps, shuffle=False, verbose=0, callbacks=[*callbacks[name], span]
        )
        return 1000 * span.seconds / (steps * examples)

    for name in models:
        say(f"{name}, traced: {examples * ms_per_example(name, micro_steps)[0]:.1f} ms per step")
    times = {name: [] for name in models}
    order = np.random.default_rng(seed)
    with Progress("timed", blocks, "blocks") as progress:
        for _ in range(blocks):
            for name in order.permutation(list(models)):
                times[name].append(ms_per_example(name, steps))
            ratio, cpu_ratio = times["adaptive"][-1] / times["plain"][-1]
            ms = f"{examples * times['plain'][-1][0]:.1f}"
            progress.add(ms_per_step=ms, ratio=f"{ratio:.4f}", cpu_ratio=f"{cpu_ratio:.4f}")
    traces = [callback.traces for callback in adaptive.values() if callback is not None]
    if set(traces) != {1}:
        raise ValueError(f"the callback's functions were traced {max(traces)} times: tracing was timed as well")
    return {
        **summarise(times, seed),
        "plain_ms_per_step": float(np.median([wall for wall, _ in times["plain"]])) * examples,
        "blocks": blocks,
        "steps": steps,
        "micro_steps": micro_steps,
        "examples_per_element": examples,
        "cores": len(os.sched_getaffinity(0)),
    }


def make_dataset(examples, seed):
    """One element of random images from memory, again and again, so that reading takes no time."""
    rng = np.random.default_rng(seed)
    images = tf.constant(rng.normal(size=(examples, *IMAGE)), tf.float32)
    return tf.data.Dataset.from_tensors((images, tf.constant(rng.integers(CLASSES, size=examples)))).repeat()


def make_model(strategy):
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input(IMAGE),
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.Conv2D(64, 3, strides=2, padding="same", activation="relu"),
                layers.Conv2D(64, 3, padding="same", activation="relu"),
                layers.Conv2D(128, 3, strides=2, padding="same", activation="relu"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(CLASSES),
            ]
        )
        model.compile(
            optimizer=tf.keras.optimizers.SGD(1e-3, momentum=0.9),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    return model


def summarise(times, seed):
    """Medians of the paired ratios with their 95 % bootstrap intervals, and the medians of both.

    Args:
        times: For "plain" and "adaptive", milliseconds per example of each block: time that passed and processor time.
        seed: Of the resampling.
    """
    plain, adaptive = np.array(times["plain"]), np.array(times["adaptive"])
    ratios = adaptive / plain
    resampled = np.random.default_rng(seed).choice(ratios, (RESAMPLES, len(ratios)))
    intervals = np.percentile(np.median(resampled, axis=1), [2.5, 97.5], axis=0)
    return {
        "ratio": float(np.median(ratios[:, 0])),
        "ratio_interval": intervals[:, 0].tolist(),
        "adaptive_ms_per_example": float(np.median(adaptive[:, 0])),
        "plain_ms_per_example": float(np.median(plain[:, 0])),
        "cpu_ratio": float(np.median(ratios[:, 1])),
        "cpu_ratio_interval": intervals[:, 1].tolist(),
    }


def say(text):
    print(text, file=sys.stderr, flush=True)
