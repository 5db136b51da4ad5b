"""SavedModels of experiments: named signatures, what a server needs beside them, and what they have to answer."""

import shutil
from pathlib import Path

import numpy as np
import tensorflow as tf

from tools.check_saved_model import CHECK


class Served(tf.Module):
    """What is saved: the model, the functions that are its signatures, and files."""

    def __init__(self, model, functions, assets):
        super().__init__()
        self.model, self.functions = model, functions
        # TensorFlow's own variables, which those of Keras 3 wrap: behind these alone, a session would not restore them.
        self.state = [v if isinstance(v, tf.Variable) else v.value for v in model.variables]
        self.files = [tf.saved_model.Asset(str(path)) for path in assets]


def write(task, model, data, directory, assets=()):
    """Writes a SavedModel, and beside it inputs with the answers that this process gives to them.

    Args:
        task: The task of the model.
        model: A network of the task, outside of any strategy.
        data: Of the task.
        directory: The folder, which is replaced.
        assets: Files that travel with it, to assets/.
    """
    directory = Path(directory)
    shutil.rmtree(directory, ignore_errors=True)
    functions = task.signatures(model)
    served = Served(model, functions, assets)
    tf.saved_model.save(served, str(directory), signatures=functions)
    tried = {}
    for name, inputs in task.serving_inputs(data).items():
        tensors = {key: tf.constant(value) for key, value in inputs.items()}
        tried |= {f"{name}/input/{key}": value for key, value in inputs.items()}
        tried |= {f"{name}/output/{key}": value.numpy() for key, value in functions[name](**tensors).items()}
    (directory / CHECK).parent.mkdir(exist_ok=True)
    np.savez(directory / CHECK, **tried)
