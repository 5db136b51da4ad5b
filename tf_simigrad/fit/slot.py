"""The place of ``model.train_function``: taken while a ``fit`` with the callback runs, given back afterwards."""

from collections.abc import Callable
from typing import Any

from tf_simigrad.compat import keras_private


class TrainFunctionSlot:
    """Puts a function in the place of Keras's train function, and sees to it that only the right ``fit`` calls it.

    Keras does not call ``on_train_end`` after an exception, and a callback may call ``train_on_batch`` in the middle of a
    ``fit``. So each call must have been announced by ``arm`` since Keras last asked for a train function; any other call
    finds Keras's own.

    Args:
        model: The model that ``fit`` was called on.
        call: ``call(iterator, first_step) -> logs``.
    """

    def __init__(self, model: Any, call: Callable[[Any, int], Any]) -> None:
        self._model = model
        self._call = call
        self._armed_step: int | None = None
        current = model.train_function
        self._previous = None if hasattr(current, "adaptive_batch_slot") else current
        self._function = self._made()
        keras_private.watch_make_train_function(model, self._disarm)
        model.train_function = self._function

    @property
    def is_taken(self) -> bool:
        """Whether the model's train function is this slot's."""
        return self._model.train_function is self._function

    def arm(self, step: int) -> None:
        """Announces one call, which starts at that step of the epoch; takes the place back if somebody else took it."""
        self._armed_step = step
        self._model.train_function = self._function

    def release(self) -> None:
        """Gives the place back to what stood there before."""
        keras_private.unwatch_make_train_function(self._model)
        if self.is_taken:
            self._model.train_function = self._previous

    def _disarm(self) -> None:
        self._armed_step = None

    def _made(self) -> Callable:
        def train_function(iterator: Any) -> Any:
            if self._armed_step is None:
                self.release()
                return keras_private.restored_train_function(self._model)(iterator)
            step, self._armed_step = self._armed_step, None
            return self._call(iterator, step)

        train_function.adaptive_batch_slot = self  # type: ignore[attr-defined]
        return train_function
