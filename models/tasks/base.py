"""What every task can be asked for."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

SERVING_EXAMPLES = 8


class Data(abc.ABC):
    """The examples of a task, found and ready to be read.

    Attributes:
        examples: For training, in one pass.
        validation_examples: For validation.
    """

    examples: int
    validation_examples: int

    @abc.abstractmethod
    def training(self, element: int, seed: int, initial_epoch: int, examples_per_epoch: int) -> Any:
        """Endless epochs; what epoch e holds depends on the arguments and e only.

        Args:
            element: Examples of a dataset element, over all replicas.
            seed: Any integer.
            initial_epoch: The first one to give.
            examples_per_epoch: A multiple of ``element``.

        Returns:
            A ``tf.data.Dataset`` of what the model's ``fit`` takes.
        """

    @abc.abstractmethod
    def validation(self, element: int, examples: int) -> Any:
        """The first so many examples for validation, once, in order; the last element may hold fewer."""

    def check_epoch(self, examples_per_epoch: int) -> None:  # noqa: B027
        """Raises a ValueError where epochs of so many examples cannot be had."""


class Task(abc.ABC):
    """A network, its data, and how both are judged. Subclasses are frozen dataclasses of its settings.

    Attributes:
        only_keras: "tf_keras" where its networks are models of that Keras, else None.
        headline: The measure by which runs are compared.
        higher_is_better: Whether more of it is.
        keras_validates: Whether ``fit`` validates by what the model was compiled with; else ``judge`` does.
        loss_fn: As ``AdaptiveBatch(loss_fn=...)`` takes it, or None for the compiled loss.
    """

    only_keras: ClassVar[str | None] = None
    headline: ClassVar[str]
    higher_is_better: ClassVar[bool] = True
    keras_validates: ClassVar[bool] = True
    loss_fn: ClassVar[Callable | None] = None

    @abc.abstractmethod
    def check_data(self, data_dir: Any) -> None:
        """Raises a ValueError that names what is missing in the folder, before TensorFlow is imported."""

    def data_fingerprint(self, data_dir: Any) -> str | None:
        """What tells prepared data from other data in the same place; None where the data is the same everywhere."""
        return None

    @abc.abstractmethod
    def load(self, data_dir: Any) -> Data:
        """Finds the data in the folder; None: what the task downloads, or has."""

    @abc.abstractmethod
    def build(self) -> Any:
        """The network, not compiled."""

    @abc.abstractmethod
    def compile_arguments(self) -> dict:
        """Loss and metrics, as ``model.compile`` takes them."""

    @abc.abstractmethod
    def element_spec(self, micro_batch_size: int) -> Any:
        """Nested ``tf.TensorSpec`` of what one replica is given in a micro-step."""

    @abc.abstractmethod
    def judge(self, model: Any, strategy: Any) -> Callable[[Data, int, int, Callable], dict[str, float]]:
        """What judges a model, as often as it is asked, with one trace.

        Args:
            model: From ``build``, compiled with ``compile_arguments``.
            strategy: The one that the model was built under.

        Returns:
            judged(data, element, examples, progress) -> measures by name, the headline among them. To be called by all workers
            in cross-replica context, with the data from ``load``, the examples of an element over all replicas, how many of
            those for validation count (the first ones), and a function that is told how many examples each step has done.
        """

    @abc.abstractmethod
    def signatures(self, model: Any) -> dict[str, Any]:
        """The functions of an exported model by name, "serving_default" among them, with their input signatures."""

    @abc.abstractmethod
    def serving_inputs(self, data: Data) -> dict[str, dict]:
        """For each signature inputs to try it with, by name, as arrays."""

    def ceiling(self, data_dir: Any) -> float | None:
        """The headline of the best possible model on all of the data for validation; None where nobody knows it.

        Asked after ``check_data``, and before TensorFlow is imported.
        """
        return None

    def encoder_of(self, model: Any) -> Any:
        """The part of a model that other tasks can start from, or None."""
        return None

    def assets(self, data_dir: Any) -> list:
        """Files that a server needs beside the model."""
        return []
