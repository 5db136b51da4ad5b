"""A clock on what blocks until all workers have come: an error after the timeout instead of a hang."""

import contextlib
import threading
from collections.abc import Iterator

from tf_simigrad.compat import tf_private

DEFAULT_TIMEOUT_SECONDS = 600.0


class CollectiveWatch:
    """Ends the collectives of this process with an error where they have waited for longer than the timeout.

    TensorFlow's own timeout of a collective is no choice: on CPU each one leaves threads that sleep until it is over.

    Args:
        timeout_seconds: How long one operation may wait for the other workers; None: ``DEFAULT_TIMEOUT_SECONDS``.
    """

    def __init__(self, timeout_seconds: float | None = None) -> None:
        self._timeout = DEFAULT_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds

    @contextlib.contextmanager
    def over(self, operation: str) -> Iterator[None]:
        """Watches the operation while the context is open.

        Args:
            operation: What is waited for, for the message.
        """
        message = (
            f"tf_simigrad: {operation} has waited {self._timeout:g} s for the other workers. One of them has ended, hangs, or "
            "runs another number of steps: look at its output."
        )
        timer = threading.Timer(self._timeout, tf_private.abort_collectives, args=(message,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
