"""Transforms of the reduced gradient, before the optimizer."""

import abc
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_simigrad.compat import keras_private
from tf_simigrad.core import trees
from tf_simigrad.optimizers.patterns import Patterns


class Transform(abc.ABC):
    """Changes the mean gradient after the reduction and outside the statistic, once per update.

    Example:

    ```python
    class Halve(sg.Transform):
        def __call__(self, gradients, variables):
            return [None if g is None else g / 2 for g in gradients]

    adaptive = sg.AdaptiveBatch(sg.FixedBatch(batch_size=256), transform=Halve())
    ```
    """

    def build(self, variables: Sequence[Any]) -> None:  # noqa: B027 (most transforms have nothing to build)
        """Called once, before training, in the strategy's scope, with the trainable variables."""

    @abc.abstractmethod
    def __call__(self, gradients: Sequence[tf.Tensor | None], variables: Sequence[Any]) -> Sequence[tf.Tensor | None]:
        """Transforms one update's gradients. Replica context, the same on every replica.

        Args:
            gradients: Mean gradients over all examples of the update, float32, unscaled; None where a variable has none; a
                ``tf.IndexedSlices`` of distinct indices for a large table (``AdaptiveBatch(dense_table_elements=...)``).
            variables: The trainable variables, in the same order.

        Returns:
            As many gradients, of the same shapes: an ``IndexedSlices`` with its ``dense_shape``.
        """


class L2(Transform):
    """Coupled weight decay: adds ``weight * w`` to the gradient, as PyTorch's ``weight_decay`` does in SGD.

    Momentum and clipping act on it, the similarity does not see it. A ``kernel_regularizer`` would: it adds the same vector to
    both groups and inflates their cosine. Keras's own ``weight_decay`` is decoupled, and with momentum 0.9 ten times weaker.
    All rows of a table decay, so that the gradient of a large one becomes dense here: exclude it where that is too much.

    Args:
        weight: Factor of the weights, 0 or more; the penalty is ``weight / 2 * |w|^2``.
        exclude: Regular expressions; a variable is left out if one of them is found anywhere in its path. A path ends in
            ``"dense/kernel"``; Keras 3 puts the names of the enclosing models before it, so do not anchor patterns with ``^``.

    Raises:
        ValueError: If the weight is negative or not finite, or ``exclude`` is not a sequence of valid patterns.

    Example:

    ```python
    decay = sg.L2(5e-4, exclude=["bias", "gamma", "beta"])
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(batch_size=256), transform=decay)
    ```

    References:
        Loshchilov and Hutter, arXiv 1711.05101, algorithm 1 (the variant they call L2 regularisation).
    """

    def __init__(self, weight: float, exclude: Sequence[str] = ()) -> None:
        if not isinstance(weight, (int, float)) or isinstance(weight, bool) or not math.isfinite(weight) or weight < 0:
            raise ValueError(f"L2: weight={weight!r} must be a finite number, 0 or more, such as 5e-4.")
        self._excluded = Patterns(exclude, "L2", "exclude")
        self.weight = float(weight)
        self.exclude = self._excluded.patterns

    def build(self, variables: Sequence[Any]) -> None:
        """Warns of a pattern that excludes nothing."""
        self._excluded.build([keras_private.variable_path(v) for v in variables])

    def __call__(self, gradients: Sequence[tf.Tensor | None], variables: Sequence[Any]) -> Sequence[tf.Tensor | None]:
        """Adds ``weight * w``; a variable without a gradient is left without one."""
        return [
            g if g is None or self._is_excluded(v) else trees.dense(g) + self.weight * trees.dense(v)
            for g, v in zip(gradients, variables, strict=True)
        ]

    def _is_excluded(self, variable: Any) -> bool:
        return self._excluded.match(keras_private.variable_path(variable))
