"""LARS: momentum whose rate is scaled, layer by layer, by the norms of the weights and of the gradient."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_simigrad.compat.optimizer_base import OptimizerBase, VariableStep, serializable
from tf_simigrad.core.trust_ratio import lars_ratio
from tf_simigrad.optimizers import arguments
from tf_simigrad.optimizers.patterns import BIASES_AND_NORMS, Patterns


@serializable
class LARS(OptimizerBase):
    """Layer-wise adaptive rate scaling, for large batches: momentum SGD with a learning rate for each layer.

    A layer is a variable w with the mean gradient g; c is the trust coefficient, d the weight decay:

        ratio = c |w| / (|g| + d |w| + epsilon),  1 where |w| or |g| is 0
        v <- momentum v + learning_rate ratio (g + d w)
        w <- w - v

    With ``nesterov`` the last line is ``w <- w - (momentum v + learning_rate ratio (g + d w))``. An excluded variable has
    d = 0 or ratio = 1. Norms, slots and the step are float32, whatever the dtype of the variables is.

    It is a Keras optimizer of the Keras in use, for plain ``fit`` as for ``AdaptiveBatch``. To load a saved model that was
    compiled with it, name ``sg.LARS`` first: that imports and registers the class.

    Args:
        learning_rate: A number, a ``LearningRateSchedule``, or under Keras 3 a callable. It goes with the trust coefficient: as
            the ratio holds a factor of 0.001, rates are larger than SGD's.
        momentum: At least 0 and below 1.
        weight_decay: d. It passes through the ratio and the momentum; Keras's own decay, outside of them, is off.
        trust_coefficient: c, more than 0.
        epsilon: 0 or more; 0 is the paper's.
        nesterov: Whether the step looks ahead by one momentum.
        trust_ratio_bounds: (low, high), which the ratio is clipped to, the trust coefficient included and also where it is 1
            because of a zero norm; None does not clip, as in the paper.
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
    model.compile(optimizer=sg.LARS(2.0, weight_decay=1e-4), loss="mse")
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    model.fit(x, x.sum(axis=1), batch_size=16, verbose=0)
    ```

    References:
        You, Gitman, Ginsburg: "Large Batch Training of Convolutional Networks", arXiv 1708.03888, algorithm 1. The polynomial
        decay of the rate there is a schedule here.
    """

    slot_names = ("velocity",)

    def __init__(
        self,
        learning_rate: Any,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        epsilon: float = 0.0,
        nesterov: bool = False,
        *,
        trust_ratio_bounds: tuple[float, float] | None = None,
        exclude_from_decay: Sequence[str] = BIASES_AND_NORMS,
        exclude_from_adaptation: Sequence[str] = BIASES_AND_NORMS,
        **kwargs: Any,
    ) -> None:
        owner = type(self).__name__
        super().__init__(arguments.learning_rate(owner, learning_rate), **arguments.of_keras(owner, kwargs))
        self.momentum = arguments.number(owner, "momentum", momentum, below=1.0)
        self.decay = arguments.number(owner, "weight_decay", weight_decay)
        self.trust_coefficient = arguments.number(owner, "trust_coefficient", trust_coefficient, above=True)
        self.epsilon = arguments.number(owner, "epsilon", epsilon)
        self.nesterov = arguments.flag(owner, "nesterov", nesterov)
        self.trust_ratio_bounds = arguments.bounds(owner, "trust_ratio_bounds", trust_ratio_bounds)
        self.not_decayed = Patterns(exclude_from_decay, owner, "exclude_from_decay", BIASES_AND_NORMS)
        self.not_adapted = Patterns(exclude_from_adaptation, owner, "exclude_from_adaptation", BIASES_AND_NORMS)

    def on_build(self, paths: Sequence[str]) -> None:
        """Warns of a pattern that excludes nothing."""
        self.not_decayed.build(paths)
        self.not_adapted.build(paths)

    def step(self, at: VariableStep) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """What to subtract from the weight, and the new velocity."""
        (velocity,) = at.slots
        decay = 0.0 if self.not_decayed.match(at.path) else self.decay
        scaled = at.learning_rate * self._ratio(at, decay) * (at.gradient + decay * at.weight)
        velocity = self.momentum * velocity + scaled
        return self.momentum * velocity + scaled if self.nesterov else velocity, (velocity,)

    def hyperparameters(self) -> dict[str, Any]:
        """The arguments beside the learning rate and Keras's own."""
        return {
            "momentum": self.momentum,
            "weight_decay": self.decay,
            "trust_coefficient": self.trust_coefficient,
            "epsilon": self.epsilon,
            "nesterov": self.nesterov,
            "trust_ratio_bounds": self.trust_ratio_bounds and list(self.trust_ratio_bounds),
            "exclude_from_decay": list(self.not_decayed.patterns),
            "exclude_from_adaptation": list(self.not_adapted.patterns),
        }

    def _ratio(self, at: VariableStep, decay: float) -> tf.Tensor | float:
        if self.not_adapted.match(at.path):
            return 1.0
        return lars_ratio(at.weight, at.gradient, self.trust_coefficient, decay, self.epsilon, self.trust_ratio_bounds)
