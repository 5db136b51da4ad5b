"""Checkpoints that hold the adaptive state too, so that a killed run goes on as if it had not been."""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tf_simigrad.compat import keras_optimizer, keras_private, random_state
from tf_simigrad.distribute.replicas import Replicas
from tf_simigrad.distribute.workers import Workers
from tf_simigrad.fit.callback import AdaptiveBatch
from tf_simigrad.fit.control_loop import LoopState

_LOG = logging.getLogger("tf_simigrad")
_STATE, _ARRAYS, _WEIGHTS = "adaptive.json", "arrays-{:05d}.npz", "weights"


class EpochCheckpoint(keras_private.keras.callbacks.Callback):
    """Saves model, optimizer, adaptive state, pending gradient sums and VRGD's averages at the end of each epoch.

    A checkpoint is written beside its place and moved there when it is complete, so a kill leaves the last whole one. With a
    dataset whose epoch e depends on its seed and e only, a resumed run takes the same steps as one that was never interrupted.
    That holds for dropout too, but under tf_keras only after ``tf.keras.backend.experimental.enable_tf_random_generator()``,
    without which the state of its random numbers cannot be read; a warning names the layers.

    Several workers need a directory that all of them see: each writes what its own replicas have summed there, worker 0
    everything else.

    Args:
        directory: Where checkpoints live, one folder per epoch.
        adaptive_batch: The callback of the same ``fit``.
        keep: Checkpoints to keep, the newest ones.

    Raises:
        ValueError: If ``adaptive_batch`` is no ``AdaptiveBatch`` or ``keep`` is less than 1.

    Example:

    ```python
    import tempfile

    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    x = np.ones((64, 4), "float32")
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(batch_size=16))
    checkpoint = sg.EpochCheckpoint(tempfile.mkdtemp(), adaptive)
    model.fit(x, x[:, 0], batch_size=8, epochs=3, verbose=0, initial_epoch=checkpoint.restore(model),
              callbacks=[adaptive, checkpoint])
    assert checkpoint.restore(model) == 3
    ```
    """

    def __init__(self, directory: str | os.PathLike, adaptive_batch: AdaptiveBatch, keep: int = 2) -> None:
        super().__init__()
        if not isinstance(adaptive_batch, AdaptiveBatch):
            raise ValueError(f"adaptive_batch={adaptive_batch!r} is no AdaptiveBatch. Pass the callback given to the same fit.")
        if keep < 1:
            raise ValueError(f"keep={keep} must be 1 or more.")
        self._directory = Path(directory)
        self._adaptive = adaptive_batch
        self._keep = keep
        self._workers: Workers | None = None

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Makes sure that the adaptive callback belongs to this ``fit``. Called by Keras."""
        if self._adaptive.model is not self.model:
            raise ValueError("The AdaptiveBatch given to EpochCheckpoint is not among the callbacks of this fit. Pass both.")
        if keras_private.is_built(self.model) and (layers := random_state.forgets_random_state(self.model)):
            _LOG.warning(
                "EpochCheckpoint: a resumed run draws other random numbers in the layers %s: tf_keras does not let them be "
                "saved. Call tf.keras.backend.experimental.enable_tf_random_generator() before the model is built.",
                ", ".join(layers),
            )

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Saves. Called by Keras."""
        workers = self._workers_of(self.model)
        target = self._directory / f"epoch-{epoch + 1:05d}"
        partial = target.with_suffix(".partial")
        if workers.index == 0:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        self._check_shared(workers, partial)
        state, arrays = self._adaptive.state_to_save()
        saved = {"epochs": epoch + 1, "workers": workers.count, "order": _order(self.model), "loop": state.to_json()}
        self._write(workers, partial, saved, arrays)
        workers.meet("the parts of a checkpoint")
        if workers.index == 0:
            shutil.rmtree(target, ignore_errors=True)
            os.replace(partial, target)
            for old in self._saved()[: -self._keep]:
                shutil.rmtree(old)

    def _check_shared(self, workers: Workers, partial: Path) -> None:
        """Raises a ValueError, on every worker, if one does not see the folder that worker 0 has made."""
        workers.meet("the folder of a checkpoint")
        blind = np.flatnonzero(workers.gather([partial.is_dir()], "the folder of a checkpoint")[:, 0] == 0)
        if len(blind):
            raise ValueError(
                f"EpochCheckpoint: {partial}, made by worker 0, is not there on worker {', '.join(map(str, blind))}. Pass a "
                "directory that all workers share."
            )

    def _write(self, workers: Workers, partial: Path, saved: dict, arrays: dict[str, list]) -> None:
        """Every worker reads the weights, as what replicas keep apart is averaged over all; only worker 0 keeps the file."""
        with workers.folder(partial) as own, workers.waiting("saving the weights"):
            self._objects(self.model).write(str(own / _WEIGHTS))
        named = {f"{name}-{i:05d}": array for name, listed in arrays.items() for i, array in enumerate(listed)}
        np.savez(partial / _ARRAYS.format(workers.index), **named)
        if workers.index == 0:
            (partial / _STATE).write_text(json.dumps(saved))

    def restore(self, model: Any) -> int:
        """Restores the newest checkpoint, if there is one. To be called before ``fit``, by all workers.

        Args:
            model: The compiled and built model, under the strategy that it will be trained with.

        Returns:
            The number of epochs that are done: ``initial_epoch`` for ``fit``. 0 if nothing was saved.

        Raises:
            ValueError: If the model is not built, the checkpoint is of another one, or the workers see different checkpoints.
        """
        if not keras_private.is_built(model):
            raise ValueError("restore(model) needs a built model: give it an Input, or call it once on a batch.")
        workers = self._workers_of(model)
        saved = self._saved()
        newest = workers.gather([_epochs(saved[-1]) if saved else 0], "comparing the checkpoints")[:, 0]
        if len(set(newest)) > 1:
            found = ", ".join(f"{epochs:g} epochs on worker {i}" for i, epochs in enumerate(newest))
            raise ValueError(
                f"The workers see different checkpoints in {self._directory}: {found}. They must share one directory."
            )
        if not saved:
            return 0
        with model.distribute_strategy.scope():
            keras_optimizer.build(model.optimizer, model.trainable_variables)
        try:
            self._objects(model).read(str(saved[-1] / _WEIGHTS)).assert_existing_objects_matched()
        except (AssertionError, ValueError) as error:
            raise ValueError(f"The checkpoint {saved[-1]} is of another model or optimizer: {error}") from error
        state = json.loads((saved[-1] / _STATE).read_text())
        arrays = _arrays(saved[-1], state["workers"], workers)
        if "transform" in arrays and state["order"] != _order(model):
            raise ValueError(
                f"The checkpoint {saved[-1]} holds moving averages of VRGD in the order of {state['order']}, this strategy has "
                f"that of {_order(model)}. Resume on the kind of device that it was saved on, a TPU or not."
            )
        self._adaptive.state_to_resume(LoopState.from_json(state["loop"]), arrays)
        return state["epochs"]

    def _workers_of(self, model: Any) -> Workers:
        if self._workers is None:
            self._workers = Workers(Replicas(model.distribute_strategy))
        return self._workers

    def _objects(self, model: Any) -> tf.train.Checkpoint:
        # Of dropout, say: neither Keras has it among what a model saves.
        random = random_state.random_states(model)
        return tf.train.Checkpoint(model=model, optimizer=model.optimizer, random=random)

    def _saved(self) -> list[Path]:
        return sorted(p for p in self._directory.glob("epoch-*") if p.suffix != ".partial")


def _order(model: Any) -> str:
    """After what shards are numbered: a TPU's program has its own numbers for the replicas."""
    return "TPU cores" if Replicas(model.distribute_strategy).is_compiled else "replicas"


def _epochs(checkpoint: Path) -> int:
    """The number in the name of a checkpoint's folder."""
    return int(checkpoint.name.removeprefix("epoch-"))


def _arrays(checkpoint: Path, saved_by: int, workers: Workers) -> dict[str, list]:
    """What this worker saved of its replicas, by name.

    Raises:
        ValueError: If there is something, and another number of workers saved it.
    """
    file = checkpoint / _ARRAYS.format(workers.index)
    found: dict[str, list] = {}
    if file.is_file():
        with np.load(file) as named:
            for name in sorted(named.files):
                found.setdefault(name.split("-")[0], []).append(named[name])
    with np.load(checkpoint / _ARRAYS.format(0)) as of_chief:
        if saved_by != workers.count and of_chief.files:
            raise ValueError(
                f"The checkpoint {checkpoint} holds pending sums or moving averages of {saved_by} workers, this run has "
                f"{workers.count}. Resume with as many."
            )
    return found
