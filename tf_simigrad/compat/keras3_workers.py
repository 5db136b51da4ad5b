"""Repairs Keras 3's ``fit`` and ``evaluate`` under MultiWorkerMirroredStrategy (keras#20585), on explicit request."""

import importlib
import json
import os
from typing import Any

import tensorflow as tf

from tf_simigrad.compat import tf_private
from tf_simigrad.compat.keras_private import KERAS_3

_enabled = False


def is_needed(strategy: tf.distribute.Strategy) -> bool:
    """Whether Keras's own loop would fail under this strategy, as it stands."""
    return KERAS_3 and not _enabled and tf_private.is_multi_worker(strategy)


def is_needed_by_environment() -> bool:
    """Whether TF_CONFIG makes this process one of several workers, for which Keras's own loop would fail as it stands.

    ``fit`` fails before it asks any callback, so this is the last moment to say what to do.
    """
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {})
    except (json.JSONDecodeError, AttributeError):
        return False  # TensorFlow says what is wrong with it
    workers = len(cluster.get("worker", ())) + len(cluster.get("chief", ()))
    return KERAS_3 and not _enabled and workers > 1


def enable_keras3_multi_worker() -> None:
    """Lets Keras 3 train under ``tf.distribute.MultiWorkerMirroredStrategy``. To be called once, before ``fit``.

    Keras 3 as released fails there, with or without this package: it adds up a batch that is spread over replicas to build the
    model, and averages results over a dimension that they do not have. This replaces the two functions in Keras for the rest of
    the process; other strategies keep their behaviour. Does nothing under tf_keras, which needs no repair.

    Example:

    ```python
    sg.enable_keras3_multi_worker()
    ```

    References:
        https://github.com/keras-team/keras/issues/20585
    """
    global _enabled
    if not KERAS_3 or _enabled:
        return
    trainer: Any = importlib.import_module("keras.src.backend.tensorflow.trainer")
    own_build, own_reduce = trainer.TensorFlowTrainer._maybe_symbolic_build, trainer.reduce_per_replica

    def build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self._distribute_strategy
        if iterator is None or strategy is None or not tf_private.is_multi_worker(strategy):
            own_build(self, iterator=iterator, data_batch=data_batch)
            return
        for _, _, elements in iterator:
            element = next(elements)
            break
        local = tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], element)
        with strategy.scope():
            self._symbolic_build(data_batch=local)

    def reduce(values: Any, strategy: tf.distribute.Strategy, reduction: str) -> Any:
        if reduction == "concat" or not tf_private.is_multi_worker(strategy):
            return own_reduce(values, strategy, reduction)
        how = "SUM" if reduction == "sum" else "MEAN"
        return tf.nest.map_structure(lambda v: strategy.reduce(how, v, axis=None), values)

    trainer.TensorFlowTrainer._maybe_symbolic_build = build
    trainer.reduce_per_replica = reduce
    _enabled = True
