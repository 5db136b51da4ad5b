"""What a model gives for every example of a dataset, over the replicas of a strategy."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


class Outputs:
    """Runs a step on the elements of datasets; it is traced once. To be called by all workers, who all get everything.

    Args:
        strategy: The one that the model was built under.
        step: From what one replica is given of an element to a dictionary of tensors [examples, ...]. Replica context.
    """

    def __init__(self, strategy: Any, step: Callable) -> None:
        @tf.function
        def gathered(element):
            results = strategy.run(step, (element,))
            return {name: strategy.gather(value, axis=0) for name, value in results.items()}

        self._strategy, self._gathered = strategy, gathered

    def __call__(self, dataset: Any) -> Iterator[dict]:
        """The outputs for each element as arrays, in the order of the examples. Cross-replica context.

        Args:
            dataset: Its elements are cut among the replicas.
        """
        for element in self._strategy.experimental_distribute_dataset(dataset):
            yield {name: value.numpy() for name, value in self._gathered(element).items()}
