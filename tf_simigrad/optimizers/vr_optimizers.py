"""The VR optimizers of the VRGD paper, each as an optimizer and the transform that makes it one."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_simigrad.compat.keras_private import keras
from tf_simigrad.compat.optimizer_base import VariableStep, serializable
from tf_simigrad.optimizers.adam import Adam
from tf_simigrad.optimizers.lamb import LAMB
from tf_simigrad.optimizers.lars import LARS
from tf_simigrad.optimizers.transforms import L2, Transform
from tf_simigrad.optimizers.vrgd import VRGD

RATIO_MOMENTUM = 0.9

Pair = tuple[Any, VRGD | list[VRGD | Transform]]


class _SquaresRawGradients(Adam):
    """The second moment is that of the mean gradient as it was before VRGD."""

    vrgd: VRGD | None = None

    def gradient_to_square(self, at: VariableStep) -> tf.Tensor:
        """The gradient before VRGD, which that has kept.

        Raises:
            ValueError: If the optimizer was loaded by itself: it is one half of a pair.
        """
        if self.vrgd is None:
            raise ValueError(
                f"{type(self).__name__} has lost its VRGD, without which it does not know the gradient to square. "
                "Make both anew (vr_adam or vr_lamb, second_moment='raw'), compile with the optimizer, and load the weights."
            )
        return self.vrgd.raw_gradient(at.place)


@serializable
class RawAdam(_SquaresRawGradients):
    """Of ``vr_adam(second_moment="raw")``."""


@serializable
class RawLAMB(_SquaresRawGradients, LAMB):
    """Of ``vr_lamb(second_moment="raw")``."""


def vr_sgd(learning_rate: Any, gamma: float = 0.1, upper: float = 1.0, groups: str = "micro_steps") -> Pair:
    """VR-SGD: ``w <- w - learning_rate r g``.

    Args:
        learning_rate: A number or a ``LearningRateSchedule``.
        gamma: Of ``VRGD``.
        upper: Of ``VRGD``.
        groups: Of ``VRGD``.

    Returns:
        The optimizer for ``compile``, and the transform for ``AdaptiveBatch``.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    ```python
    optimizer, transform = sg.vr_sgd(0.1)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(batch_size=4096), transform=transform)
    ```

    References:
        Jiang et al., arXiv 2309.13681, eq. 10.
    """
    return keras.optimizers.SGD(learning_rate), VRGD(gamma, upper, 0.0, groups)


def vr_momentum(
    learning_rate: Any,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    gamma: float = 0.1,
    upper: float = 1.0,
    groups: str = "micro_steps",
) -> Pair:
    """VR-Momentum: momentum SGD on ``r g + weight_decay w``.

    Args:
        learning_rate: A number or a ``LearningRateSchedule``.
        momentum: Of SGD.
        weight_decay: Coupled, on every variable; ``L2`` with patterns in its place leaves some out.
        gamma: Of ``VRGD``.
        upper: Of ``VRGD``.
        groups: Of ``VRGD``.

    Returns:
        The optimizer for ``compile``, and the transform (a list, where there is a decay) for ``AdaptiveBatch``.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    ```python
    optimizer, transform = sg.vr_momentum(0.1, weight_decay=5e-4)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(batch_size=4096), transform=transform)
    ```

    References:
        Jiang et al., arXiv 2309.13681, section 4.
    """
    vrgd = VRGD(gamma, upper, 0.0, groups)
    return keras.optimizers.SGD(learning_rate, momentum=momentum), [vrgd, L2(weight_decay)] if weight_decay else vrgd


def vr_lars(learning_rate: Any, gamma: float = 0.1, upper: float = 1.0, groups: str = "micro_steps", **lars: Any) -> Pair:
    """VR-LARS: ``LARS`` on ``r g``.

    Args:
        learning_rate: A number or a ``LearningRateSchedule``.
        gamma: Of ``VRGD``.
        upper: Of ``VRGD``.
        groups: Of ``VRGD``.
        **lars: Further arguments of ``LARS``.

    Returns:
        The optimizer for ``compile``, and the transform for ``AdaptiveBatch``.

    Raises:
        ValueError: If an argument is unknown or out of its range.

    Example:

    ```python
    optimizer, transform = sg.vr_lars(2.0, weight_decay=1e-4)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(batch_size=4096), transform=transform)
    ```

    References:
        Jiang et al., arXiv 2309.13681, section 4.
    """
    return LARS(learning_rate, **lars), VRGD(gamma, upper, 0.0, groups)


def vr_adam(
    learning_rate: Any,
    gamma: float = 0.1,
    upper: float = 1.0,
    groups: str = "micro_steps",
    second_moment: str = "scaled",
    **adam: Any,
) -> Pair:
    """VR-Adam: Adam on ``p g``, with p the moving average of r (momentum 0.9, bias-corrected).

    Args:
        learning_rate: A number or a ``LearningRateSchedule``.
        gamma: Of ``VRGD``.
        upper: Of ``VRGD``.
        groups: Of ``VRGD``.
        second_moment: "scaled": of ``p g``, as published, by which a steady p cancels. "raw": of g, so that p shortens the
            step; half as many bytes again travel per update, and one more gradient is kept in memory.
        **adam: ``beta_1``, ``beta_2``, ``epsilon`` (1e-8), ``weight_decay`` (decoupled), ``exclude_from_decay``, and
            Keras's own.

    Returns:
        The optimizer for ``compile``, and the transform for ``AdaptiveBatch``.

    Raises:
        ValueError: If an argument is unknown or out of its range.

    Example:

    ```python
    optimizer, transform = sg.vr_adam(1e-3)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(batch_size=4096), transform=transform)
    ```

    References:
        Jiang et al., arXiv 2309.13681, section 4.
    """
    kind = {"scaled": Adam, "raw": RawAdam}
    return _with_momentum(kind, second_moment, learning_rate, adam, VRGD(gamma, upper, RATIO_MOMENTUM, groups))


def vr_lamb(
    learning_rate: Any,
    gamma: float = 0.1,
    upper: float = 1.0,
    groups: str = "micro_steps",
    second_moment: str = "scaled",
    **lamb: Any,
) -> Pair:
    """VR-LAMB: ``LAMB`` on ``p g``, with p the moving average of r (momentum 0.9, bias-corrected).

    Args:
        learning_rate: A number or a ``LearningRateSchedule``.
        gamma: Of ``VRGD``.
        upper: Of ``VRGD``.
        groups: Of ``VRGD``.
        second_moment: As for ``vr_adam``.
        **lamb: Further arguments of ``LAMB``.

    Returns:
        The optimizer for ``compile``, and the transform for ``AdaptiveBatch``.

    Raises:
        ValueError: If an argument is unknown or out of its range.

    Example:

    ```python
    optimizer, transform = sg.vr_lamb(2e-3, weight_decay=0.01)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(batch_size=4096), transform=transform)
    ```

    References:
        Jiang et al., arXiv 2309.13681, section 4.
    """
    kind = {"scaled": LAMB, "raw": RawLAMB}
    return _with_momentum(kind, second_moment, learning_rate, lamb, VRGD(gamma, upper, RATIO_MOMENTUM, groups))


def _with_momentum(kinds: Mapping[str, type], second_moment: str, learning_rate: Any, arguments: dict, vrgd: VRGD) -> Pair:
    if second_moment not in kinds:
        raise ValueError(f"second_moment={second_moment!r} is not known. Pass one of {', '.join(map(repr, kinds))}.")
    optimizer = kinds[second_moment](learning_rate, **arguments)
    if isinstance(optimizer, _SquaresRawGradients):
        optimizer.vrgd = vrgd
        vrgd.keeps_raw = True
    return optimizer, vrgd
