"""What a model gives for every example of a dataset, over the replicas of a strategy."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


def outputs(strategy: Any, step: Callable, dataset: Any) -> Iterator[dict]:
    """Runs a step on every element. To be called by all workers, in cross-replica context; all of them get everything.

    Args:
        strategy: The one that the model was built under.
        step: From what one replica is given of an element to a dictionary of tensors [examples, ...]. Replica context.
        dataset: Its elements are cut among the replicas.

    Yields:
        For each element the dictionary as arrays, in the order of the examples.
    """

    @tf.function
    def gathered(element):
        results = strategy.run(step, (element,))
        return {name: strategy.gather(value, axis=0) for name, value in results.items()}

    for element in strategy.experimental_distribute_dataset(dataset):
        yield {name: value.numpy() for name, value in gathered(element).items()}
