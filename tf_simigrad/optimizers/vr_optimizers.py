"""The VR optimizers of the VRGD paper, each as an optimizer and the transform that makes it one."""

from typing import Any

from tf_simigrad.compat.keras_private import keras
from tf_simigrad.optimizers.adam import Adam
from tf_simigrad.optimizers.lamb import LAMB
from tf_simigrad.optimizers.lars import LARS
from tf_simigrad.optimizers.transforms import L2, Transform
from tf_simigrad.optimizers.vrgd import VRGD

RATIO_MOMENTUM = 0.9
SECOND_MOMENTS = ("scaled", "raw")

Pair = tuple[Any, VRGD | list[VRGD | Transform]]


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
    return _with_momentum(Adam(learning_rate, **adam), gamma, upper, groups, second_moment)


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
    return _with_momentum(LAMB(learning_rate, **lamb), gamma, upper, groups, second_moment)


def _with_momentum(optimizer: Adam, gamma: float, upper: float, groups: str, second_moment: str) -> Pair:
    if second_moment not in SECOND_MOMENTS:
        raise ValueError(f"second_moment={second_moment!r} is not known. Pass one of {', '.join(map(repr, SECOND_MOMENTS))}.")
    vrgd = VRGD(gamma, upper, RATIO_MOMENTUM, groups)
    if second_moment == "raw":
        optimizer.square_gradients_of(vrgd)
    return optimizer, vrgd
