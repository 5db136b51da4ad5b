"""From an experiment to a trained model and its folder of results."""

import json
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from configs.experiment import Experiment
from models.tasks.base import Data
from tf_simigrad.distribute.replicas import Replicas
from tf_simigrad.distribute.workers import Workers
from tf_simigrad.report import history, plot
from tools import building, runs, saved_models
from tools.callbacks import ShowProgress, StopAtUpdate, Validate, WholeEpochCheckpoint, WriteTables
from tools.progress import Progress
from tools.strategies import strategy_name, versions


class Training(NamedTuple):
    """All that `fit` needs.

    Attributes:
        element: Examples of a dataset element, over all replicas.
        validation_examples: How many of those for validation are used, the first ones.
    """

    experiment: Experiment
    strategy: Any
    workers: Workers
    data: Data
    model: Any
    adaptive: Any
    element: int
    steps_per_epoch: int
    validation_examples: int

    @property
    def is_chief(self):
        """Whether this process writes and prints what one process would."""
        return self.workers.index == 0


def build(experiment, strategy, data):
    """Builds model and callback; what cannot work is noticed here, before anything is written or trained."""
    if experiment.deterministic:
        tf.config.experimental.enable_op_determinism()
    tf.keras.utils.set_random_seed(experiment.seed)
    data.check_epoch(experiment.examples_per_epoch)
    examples = experiment.examples_per_epoch or data.examples
    element = experiment.micro_batch_size * strategy.num_replicas_in_sync
    if element > examples:
        raise ValueError(f"micro_batch_size={experiment.micro_batch_size}: {element} on all replicas, of {examples} examples")
    steps_per_epoch = examples // element
    validation_examples = used_for_validation(experiment, data)
    replicas = Replicas(strategy)
    if replicas.is_compiled:
        check_validation(experiment.validation_batch_size, validation_examples, replicas.count)
    with strategy.scope():
        model = building.model(experiment, steps_per_epoch * element)
    adaptive = building.callback(experiment)
    return Training(
        experiment, strategy, Workers(replicas), data, model, adaptive, element, steps_per_epoch, validation_examples
    )


def used_for_validation(experiment, data):
    if experiment.validation_examples > data.validation_examples:
        raise ValueError(
            f"validation_examples={experiment.validation_examples}: there are {data.validation_examples}; 0 takes all"
        )
    return experiment.validation_examples or data.validation_examples


def check_validation(batch_size, examples, replicas):
    """Raises where the elements of the validation data would not all be of one size on every core of a TPU."""
    if batch_size % replicas == 0 and examples % batch_size == 0:
        return
    usable = [size for size in range(replicas, examples + 1, replicas) if examples % size == 0]
    advice = f"such as {min(usable, key=lambda size: abs(size - batch_size))}" if usable else "and there is none"
    raise ValueError(
        f"validation_batch_size={batch_size}: on a TPU expected a multiple of its {replicas} cores that divides the {examples} "
        f"validation examples, {advice}"
    )


def restore(training, output, resume):
    """The checkpoint callback, and how many epochs are done."""
    checkpoint = WholeEpochCheckpoint(output / runs.CHECKPOINTS, training.adaptive)
    return checkpoint, checkpoint.restore(training.model) if resume else 0


def run(training, output, checkpoint, initial_epoch, data_dir=None):
    """Trains, and writes everything that a run leaves behind."""
    experiment, adaptive = training.experiment, training.adaptive
    if training.is_chief:
        print(
            f"{experiment.name}: {training.model.count_params():,} parameters, {training.strategy.num_replicas_in_sync} "
            f"replicas, {training.steps_per_epoch} elements of {training.element} examples an epoch, "
            f"{initial_epoch} epochs done",
            flush=True,
        )
    tables = WriteTables(adaptive, output, initial_epoch)
    if initial_epoch < experiment.epochs:
        fit(training, initial_epoch, callbacks(training, tables, checkpoint, initial_epoch))
    model = host_model(training)
    if training.is_chief:
        runs.write_weights(model, output)
        saved_models.write(experiment.task, model, training.data, output / "saved_model", experiment.task.assets(data_dir))
        write_results(training, output, tables)
    training.workers.meet("the results")


def callbacks(training, tables, checkpoint, initial_epoch):
    """In their order: measures before tables; tables before the checkpoint.

    A run that is killed between these two has a row too many, which resuming drops, and not one too few.
    """
    experiment, adaptive = training.experiment, training.adaptive
    found = [adaptive]
    if experiment.max_updates:
        found.append(StopAtUpdate(adaptive, experiment.max_updates))
    if not experiment.task.keras_validates:
        found.append(Validate(validation(training)))
    if training.is_chief:
        found += [ShowProgress(adaptive, training, initial_epoch), tables]
    return [*found, checkpoint]


def validation(training):
    """What judges the model of a run on the data for validation, as often as it is called."""
    experiment = training.experiment
    judged = experiment.task.judge(training.model, training.strategy)

    def measures():
        with Progress("validating", training.validation_examples, "examples", shown=training.is_chief) as progress:
            return judged(training.data, experiment.validation_batch_size, training.validation_examples, progress.add)

    return measures


def fit(training, initial_epoch, callbacks):
    experiment, data = training.experiment, training.data
    validated = experiment.task.keras_validates
    training.model.fit(
        data.training(training.element, experiment.seed, initial_epoch, training.steps_per_epoch * training.element),
        epochs=experiment.epochs,
        initial_epoch=initial_epoch,
        steps_per_epoch=training.steps_per_epoch,
        validation_data=data.validation(experiment.validation_batch_size, training.validation_examples) if validated else None,
        callbacks=callbacks,
        # Keras 3 warns otherwise: the dataset has its own order.
        shuffle=False,
        # ShowProgress prints.
        verbose=0,
    )


def host_model(training):
    """A copy on this machine, outside of the strategy: it is saved with functions that name no device. On all workers."""
    copy = runs.network(training.experiment.task)
    copy.set_weights(training.model.get_weights())
    return copy


def write_results(training, output, tables):
    experiment, adaptive, epochs = training.experiment, training.adaptive, tables.epochs
    history.write_history(output / "history.csv", adaptive.history)
    history.write_epochs(output / "epochs.csv", epochs)
    target = getattr(experiment.policy, "target_similarity", None)
    headline = experiment.task.headline
    try:
        plot.plot_history(adaptive.history, epochs, output / "training.png", experiment.name, target, headline)
    except ImportError as error:
        print(f"no {output / 'training.png'}: {error}", flush=True)
    row = epochs[-1] if epochs else {}
    last = {name.removeprefix("val_"): value for name, value in row.items() if name.startswith("val_")}
    reached = [row[f"val_{headline}"] for row in epochs if f"val_{headline}" in row]
    best = max if experiment.task.higher_is_better else min
    summary = {
        headline: None,
        **last,
        f"best_{headline}": best(reached, default=None),
        **history.summarise(adaptive.history),
        "updates_off_bounds": off_bounds(adaptive.history, experiment.policy, training.element),
        "discarded_examples": adaptive.discarded_examples,
        "traces": adaptive.traces,
        "vrgd_multiplier": float(np.mean(tables.multipliers)) if tables.multipliers else None,
        "seconds": round(tables.seconds, 2),
        "strategy": strategy_name(training.strategy),
        "workers": training.workers.count,
        "replicas": training.strategy.num_replicas_in_sync,
        **versions(),
    }
    (output / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    shown = (headline, "updates", "mean_batch_size", "max_batch_size", "batch_changes", "traces", "seconds")
    print(
        f"{output}: " + ", ".join(f"{name} {summary[name]:.6g}" for name in shown if summary[name] is not None), flush=True
    )


def off_bounds(records, policy, element):
    """The share of updates whose batch is neither the smallest nor the largest that the bounds allow; None without bounds.

    The last update is left out: it may be a flush of what was pending.
    """
    if not hasattr(policy, "target_similarity") or len(records) < 2:
        return None
    # A batch size is a whole number of elements.
    least, most = -(-policy.min_batch_size // element) * element, policy.max_batch_size // element * element
    return sum(least < record.batch_size < most for record in records[:-1]) / (len(records) - 1)
