"""From an experiment to a trained model and its folder of results."""

import contextlib
import io
import json
import platform
import sys
import time
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tf_simigrad as sg
from configs.experiment import Experiment
from models import input_pipeline
from tf_simigrad.distribute.replicas import Replicas
from tf_simigrad.distribute.workers import Workers
from tf_simigrad.report import history, plot
from tools import building

SERVING_EXAMPLES = 32


class Training(NamedTuple):
    """All that `fit` needs; `standardise` and `augment` are None where the task has none."""

    experiment: Experiment
    strategy: Any
    workers: Workers
    data: tuple
    model: Any
    adaptive: Any
    element: int
    steps_per_epoch: int
    standardise: Any
    augment: Any

    @property
    def is_chief(self):
        """Whether this process writes and prints what one process would."""
        return self.workers.index == 0


class StopAtUpdate(tf.keras.callbacks.Callback):
    """Ends training with the update that makes the history this long."""

    def __init__(self, adaptive, max_updates):
        super().__init__()
        self.adaptive, self.max_updates = adaptive, max_updates

    def on_train_batch_end(self, batch, logs=None):
        if len(self.adaptive.history) >= self.max_updates:
            self.model.stop_training = True


class WholeEpochCheckpoint(sg.EpochCheckpoint):
    """Saves no epoch that `StopAtUpdate` cut short: resumed from there, the run would miss the rest of it."""

    def on_epoch_end(self, epoch, logs=None):
        if not self.model.stop_training:
            super().on_epoch_end(epoch, logs)


class WriteTables(tf.keras.callbacks.Callback):
    """Writes both tables at the end of every epoch, so that a killed run leaves them behind; keeps the time.

    The time ends with the last epoch: after that `fit` deletes its iterator, for which TensorFlow may take as long again
    where there are several replicas, up to a minute.
    """

    def __init__(self, adaptive, output, initial_epoch):
        super().__init__()
        self.adaptive, self.output = adaptive, output
        earlier = history.read_epochs(output / "epochs.csv") if initial_epoch else []
        self.epochs = [row for row in earlier if row["epoch"] <= initial_epoch]
        self.started, self.seconds = 0.0, 0.0
        self.multipliers = []

    def on_train_begin(self, logs=None):
        self.started = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        if "vrgd_multiplier" in (logs or {}):
            self.multipliers.append(float(logs["vrgd_multiplier"]))

    def on_epoch_end(self, epoch, logs=None):
        numbers = {name: float(value) for name, value in (logs or {}).items()}
        self.epochs.append({"epoch": epoch + 1, **numbers, "examples_seen": self.adaptive.examples_seen})
        history.write_epochs(self.output / "epochs.csv", self.epochs)
        history.write_history(self.output / "history.csv", self.adaptive.history)
        self.seconds = time.perf_counter() - self.started


def make_strategy(name, devices, tpu="local"):
    """The strategy of that name; on a machine without a GPU, mirrored over as many logical CPU devices."""
    if name == "default":
        return tf.distribute.get_strategy()
    if name == "tpu":
        return tpu_strategy(tpu)
    if name == "multiworker":
        sg.enable_keras3_multi_worker()
        return tf.distribute.MultiWorkerMirroredStrategy()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus and devices is not None and devices > len(gpus):
        raise ValueError(f"--devices {devices}: this machine has {len(gpus)} GPUs")
    if not gpus:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * (devices or 1))
    kind = "GPU" if gpus else "CPU"
    return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(devices or len(gpus) or 1)])


def tpu_strategy(name):
    """Over all cores of the TPU of that name; "local" is the one of this machine."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (tf.errors.OpError, OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"--strategy tpu: no TPU {name} can be used. What a TPU VM needs stands in tools/tpu_vm.md; without a TPU, "
            f"python -m tools.tpu_check compiles for one. TensorFlow says: {reason}"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def load_data(experiment, data_dir):
    return building.TASKS[experiment.task].load(data_dir)


def build(experiment, strategy, data):
    """Builds model and callback; what cannot work is noticed here, before anything is written or trained."""
    if experiment.deterministic:
        tf.config.experimental.enable_op_determinism()
    tf.keras.utils.set_random_seed(experiment.seed)
    examples = len(data[0][0])
    element = experiment.micro_batch_size * strategy.num_replicas_in_sync
    if element > examples:
        raise ValueError(f"micro_batch_size={experiment.micro_batch_size}: {element} on all replicas, of {examples} examples")
    steps_per_epoch = examples // element
    replicas = Replicas(strategy)
    if replicas.is_compiled:
        check_validation(experiment.validation_batch_size, len(data[1][0]), replicas.count)
    with strategy.scope():
        model = building.model(experiment, steps_per_epoch * element)
    adaptive = building.callback(experiment)
    task, workers = building.TASKS[experiment.task], Workers(replicas)
    return Training(
        experiment, strategy, workers, data, model, adaptive, element, steps_per_epoch, task.standardise, task.augment
    )


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
    checkpoint = WholeEpochCheckpoint(output / "checkpoints", training.adaptive)
    return checkpoint, checkpoint.restore(training.model) if resume else 0


def run(training, output, checkpoint, initial_epoch):
    """Trains, and writes everything that a run leaves behind."""
    experiment, adaptive = training.experiment, training.adaptive
    if training.is_chief:
        print(
            f"{experiment.name}: {training.model.count_params():,} parameters, {training.strategy.num_replicas_in_sync} "
            f"replicas, {training.steps_per_epoch} elements of {training.element} examples an epoch, "
            f"{initial_epoch} epochs done",
            flush=True,
        )
    callbacks = [adaptive]
    if experiment.max_updates:
        callbacks.append(StopAtUpdate(adaptive, experiment.max_updates))
    tables = WriteTables(adaptive, output, initial_epoch)
    # Tables before the checkpoint: a run killed between the two has a row too many, which resuming drops, not one too few.
    callbacks += [tables, checkpoint] if training.is_chief else [checkpoint]
    if initial_epoch < experiment.epochs:
        fit(training, initial_epoch, callbacks)
    export(training, output)
    if training.is_chief:
        write_results(training, output, tables)


def fit(training, initial_epoch, callbacks):
    experiment = training.experiment
    (x_train, y_train), (x_test, y_test) = training.data
    train = input_pipeline.epochs_dataset(
        x_train, y_train, training.element, experiment.seed, initial_epoch, training.augment, training.standardise
    )
    validation = input_pipeline.evaluation_dataset(x_test, y_test, experiment.validation_batch_size, training.standardise)
    training.model.fit(
        train,
        epochs=experiment.epochs,
        initial_epoch=initial_epoch,
        steps_per_epoch=training.steps_per_epoch,
        validation_data=validation,
        callbacks=callbacks,
        # Keras 3 warns otherwise: the dataset has its own order.
        shuffle=False,
        # A progress bar on a terminal, a line per epoch elsewhere.
        verbose=0 if not training.is_chief else 1 if sys.stdout.isatty() else 2,
    )


def write_results(training, output, tables):
    experiment, adaptive, epochs = training.experiment, training.adaptive, tables.epochs
    history.write_history(output / "history.csv", adaptive.history)
    history.write_epochs(output / "epochs.csv", epochs)
    target = getattr(experiment.policy, "target_similarity", None)
    try:
        plot.plot_history(adaptive.history, epochs, output / "training.png", experiment.name, target)
    except ImportError as error:
        print(f"no {output / 'training.png'}: {error}", flush=True)
    accuracies = [row["val_accuracy"] for row in epochs if "val_accuracy" in row]
    summary = {
        "accuracy": accuracies[-1] if accuracies else None,
        "best_accuracy": max(accuracies, default=None),
        **history.summarise(adaptive.history),
        "discarded_examples": adaptive.discarded_examples,
        "traces": adaptive.traces,
        # Over the micro-steps of this process, each with the multiplier of the update before it.
        "vrgd_multiplier": float(np.mean(tables.multipliers)) if tables.multipliers else None,
        "seconds": round(tables.seconds, 2),
        "strategy": strategy_name(training.strategy),
        "workers": training.workers.count,
        "replicas": training.strategy.num_replicas_in_sync,
        **versions(),
    }
    (output / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    shown = ("accuracy", "updates", "mean_batch_size", "max_batch_size", "batch_changes", "traces", "seconds")
    print(f"{output}: " + ", ".join(f"{name} {summary[name]:.6g}" for name in shown), flush=True)


def strategy_name(strategy):
    names = {
        tf.distribute.MirroredStrategy: "mirrored",
        tf.distribute.MultiWorkerMirroredStrategy: "multiworker",
        tf.distribute.TPUStrategy: "tpu",
    }
    return names.get(type(strategy), "default")


def versions():
    # tf.keras has no version of its own where it is tf_keras.
    package = tf.keras.Model.__module__.partition(".")[0]
    keras = metadata.version(package)
    found = {"python": platform.python_version(), "tensorflow": tf.__version__, package: keras, "tf_simigrad": sg.__version__}
    return {"keras": "keras3" if keras.startswith("3.") else "tf_keras", "versions": found}


def host_model(training):
    """The model itself, or where a TPU holds it a copy on this machine."""
    if not Replicas(training.strategy).is_compiled:
        return training.model
    with tf.device("CPU"):
        copy = building.TASKS[training.experiment.task].build(training.experiment)
    copy.set_weights(training.model.get_weights())
    return copy


def export(training, output):
    """Writes the SavedModel, and what it has to predict, for tools.check_saved_model. On all workers."""
    # Of a TPU's model the copy: a function that reads variables on the device would name the device.
    model = host_model(training)
    # Both Kerases print the signature.
    with contextlib.redirect_stdout(io.StringIO()):
        sg.export(model, output / "saved_model")
    x_test = training.data[1][0][:SERVING_EXAMPLES]
    inputs = np.asarray(training.standardise(x_test)) if training.standardise else x_test
    # Not by predict, which splits the examples among the workers, nor by a TPU, which computes otherwise than who serves.
    predictions = model(tf.constant(inputs), training=False)
    if training.is_chief:
        np.savez(output / "serving_check.npz", inputs=inputs, predictions=predictions)
