"""The folder of a run: what it was made with, and its weights."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from configs.experiment import Experiment

CONFIG, CHECKPOINTS, WEIGHTS = "config.json", "checkpoints", "weights"
# What the configuration of a run holds beside its experiment.
BESIDE = ("keras", "data_dir", "data", "initial_weights")


class Run(NamedTuple):
    """A run as its folder has it.

    Attributes:
        folder: Where it is.
        experiment: What was trained.
        keras: The Keras that its weights are of, "keras3" or "tf_keras".
        data_dir: Where its data was, or None.
        weights: The newest weights: those at its end, or of its last epoch that was saved.
    """

    folder: Path
    experiment: Experiment
    keras: str
    data_dir: str | None
    weights: Path

    def model(self) -> Any:
        """The network with these weights, in float32, not compiled.

        Raises:
            ValueError: If they are not those of this network, or of the other Keras.
        """
        import tensorflow as tf

        if self.keras != keras_in_use(self.experiment.task):
            raise ValueError(f"{self.folder} was trained under {self.keras}: the other Keras cannot read it; set --keras")
        model = network(self.experiment.task)
        try:
            restored = tf.train.Checkpoint(model=model).read(str(self.weights))
            restored.assert_existing_objects_matched().expect_partial()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise ValueError(f"{self.weights} does not hold the weights of {self.experiment.task}: {error}") from error
        return model


def network(task):
    """A network of the task as it is judged and served: on this machine, in float32, whatever it was trained in."""
    import tensorflow as tf

    tf.keras.mixed_precision.set_global_policy("float32")
    with tf.device("CPU"):
        return task.build()


def keras_in_use(task):
    """The Keras of this process for a task, "keras3" or "tf_keras", as TensorFlow will choose it."""
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    return task.only_keras or ("tf_keras" if legacy else "keras3")


def config_of(experiment, data_dir, initial_weights):
    """What is written to config.json. Paths are for finding things again; what the data is, its fingerprint says."""
    data_path, weights_path = (str(Path(path).resolve()) if path else None for path in (data_dir, initial_weights))
    task = experiment.task
    beside = (keras_in_use(task), data_path, task.data_fingerprint(data_dir), weights_path)
    return {**experiment.as_dict(), **dict(zip(BESIDE, beside, strict=True))}


def recorded(folder, name):
    """What the configuration of the run in a folder holds under a name, or None where there is no run."""
    path = Path(folder) / CONFIG
    return json.loads(path.read_text(encoding="utf-8")).get(name) if path.is_file() else None


def read(folder):
    """Reads a run.

    Raises:
        ValueError: If the folder holds none, or none that has saved weights.
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder} holds no run: {CONFIG} missing; expected a folder that tools.train wrote")
    values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    beside = {name: values.pop(name, None) for name in BESIDE}
    try:
        experiment = Experiment.from_dict(values)
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG}: {error}") from error
    return Run(folder, experiment, beside["keras"], beside["data_dir"], newest_weights(folder))


def checkpoints(folder):
    return [path for path in sorted((folder / CHECKPOINTS).glob("epoch-*")) if path.suffix != ".partial"]


def epochs_done(folder):
    """How many epochs the newest checkpoint of a run has."""
    return max((int(path.name.removeprefix("epoch-")) for path in checkpoints(folder)), default=0)


def newest_weights(folder):
    candidates = [*(path / "weights" for path in checkpoints(folder)), folder / WEIGHTS / "model"]
    found = [path for path in candidates if path.with_name(path.name + ".index").is_file()]
    if not found:
        raise ValueError(f"{folder} holds a run that has saved no weights yet: wait for its first epoch, or train it")
    return found[-1]


def write_weights(model, folder):
    """Writes the weights at the end of a run, of a model outside of any strategy."""
    import tensorflow as tf

    tf.train.Checkpoint(model=model).write(str(folder / WEIGHTS / "model"))
