"""LAMB: Adam whose step is scaled, layer by layer, to the norm of the weights."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_simigrad.compat.optimizer_base import VariableStep, serializable
from tf_simigrad.core.trust_ratio import lamb_ratio
from tf_simigrad.optimizers import arguments
from tf_simigrad.optimizers.adam import Adam
from tf_simigrad.optimizers.patterns import BIASES_AND_NORMS, Patterns


@serializable
class LAMB(Adam):
    """Layer-wise adaptive moments, for large batches: Adam's step, in each layer as long as the weights are.

    A layer is a variable w with the mean gradient g; d is the weight decay, t counts steps from 1:

        m <- beta_1 m + (1 - beta_1) g,    v <- beta_2 v + (1 - beta_2) g^2
        r = m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon)
        ratio = |w| / |r + d w|,  1 where either norm is 0
        w <- w - learning_rate ratio (r + d w)

    An excluded variable has d = 0 or ratio = 1. Norms, slots and the step are float32, whatever the dtype of the variables
    is. ``tf.keras.optimizers.Lamb`` keeps the decay outside of the ratio and differs as soon as there is any.

    It is a Keras optimizer of the Keras in use, for plain ``fit`` as for ``AdaptiveBatch``. To load a saved model that was
    compiled with it, name ``sg.LAMB`` first: that imports and registers the class.

    Args:
        learning_rate: A number, a ``LearningRateSchedule``, or under Keras 3 a callable.
        beta_1: At least 0 and below 1.
        beta_2: At least 0 and below 1.
        epsilon: More than 0.
        weight_decay: d, 0 or more. It lies inside of the ratio; Keras's own decay, outside of it, is off.
        trust_ratio_bounds: (low, high), which the ratio is clipped to, also where it is 1 because of a zero norm; None does
            not clip. The paper's phi clips the norm of the weights, before the division.
        exclude_from_decay: Regular expressions; a variable does not decay if one of them is found anywhere in its path. A path
            ends in ``"dense/kernel"``. By default biases and the parameters of normalisations: the last component of the path
            is bias, beta, gamma or scale.
        exclude_from_adaptation: The same for variables whose ratio is 1, without bounds.
        **kwargs: Keras's: ``name``, ``clipnorm``, ``clipvalue``, ``global_clipnorm``, ``use_ema``, ``ema_momentum``,
            ``ema_overwrite_frequency``; under tf_keras ``jit_compile``, under Keras 3 ``loss_scale_factor`` and
            ``gradient_accumulation_steps``.

    Raises:
        ValueError: If an argument is unknown or out of its range, or patterns are not a list of regular expressions.

    Example:

    ```python
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer=sg.LAMB(2e-3, weight_decay=0.01, exclude_from_adaptation=["bias$"]), loss="mse")
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    model.fit(x, x.sum(axis=1), batch_size=16, verbose=0)
    ```

    References:
        You et al.: "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", arXiv 1904.00962, algorithm 2,
        with the identity for phi. The paper adapts every layer and does not speak of a norm of 0.
    """

    def __init__(
        self,
        learning_rate: Any,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        trust_ratio_bounds: tuple[float, float] | None = None,
        exclude_from_decay: Sequence[str] = BIASES_AND_NORMS,
        exclude_from_adaptation: Sequence[str] = BIASES_AND_NORMS,
        **kwargs: Any,
    ) -> None:
        owner = type(self).__name__
        super().__init__(learning_rate, beta_1, beta_2, epsilon, weight_decay, exclude_from_decay=exclude_from_decay, **kwargs)
        self.trust_ratio_bounds = arguments.bounds(owner, "trust_ratio_bounds", trust_ratio_bounds)
        self.not_adapted = Patterns(exclude_from_adaptation, owner, "exclude_from_adaptation", BIASES_AND_NORMS)

    def on_build(self, paths: Sequence[str]) -> None:
        """Warns of a pattern that excludes nothing."""
        super().on_build(paths)
        self.not_adapted.build(paths)

    def step(self, at: VariableStep) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """What to subtract from the weight, and the new moments."""
        direction, moments = self.direction(at)
        return at.learning_rate * self._ratio(at, direction) * direction, moments

    def hyperparameters(self) -> dict[str, Any]:
        """The arguments beside the learning rate and Keras's own."""
        return {
            **super().hyperparameters(),
            "trust_ratio_bounds": self.trust_ratio_bounds and list(self.trust_ratio_bounds),
            "exclude_from_adaptation": list(self.not_adapted.patterns),
        }

    def _ratio(self, at: VariableStep, direction: tf.Tensor) -> tf.Tensor | float:
        return 1.0 if self.not_adapted.match(at.path) else lamb_ratio(at.weight, direction, self.trust_ratio_bounds)
