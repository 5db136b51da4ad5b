"""The processes that train together: how many, which one this is, and meetings at which each says some numbers."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from tf_simigrad.distribute.collectives import CollectiveOps
from tf_simigrad.distribute.replicas import Replicas, static_replica_id
from tf_simigrad.distribute.watch import CollectiveWatch


class Workers:
    """The workers of a strategy; one process without others is worker 0 of 1, and all of this is free.

    To be made by all workers in the same order.

    Args:
        replicas: The replicas of the strategy.

    Attributes:
        count: Number of processes.
        index: Of this one; 0 is the chief, which writes what only one may write.
    """

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self.count = replicas.workers
        self.index = 0
        if self.count == 1:
            return
        self._per_worker = replicas.count // self.count
        self.index = int(tf.function(self._first_replica, autograph=False)()) // self._per_worker
        self._watch = CollectiveWatch()
        self._collectives = CollectiveOps(replicas)
        self._gather = tf.function(self._run_gather, autograph=False)

    def waiting(self, operation: str) -> contextlib.AbstractContextManager:
        """A context in which all workers have to meet: an error after the timeout, instead of a hang.

        Args:
            operation: What is waited for, for the message.
        """
        return contextlib.nullcontext() if self.count == 1 else self._watch.over(operation)

    def gather(self, values: Sequence[float], operation: str) -> np.ndarray:
        """What each worker says. To be called by all workers, on the host.

        Args:
            values: Some numbers, float32, as many on every worker.
            operation: What is waited for, for the message.

        Returns:
            Float32 [workers, values].
        """
        said = np.asarray(values, np.float32)
        if self.count == 1:
            return said[None]
        with self.waiting(operation):
            return self._gather(tf.constant(said)).numpy()

    def meet(self, operation: str) -> None:
        """Waits until all workers have come. To be called by all workers, on the host."""
        self.gather([0.0], operation)

    @contextlib.contextmanager
    def folder(self, shared: Path) -> Iterator[Path]:
        """Where this worker writes what only one may keep: the shared folder on worker 0, one to throw away on the others."""
        if self.index == 0:
            yield shared
            return
        with tempfile.TemporaryDirectory() as thrown_away:
            yield Path(thrown_away)

    def _first_replica(self) -> tf.Tensor:
        return self._replicas.first(self._replicas.run(lambda: tf.constant(static_replica_id())))

    def _run_gather(self, values: tf.Tensor) -> tf.Tensor:
        def said() -> tf.Tensor:
            speaks = 1.0 if static_replica_id() % self._per_worker == 0 else 0.0
            place = tf.one_hot(static_replica_id() // self._per_worker, self.count)[:, None]
            # TensorFlow remembers a key's shape: messages of different lengths need different ones.
            return self._collectives.sum(place * values[None] * speaks, key=values.shape[0])

        return self._replicas.first(self._replicas.run(said))
