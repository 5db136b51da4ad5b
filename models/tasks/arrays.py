"""Classification of examples that fit into memory as arrays."""

from collections.abc import Callable

import numpy as np

from models.tasks.base import SERVING_EXAMPLES, Data
from models.tasks.classification import Classification


class ArrayData(Data):
    """Arrays of examples and labels.

    Args:
        arrays: ((x_train, y_train), (x_test, y_test)).
        standardise: See ``input_pipeline.epochs_dataset``, or None.
        augment: The same.
    """

    def __init__(self, arrays: tuple, standardise: Callable | None = None, augment: Callable | None = None) -> None:
        self.train, self.test = arrays
        self.standardise, self.augment = standardise, augment
        self.examples, self.validation_examples = len(self.train[0]), len(self.test[0])

    def check_epoch(self, examples_per_epoch):
        if examples_per_epoch:
            raise ValueError(
                f"examples_per_epoch={examples_per_epoch}: this task goes through all of its {self.examples} training examples "
                "in every epoch; set 0"
            )

    def training(self, element, seed, initial_epoch, examples_per_epoch):
        from models import input_pipeline

        return input_pipeline.epochs_dataset(*self.train, element, seed, initial_epoch, self.augment, self.standardise)

    def validation(self, element, examples):
        from models import input_pipeline

        x, y = self.test
        return input_pipeline.evaluation_dataset(x[:examples], y[:examples], element, self.standardise)


class ArrayClassification(Classification):
    """One label of each example of some arrays."""

    def serving_inputs(self, data):
        return {"serving_default": {"images": np.asarray(data.test[0][:SERVING_EXAMPLES])}}
