"""What the workers and replicas of one training must agree about, and what they must not share."""

import logging

import numpy as np

from tf_simigrad.distribute.workers import Workers

_LOG = logging.getLogger("tf_simigrad")


def check_micro_steps(micro_steps: np.ndarray) -> None:
    """Raises a RuntimeError, on every worker, if the workers of an update have not planned or accumulated alike.

    Args:
        micro_steps: Micro-steps of each worker [workers].
    """
    values, counts = np.unique(micro_steps, return_counts=True)
    if len(values) == 1:
        return
    usual = values[np.argmax(counts)]
    odd = [f"worker {i} has {int(k)}" for i, k in enumerate(micro_steps) if k != usual or counts.max() == 1]
    others = "" if counts.max() == 1 else f", the others {int(usual)}"
    raise RuntimeError(
        f"The workers disagree about the micro-steps of an update: {', '.join(odd)}{others}. All workers must run the same "
        "policy, bounds and callbacks on elements of the same size; set_batch_size must be called alike on all of them."
    )


def check_fit(workers: Workers, steps: int | None, epochs: int, steps_per_execution: int, is_infinite: bool) -> None:
    """Raises a ValueError, on every worker, if their ``fit`` would part ways: one would wait for the others for ever.

    Where every worker's data is finite, TensorFlow lets all go on until the last has none: then an epoch may end anywhere.
    Where one believes to know how many steps an epoch has, or has endless data, all must.

    Args:
        workers: Those that train together.
        steps: Dataset elements of an epoch as Keras knows them on this worker, or None.
        epochs: Epochs planned.
        steps_per_execution: Dataset elements per call of the train function.
        is_infinite: Whether this worker's data never ends.
    """
    said = [0 if steps is None else steps, epochs, steps_per_execution, float(is_infinite)]
    table = workers.gather(said, "comparing what fit was called with")
    names = ("steps per epoch (0: unknown)", "epochs", "steps_per_execution", "endless data (1: yes)")
    differing = [
        f"{name}: {', '.join(f'{value:g} on worker {i}' for i, value in enumerate(column))}"
        for name, column in zip(names, table.T, strict=True)
        if len(set(column)) > 1
    ]
    if differing:
        raise ValueError(
            f"The workers would not take the same steps; {'; '.join(differing)}. Give all of them equally many elements: "
            "dataset.repeat() and the same steps_per_epoch on each, or shards of equal length, or a dataset of the whole data "
            "that fit shards by itself (AutoShardPolicy.DATA)."
        )


class SharedData:
    """Recognises replicas that are given the same data in update after update, and names them, once.

    Their gradients are equal: the similarity says nothing about noise, and each example counts several times. The cores of a
    TPU are named by the numbers that XLA gives them.

    Args:
        updates: In so many of them, in a row, the data must have been the same.
    """

    def __init__(self, updates: int = 5) -> None:
        self._left = updates
        self._sharing: np.ndarray | None = None

    def observe(self, fingerprints: np.ndarray) -> None:
        """Takes the fingerprints of one update [replicas]; 0 and NaN tell nothing."""
        if self._left == 0:
            return
        prints = np.asarray(fingerprints)
        same = (prints[:, None] == prints[None]) & (prints != 0)
        self._sharing = same if self._sharing is None else self._sharing & same
        self._left -= 1
        if self._left == 0:
            sets = {tuple(np.flatnonzero(row)) for row in self._sharing if row.sum() > 1}
            for replicas in sorted(sets):
                _LOG.warning(
                    "The replicas %s read identical data: their gradients are equal, so that the similarity says nothing "
                    "about noise and the batch has fewer examples than it counts. Shard the dataset: leave its auto-shard "
                    "policy on, or give each worker a part of its own (dataset.shard).",
                    ", ".join(map(str, replicas)),
                )
