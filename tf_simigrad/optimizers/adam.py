"""Adam in the form of its paper, with decoupled weight decay: what LAMB scales."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_simigrad.compat.optimizer_base import OptimizerBase, VariableStep, serializable
from tf_simigrad.optimizers import arguments
from tf_simigrad.optimizers.patterns import BIASES_AND_NORMS, Patterns


def moving_average(average: tf.Tensor, value: tf.Tensor, beta: float) -> tf.Tensor:
    """``beta average + (1 - beta) value``."""
    return beta * average + (1.0 - beta) * value


def without_bias(average: tf.Tensor, beta: float, number: tf.Tensor) -> tf.Tensor:
    """A moving average that began at 0, over the sum of its weights, ``1 - beta^number``.

    That sum is ``-expm1(number log(beta))``, as ``1 - beta^number`` would cancel: in float32, at beta = 0.999 and the first
    step, to a relative error of 5e-5.

    Args:
        average: Float32, any shape.
        beta: In [0, 1).
        number: How many values have been averaged, from 1; float32 scalar.
    """
    log_beta = math.log(beta) if beta > 0.0 else -math.inf
    return average / -tf.math.expm1(number * log_beta)


@serializable
class Adam(OptimizerBase):
    """Adam with decoupled weight decay, epsilon outside of the bias correction. Not public: it is what LAMB builds on.

        m <- beta_1 m + (1 - beta_1) g,    v <- beta_2 v + (1 - beta_2) g^2
        u = m_hat / (sqrt(v_hat) + epsilon)
        w <- w - learning_rate (u + weight_decay w)

    with ``m_hat = m / (1 - beta_1^t)`` and ``v_hat = v / (1 - beta_2^t)``. Keras's Adam divides by ``sqrt(v) +
    epsilon`` before the correction, which makes its epsilon larger in the first steps.

    Args:
        learning_rate: A number, a ``LearningRateSchedule``, or under Keras 3 a callable.
        beta_1: At least 0 and below 1.
        beta_2: At least 0 and below 1.
        epsilon: More than 0.
        weight_decay: 0 or more; multiplied by the learning rate.
        exclude_from_decay: Regular expressions; a variable does not decay if one of them is found anywhere in its path.
        **kwargs: Keras's, as ``LAMB`` has them.

    Raises:
        ValueError: If an argument is unknown or out of its range, or patterns are not a list of regular expressions.

    References:
        Kingma and Ba, arXiv 1412.6980, algorithm 1; Loshchilov and Hutter, arXiv 1711.05101, algorithm 2.
    """

    slot_names = ("first_moment", "second_moment")

    def __init__(
        self,
        learning_rate: Any,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        exclude_from_decay: Sequence[str] = BIASES_AND_NORMS,
        **kwargs: Any,
    ) -> None:
        owner = type(self).__name__
        super().__init__(arguments.learning_rate(owner, learning_rate), **arguments.of_keras(owner, kwargs))
        self.beta_1 = arguments.number(owner, "beta_1", beta_1, below=1.0)
        self.beta_2 = arguments.number(owner, "beta_2", beta_2, below=1.0)
        self.epsilon = arguments.number(owner, "epsilon", epsilon, above=True)
        self.decay = arguments.number(owner, "weight_decay", weight_decay)
        self.not_decayed = Patterns(exclude_from_decay, owner, "exclude_from_decay", BIASES_AND_NORMS)

    def on_build(self, paths: Sequence[str]) -> None:
        """Warns of a pattern that excludes nothing."""
        self.not_decayed.build(paths)

    def step(self, at: VariableStep) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """What to subtract from the weight, and the new moments."""
        direction, moments = self.direction(at)
        return at.learning_rate * direction, moments

    def direction(self, at: VariableStep) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """The step before the learning rate, decay included, and the new moments."""
        first = moving_average(at.slots[0], at.gradient, self.beta_1)
        second = moving_average(at.slots[1], tf.square(self.gradient_to_square(at)), self.beta_2)
        mean = without_bias(first, self.beta_1, at.number)
        mean_square = without_bias(second, self.beta_2, at.number)
        decay = 0.0 if self.not_decayed.match(at.path) else self.decay
        return mean / (tf.sqrt(mean_square) + self.epsilon) + decay * at.weight, (first, second)

    def gradient_to_square(self, at: VariableStep) -> tf.Tensor:
        """The gradient that the second moment is of: that of the step."""
        return at.gradient

    def hyperparameters(self) -> dict[str, Any]:
        """The arguments beside the learning rate and Keras's own."""
        return {
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "weight_decay": self.decay,
            "exclude_from_decay": list(self.not_decayed.patterns),
        }
