"""Checkpoints that hold the adaptive state too, so that a killed run goes on as if it had not been."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tf_simigrad.compat import keras_optimizer, keras_private, tf_private
from tf_simigrad.fit.callback import AdaptiveBatch
from tf_simigrad.fit.control_loop import LoopState

_STATE, _PENDING, _WEIGHTS = "adaptive.json", "pending.npz", "weights"


class EpochCheckpoint(keras_private.keras.callbacks.Callback):
    """Saves model, optimizer, adaptive state and pending gradient sums at the end of each epoch.

    A checkpoint is written beside its place and moved there when it is complete, so a kill leaves the last whole one. With a
    dataset whose epoch e depends on its seed and e only, a resumed run takes the same steps as one that was never interrupted.

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

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Makes sure that the adaptive callback belongs to this ``fit``. Called by Keras."""
        if tf_private.is_multi_worker(self.model.distribute_strategy):
            raise ValueError("EpochCheckpoint does not support several workers in this version. Use BackupAndRestore.")
        if self._adaptive.model is not self.model:
            raise ValueError("The AdaptiveBatch given to EpochCheckpoint is not among the callbacks of this fit. Pass both.")

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Saves. Called by Keras."""
        target = self._directory / f"epoch-{epoch + 1:05d}"
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        self._objects(self.model).write(str(partial / _WEIGHTS))
        state, arrays = self._adaptive.state_to_save()
        np.savez(partial / _PENDING, *arrays)
        saved = {"epochs": epoch + 1, "loop": state.to_json()}
        (partial / _STATE).write_text(json.dumps(saved))
        shutil.rmtree(target, ignore_errors=True)
        os.replace(partial, target)
        for old in self._saved()[: -self._keep]:
            shutil.rmtree(old)

    def restore(self, model: Any) -> int:
        """Restores the newest checkpoint, if there is one. To be called before ``fit``.

        Args:
            model: The compiled and built model, under the strategy that it will be trained with.

        Returns:
            The number of epochs that are done: ``initial_epoch`` for ``fit``. 0 if nothing was saved.

        Raises:
            ValueError: If the model is not built, or the checkpoint is of another one.
        """
        if not keras_private.is_built(model):
            raise ValueError("restore(model) needs a built model: give it an Input, or call it once on a batch.")
        saved = self._saved()
        if not saved:
            return 0
        with model.distribute_strategy.scope():
            keras_optimizer.build(model.optimizer, model.trainable_variables)
        try:
            self._objects(model).read(str(saved[-1] / _WEIGHTS)).assert_existing_objects_matched()
        except (AssertionError, ValueError) as error:
            raise ValueError(f"The checkpoint {saved[-1]} is of another model or optimizer: {error}") from error
        state = json.loads((saved[-1] / _STATE).read_text())
        with np.load(saved[-1] / _PENDING) as pending:
            arrays = [pending[name] for name in pending.files]
        self._adaptive.state_to_resume(LoopState.from_json(state["loop"]), arrays)
        return state["epochs"]

    def _objects(self, model: Any) -> tf.train.Checkpoint:
        return tf.train.Checkpoint(model=model, optimizer=model.optimizer)

    def _saved(self) -> list[Path]:
        return sorted(p for p in self._directory.glob("epoch-*") if p.suffix != ".partial")
