"""Private names and version differences of the Kerases: the optimizer, its learning rate and its loss scale."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_simigrad.compat.keras_private import KERAS_3, keras

Schedule = keras.optimizers.schedules.LearningRateSchedule


def is_legacy(optimizer: Any) -> bool:
    """Whether it is an optimizer of Keras 2's first generation (``tf.keras.optimizers.legacy``)."""
    return not KERAS_3 and isinstance(optimizer, keras.optimizers.legacy.Optimizer)


def has_loss_scale(optimizer: Any) -> bool:
    """Whether it is a LossScaleOptimizer around another one."""
    return isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer)


def inner(optimizer: Any) -> Any:
    """The optimizer inside a LossScaleOptimizer; any other optimizer itself."""
    return optimizer.inner_optimizer if has_loss_scale(optimizer) else optimizer


def accumulation_steps(optimizer: Any) -> int | None:
    """Micro-steps that the optimizer accumulates by itself, or None."""
    return inner(optimizer).gradient_accumulation_steps if KERAS_3 else None


def is_several(optimizer: Any) -> bool:
    """Whether it is a MultiOptimizer, which holds no learning rate of its own."""
    return KERAS_3 and isinstance(inner(optimizer), keras.optimizers.MultiOptimizer)


def is_broken_nadam(optimizer: Any) -> bool:
    """Whether it is tf_keras's Nadam, which counts in Python how often a replica has traced it: NaN on several replicas."""
    return not KERAS_3 and isinstance(inner(optimizer), keras.optimizers.Nadam)


def compiles_by_xla(optimizer: Any) -> bool:
    """Whether it compiles the step of each variable by XLA, as tf_keras's do where there is a GPU."""
    return not KERAS_3 and bool(getattr(inner(optimizer), "jit_compile", False))


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Creates the optimizer's variables, in the scope of its strategy. Does nothing where they exist."""
    if is_legacy(inner(optimizer)):
        optimizer._create_all_weights(variables)
    elif not KERAS_3 or not optimizer.built:
        optimizer.build(variables)


def iterations(optimizer: Any) -> int:
    """Steps that the optimizer has taken. Outside of any trace."""
    return int(optimizer.iterations.numpy())


def loss_scale(optimizer: Any) -> tf.Tensor | None:
    """What the loss is to be multiplied by before the gradient is taken: a float32 scalar, or None for 1."""
    if has_loss_scale(optimizer):
        return tf.convert_to_tensor(optimizer.dynamic_scale) if KERAS_3 else optimizer.loss_scale
    if KERAS_3 and optimizer.loss_scale_factor is not None:
        return tf.constant(optimizer.loss_scale_factor, tf.float32)
    return None


def update_loss_scale(optimizer: Any, finite: tf.Tensor) -> None:
    """Lets a dynamic loss scale follow one update, as the LossScaleOptimizer itself would. Cross-replica context.

    Args:
        optimizer: Any optimizer; without a dynamic loss scale nothing happens.
        finite: Boolean scalar: whether all gradients were finite.
    """
    if not has_loss_scale(optimizer):
        return
    if not KERAS_3:
        if optimizer.dynamic:
            optimizer._loss_scale.update([tf.where(finite, 0.0, float("inf"))])
        return
    counter, scale = optimizer.step_counter, optimizer.dynamic_scale

    def grow() -> None:
        counter.assign(0)
        scale.assign(scale * 2.0)

    def count() -> None:
        counter.assign_add(1)

    def after_finite() -> None:
        tf.cond(tf.equal(counter, optimizer.dynamic_growth_steps - 1), grow, count)

    tf.cond(finite, after_finite, optimizer._stateful_handle_non_finite_grads)


def base_learning_rate(optimizer: Any, step: tf.Tensor) -> tf.Tensor:
    """The learning rate that the optimizer holds, a schedule evaluated at the given step.

    Args:
        optimizer: Any Keras optimizer.
        step: Int64 scalar.

    Returns:
        Float32 scalar.

    Raises:
        ValueError: If the optimizer has none.
    """
    optimizer = inner(optimizer)
    rate = _held_rate(optimizer)
    if isinstance(rate, Schedule):
        rate = rate(step)
    elif callable(rate) and not isinstance(rate, (tf.Variable, tf.Tensor)) and not hasattr(rate, "assign"):
        rate = rate()
    rate = tf.cast(tf.convert_to_tensor(rate), tf.float32)
    if is_legacy(optimizer) and optimizer._initial_decay > 0.0:
        rate = rate / (1.0 + tf.cast(optimizer._get_hyper("decay"), tf.float32) * tf.cast(step, tf.float32))
    return rate


def _held_rate(optimizer: Any) -> Any:
    if not is_legacy(optimizer):
        return optimizer._learning_rate
    if "learning_rate" not in optimizer._hyper:
        raise ValueError(
            f"{type(optimizer).__name__} holds no learning rate. If it wraps another optimizer (as Lookahead, MovingAverage, "
            "SWA and ExponentialMovingAverage do), the learning rate rule would not reach that one: compile the model with it."
        )
    return optimizer._get_hyper("learning_rate")


@contextlib.contextmanager
def learning_rate(optimizer: Any, rate: tf.Tensor) -> Iterator[None]:
    """The optimizer takes ``rate`` for its learning rate, weight decay included, while the context is open.

    To be opened around ``strategy.run`` on the thread that calls it: MirroredStrategy traces replicas in threads that
    take turns and would undo each other's change. ``optimizer.learning_rate`` shows the base rate to everybody else.
    """
    optimizer = inner(optimizer)
    if KERAS_3:
        changed = _replaced(optimizer, "_get_current_learning_rate", lambda: rate)
    elif is_legacy(optimizer):
        changed = _replaced(optimizer, "_decayed_lr", lambda dtype: tf.cast(rate, dtype))
    else:
        changed = _replaced(optimizer, "_learning_rate", rate)
    with changed:
        yield


@contextlib.contextmanager
def reduced_gradients(optimizer: Any) -> Iterator[None]:
    """The optimizer takes gradients as reduced and unscaled while the context is open (keras#19308: no public switch)."""
    optimizer = inner(optimizer)
    if not KERAS_3:
        yield
        return
    with (
        _replaced(optimizer, "_all_reduce_sum_gradients", lambda pairs: pairs),
        _replaced(optimizer, "loss_scale_factor", None),
    ):
        yield


def apply(optimizer: Any, gradients: Sequence[tf.Tensor | None], variables: Sequence[Any]) -> None:
    """One step of the optimizer on gradients that are the same on every replica. Replica context.

    Inside ``reduced_gradients`` and ``learning_rate``. Clipping, decay, EMA and constraints are the optimizer's own.
    """
    if KERAS_3:
        inner(optimizer).apply(gradients, variables)
    else:
        gradients = _clipped_for_bert(inner(optimizer), gradients)
        inner(optimizer).apply_gradients(zip(gradients, variables, strict=True), experimental_aggregate_gradients=False)


def _clipped_for_bert(optimizer: Any, gradients: Sequence[tf.Tensor | None]) -> Sequence[tf.Tensor | None]:
    """What tf-models-official's AdamWeightDecay does with its ``gradient_clip_norm`` (1.0 unless told otherwise).

    It clips by the global norm, but leaves that to its caller where gradients come reduced. Others' are not changed.
    """
    norm = getattr(optimizer, "gradient_clip_norm", None)
    return tf.clip_by_global_norm(gradients, norm)[0] if norm else gradients


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An instance attribute set past the owner's own ``__setattr__``, which would track or convert it."""
    had, old = name in vars(owner), vars(owner).get(name)
    object.__setattr__(owner, name, value)
    try:
        yield
    finally:
        if had:
            object.__setattr__(owner, name, old)
        else:
            object.__delattr__(owner, name)
