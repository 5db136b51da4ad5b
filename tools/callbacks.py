"""What a run of an experiment does beside training."""

import time

import tensorflow as tf

import tf_simigrad as sg
from tf_simigrad.report import history
from tools.progress import Progress


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


class Validate(tf.keras.callbacks.Callback):
    """Judges the model at the end of every epoch, for the callbacks that come after it, as `fit` itself would.

    Args:
        judged: judged() -> measures by name.
    """

    def __init__(self, judged):
        super().__init__()
        self.judged = judged

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in self.judged().items()})


class ShowProgress(tf.keras.callbacks.Callback):
    """A bar over all epochs, and a line at the end of each.

    Args:
        adaptive: The callback of the same `fit`.
        training: The `tools.experiment.Training`.
        initial_epoch: How many epochs are done.
    """

    def __init__(self, adaptive, training, initial_epoch):
        super().__init__()
        experiment, per_epoch = training.experiment, training.steps_per_epoch * training.element
        self.adaptive, self.element, self.epochs = adaptive, training.element, experiment.epochs
        total = None if experiment.max_updates else experiment.epochs * per_epoch
        self.progress = Progress(experiment.name, total, "examples", done=initial_epoch * per_epoch)

    def on_train_batch_end(self, batch, logs=None):
        loss = (logs or {}).get("loss")
        notes = {} if loss is None else {"loss": f"{float(loss):.4g}"}
        self.progress.add(self.element, batch_size=self.adaptive.batch_size, updates=len(self.adaptive.history), **notes)

    def on_epoch_end(self, epoch, logs=None):
        names = [name for name in logs or {} if name in ("loss", "accuracy") or name.startswith("val_")]
        measures = ", ".join(f"{name} {float(logs[name]):.4g}" for name in names)
        self.progress.say(
            f"epoch {epoch + 1}/{self.epochs}: {measures}, {len(self.adaptive.history)} updates, batch size "
            f"{self.adaptive.batch_size}"
        )

    def on_train_end(self, logs=None):
        self.progress.close()


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
        # Of the micro-steps, each with that of the update before it; None where a part of them was in another process.
        self.multipliers = None if initial_epoch else []

    def on_train_begin(self, logs=None):
        self.started = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        if self.multipliers is not None and "vrgd_multiplier" in (logs or {}):
            self.multipliers.append(float(logs["vrgd_multiplier"]))

    def on_epoch_end(self, epoch, logs=None):
        numbers = {name: float(value) for name, value in (logs or {}).items()}
        self.epochs.append({"epoch": epoch + 1, **numbers, "examples_seen": self.adaptive.examples_seen})
        history.write_epochs(self.output / "epochs.csv", self.epochs)
        history.write_history(self.output / "history.csv", self.adaptive.history)
        self.seconds = time.perf_counter() - self.started
