"""Export of a model that several workers have trained."""

import os
from pathlib import Path
from typing import Any

from tf_simigrad.distribute.replicas import Replicas
from tf_simigrad.distribute.workers import Workers


def export(model: Any, directory: str | os.PathLike) -> None:
    """Writes a SavedModel once, however many workers there are: ``model.export`` for them.

    Every worker must take part in an export, as what the replicas keep apart (moving statistics in tf_keras) is averaged while
    it is read: an export by one of them alone waits for ever, and one by all of them to one place writes it several times. Here
    worker 0 writes to ``directory``, the others to a folder that they throw away, and all return when it is written. With one
    process it is ``model.export(directory)``. To be called by all workers.

    Args:
        model: The trained model.
        directory: Where the SavedModel is to be.

    Example:

    ```python
    import os
    import tempfile

    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    directory = os.path.join(tempfile.mkdtemp(), "saved_model")
    sg.export(model, directory)
    loaded = tf.saved_model.load(directory)
    assert loaded.serve(tf.ones((2, 4))).shape == (2, 1)
    ```
    """
    workers = Workers(Replicas(model.distribute_strategy))
    with workers.folder(Path(directory)) as own:
        with workers.waiting("the export"):
            model.export(str(own))
        workers.meet("the end of the export")
