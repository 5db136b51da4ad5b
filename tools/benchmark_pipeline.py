"""Whether the data keeps up: examples per second of the training pipeline and of the training step, each alone, and of both.

In one process, in blocks that take turns in random order, so that other load hits them alike:

pipeline: the dataset that `fit` is given, iterated and nothing else.
step: `fit` with the callback on one element of it, repeated from memory.
fit: `fit` with the callback on the dataset itself.

Blocks that end before a pipeline has used up its first buffer of records to shuffle (`models.record_pipeline`) do not see that
buffer being filled again: they have to be longer than that to be exact.
"""

import dataclasses
import gc
import os
import sys
import time
from typing import NamedTuple

import numpy as np
import tensorflow as tf

import tf_simigrad as sg
from tools import experiment as runner
from tools.progress import Progress

KINDS = ("pipeline", "step", "fit")
RESAMPLES = 10_000
# Of a block, before it is timed: as a share of the seconds that are. Prefetching and parallel maps get going meanwhile.
WARM_UP = 0.5
# More than any block takes: it is the time that ends a block. tf_keras does not take an endless dataset without a number.
STEPS = 10**9


@dataclasses.dataclass(frozen=True)
class Staying(sg.Policy):
    """A policy's first plan for good: its bounds, and whether it needs the similarity, are those of that policy."""

    min_batch_size: int
    max_batch_size: int
    initial_batch_size: int | None
    needs_similarity: bool

    def next_state(self, state, report):
        return state


class Rate(NamedTuple):
    """Of a block: examples per second, and the processor time of all threads for one example in seconds."""

    examples_per_second: float
    cpu_seconds: float

    @property
    def cores_busy(self):
        return self.examples_per_second * self.cpu_seconds


class Window:
    """The part of a block that is timed.

    Args:
        warm_up: Seconds from the first examples on that are not.
        seconds: Length, at least.
    """

    def __init__(self, warm_up, seconds):
        self.warm_up, self.seconds = warm_up, seconds
        self.first, self.start, self.end = None, None, None

    def is_over(self, examples):
        """To be asked whenever there are more examples: ``examples`` so far."""
        now = np.array([time.perf_counter(), time.process_time(), examples])
        self.first = now if self.first is None else self.first
        if self.start is not None:
            self.end = now
            return now[0] - self.start[0] >= self.seconds
        if now[0] - self.first[0] >= self.warm_up:
            self.start = now
        return False

    @property
    def rate(self):
        seconds, cpu_seconds, examples = self.end - self.start
        return Rate(examples / seconds, cpu_seconds / examples)


class StopWithUpdate(tf.keras.callbacks.Callback):
    """Ends `fit` with the update that ends the window. An update waits for what it has measured, and so for its micro-steps."""

    def __init__(self, adaptive, window):
        super().__init__()
        self.adaptive, self.window = adaptive, window
        self.seen = adaptive.examples_seen

    def on_train_batch_end(self, batch, logs=None):
        if self.adaptive.examples_seen != self.seen:
            self.seen = self.adaptive.examples_seen
            self.model.stop_training |= self.window.is_over(self.seen)


def measure(strategy, experiment, data, blocks, seconds):
    """Times all three, and says on the standard error stream what that means.

    Args:
        strategy: Of the training.
        experiment: The training; its batch stays at its first size.
        data: What its task has loaded.
        blocks: Of each kind.
        seconds: Timed in a block; its warm-up takes half as long.

    Returns:
        What the command prints.
    """
    training = runner.build(standing_still(experiment), strategy, data)
    block = make_block(training)
    for kind in KINDS:
        say(f"{kind}, the first time: {number(block(kind, Window(0, 0)).examples_per_second)} examples/s")
    traces = training.adaptive.traces
    rates = take_turns(block, blocks, seconds, experiment.seed)
    if training.adaptive.traces != traces:
        raise ValueError(f"the callback's functions were traced {training.adaptive.traces} times: tracing was timed as well")
    update = training.adaptive.history[-1]
    found = {
        **summarise(rates, experiment.seed),
        "config": experiment.name,
        "blocks": blocks,
        "seconds": seconds,
        "examples_per_element": training.element,
        "batch_size": update.batch_size,
        "micro_steps": update.micro_steps,
        "cores": len(os.sched_getaffinity(0)),
    }
    say(described(found))
    return found


def make_block(training):
    """``block(kind, window)``: the `Rate` of a block."""
    dataset = training_data(training)
    cached = tf.data.Dataset.from_tensors(next(iter(dataset))).repeat()

    def block(kind, window):
        # A dataset works in the background as long as one of its iterators lives, and `fit` may leave its own to the garbage
        # collector. Each block has a new iterator, which ends with it: what it has prefetched is thrown away, and no other
        # block is disturbed by its filling up. What a new one has to do first, the warm-up covers.
        gc.collect()
        if kind == "pipeline":
            return read(dataset, training.element, window)
        return fit(training, dataset if kind == "fit" else cached, window)

    return block


def take_turns(block, blocks, seconds, seed):
    """By kind the `Rate` of each block; a round of one block of each, in random order, after the other."""
    rates, order = {kind: [] for kind in KINDS}, np.random.default_rng(seed)
    with Progress("timed", blocks, "rounds") as progress:
        for _ in range(blocks):
            for kind in order.permutation(KINDS):
                rates[kind].append(block(kind, Window(WARM_UP * seconds, seconds)))
            progress.add(**{kind: number(rates[kind][-1].examples_per_second) for kind in KINDS})
    return rates


def standing_still(experiment):
    """The experiment with a batch that keeps its size, and weights that keep their values: no gradient gets out of hand."""
    policy = experiment.policy
    fields = {field.name: getattr(policy, field.name) for field in dataclasses.fields(Staying)}
    return dataclasses.replace(experiment, policy=Staying(**fields), learning_rate=0.0)


def training_data(training):
    examples = training.steps_per_epoch * training.element
    return training.data.training(training.element, training.experiment.seed, 0, examples)


def read(dataset, element, window):
    """A block of the pipeline."""
    for number, _ in enumerate(dataset, start=1):
        if window.is_over(number * element):
            return window.rate
    raise ValueError("the training data ended within a block: expected endless epochs")


def fit(training, dataset, window):
    """A block of `fit`: of whole updates."""
    training.model.fit(
        dataset, steps_per_epoch=STEPS, shuffle=False, verbose=0,
        callbacks=[training.adaptive, StopWithUpdate(training.adaptive, window)],
    )  # fmt: skip
    return window.rate


def summarise(rates, seed):
    """Medians over the blocks with their 90 % bootstrap intervals; ratios are those of blocks of the same round.

    Args:
        rates: By kind the `Rate` of each block.
        seed: Of the resampling.
    """
    pipeline, step, both = (np.array([rate.examples_per_second for rate in rates[kind]]) for kind in KINDS)
    values = {
        "ratio": pipeline / step,
        **{f"{kind}_examples_per_second": of for kind, of in zip(KINDS, (pipeline, step, both), strict=True)},
        "fit_over_slower": both / np.minimum(pipeline, step),
        "fit_over_in_turn": both * (1 / pipeline + 1 / step),
        "pipeline_cores_busy": np.array([rate.cores_busy for rate in rates["pipeline"]]),
        "cores_per_1000_examples_per_second": np.array([1000 * rate.cpu_seconds for rate in rates["pipeline"]]),
    }
    found = {}
    for name, of_blocks in values.items():
        found[name] = float(np.median(of_blocks))
        found[f"{name}_interval"] = interval_of_median(of_blocks, seed)
    return {**found, "bottleneck": bottleneck(found["ratio_interval"])}


def interval_of_median(values, seed):
    resampled = np.random.default_rng(seed).choice(values, (RESAMPLES, len(values)))
    return np.percentile(np.median(resampled, axis=1), [5, 95]).tolist()


def bottleneck(interval):
    """The slower one; "neither" where the interval of the ratio holds 1."""
    low, high = interval
    return "pipeline" if high < 1 else "step" if low > 1 else "neither"


def described(found):
    """The result in words, with 90 % intervals in brackets."""

    def shown(name):
        low, high = map(number, found[f"{name}_interval"])
        return f"{number(found[name])} ({low} to {high})"

    cores, most = found["cores"], number(found["pipeline_examples_per_second"])
    return "\n".join([
        f"the pipeline gives {shown('pipeline_examples_per_second')} examples/s and keeps {shown('pipeline_cores_busy')} of "
        f"{cores} cores busy; 1,000 examples/s take {shown('cores_per_1000_examples_per_second')} of them",
        f"the step takes {shown('step_examples_per_second')} examples/s, in updates of {found['batch_size']:,} examples",
        f"ratio of pipeline to step {shown('ratio')}; the bottleneck: {found['bottleneck']}",
        f"a step of up to {most} examples/s that leaves them alone is fed by these {cores} cores",
        f"fit does both at {shown('fit_examples_per_second')} examples/s: {shown('fit_over_slower')} of the slower one, "
        f"{shown('fit_over_in_turn')} of one after the other, which is what sharing the cores allows",
    ])  # fmt: skip


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def say(text):
    print(text, file=sys.stderr, flush=True)
