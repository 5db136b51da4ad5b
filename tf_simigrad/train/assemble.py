"""Puts the parts of a train step together for one model."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tf_simigrad.compat import keras_optimizer
from tf_simigrad.core.similarity import STATISTICS
from tf_simigrad.distribute.reduction import reduction_for
from tf_simigrad.distribute.replicas import Replicas
from tf_simigrad.distribute.workers import Workers
from tf_simigrad.optimizers.transforms import Transform
from tf_simigrad.train.accumulator import Accumulator
from tf_simigrad.train.forward import Forward, LossFn
from tf_simigrad.train.train_step import TrainStep
from tf_simigrad.train.update import Update


class TrainParts(NamedTuple):
    """The train step of one model, and the parts of it that its owner talks to."""

    step: TrainStep
    accumulator: Accumulator
    forward: Forward
    replicas: Replicas
    workers: Workers


def assemble(
    model: Any, replicas: Replicas, statistic: str, transforms: Sequence[Transform], loss_fn: LossFn | None
) -> TrainParts:
    """Creates accumulators and optimizer variables, and the functions that will be traced.

    Args:
        model: The Keras model, compiled and built.
        replicas: Where it lives.
        statistic: A key of ``STATISTICS``.
        transforms: Transforms of the mean gradient, in order.
        loss_fn: ``loss_fn(model, data)``, or None for the compiled loss.

    Returns:
        The parts.

    Raises:
        ValueError: If the model has nothing to train.
    """
    variables = list(model.trainable_variables)
    if not variables:
        raise ValueError(f"{model.name!r} has no trainable variables. Set trainable=True on the layers to be trained.")
    reduction = reduction_for(replicas, needs_groups=statistic == "two_groups")
    with replicas.scope():
        keras_optimizer.build(model.optimizer, variables)
        for transform in transforms:
            transform.build(variables)
        forward = Forward(model, variables, replicas.count, loss_fn)
    accumulator = Accumulator(replicas, variables, reduction.slots)
    update = Update(model, variables, replicas, accumulator, reduction, STATISTICS[statistic], transforms)
    step = TrainStep(model, replicas, forward, accumulator, update, needs_norms=statistic == "all_pairs")
    return TrainParts(step, accumulator, forward, replicas, Workers(replicas))
