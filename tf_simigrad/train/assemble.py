"""Puts the parts of a train step together for one model."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_simigrad.compat import keras_optimizer
from tf_simigrad.core.similarity import STATISTICS
from tf_simigrad.distribute.reduction import reduction_for
from tf_simigrad.distribute.reduction_records import Needs
from tf_simigrad.distribute.replicas import Replicas
from tf_simigrad.distribute.workers import Workers
from tf_simigrad.optimizers.transforms import Transform
from tf_simigrad.optimizers.vrgd import VRGD
from tf_simigrad.train.accumulator import Accumulator
from tf_simigrad.train.forward import Forward, LossFn
from tf_simigrad.train.table_rows import kept_as_rows
from tf_simigrad.train.train_step import TrainStep
from tf_simigrad.train.update import Update


class TrainParts(NamedTuple):
    """The train step of one model, and the parts of it that its owner talks to.

    Attributes:
        step: The traced functions.
        accumulator: Pending gradient sums.
        forward: Forward and backward pass.
        replicas: Where the model lives.
        workers: The processes that train together.
        state: Per-replica variables of a ``VRGD``, which live on from update to update.
        variables: All per-replica variables that were made for this train step.
        sections: Of the vector that an update returns.
    """

    step: TrainStep
    accumulator: Accumulator
    forward: Forward
    replicas: Replicas
    workers: Workers
    state: list[tf.Variable]
    variables: list[tf.Variable]
    sections: list[int]


def assemble(
    model: Any,
    replicas: Replicas,
    statistic: str,
    transforms: Sequence[Transform | VRGD],
    loss_fn: LossFn | None,
    element: Any = None,
    dense_table_elements: int | None = None,
) -> TrainParts:
    """Creates accumulators and optimizer variables, and the functions that will be traced.

    Args:
        model: The Keras model, compiled and built.
        replicas: Where it lives.
        statistic: A key of ``STATISTICS``.
        transforms: Of the mean gradient, in order; a ``VRGD`` only in the first place, as it acts inside the reduction.
        loss_fn: ``loss_fn(model, data)``, or None for the compiled loss.
        element: Spec of a dataset element as one replica sees it; None: no gradient is kept as rows.
        dense_table_elements: The gradient of a larger variable is kept as rows, if it comes as such; None: of none.

    Returns:
        The parts.

    Raises:
        ValueError: If the model has nothing to train.
    """
    variables = list(model.trainable_variables)
    if not variables:
        raise ValueError(f"{model.name!r} has no trainable variables. Set trainable=True on the layers to be trained.")
    vrgd = next((t for t in transforms if isinstance(t, VRGD)), None)
    after = [t for t in transforms if not isinstance(t, VRGD)]
    needs = Needs(statistic.startswith("two_groups"), statistic.endswith("_by_variable"), vrgd)
    reduction = reduction_for(replicas, needs)
    with replicas.scope():
        keras_optimizer.build(model.optimizer, variables)
        for transform in after:
            transform.build(variables)
        forward = Forward(model, variables, replicas.count, loss_fn)
    is_rows = kept_as_rows(model, variables, replicas, forward, vrgd, element, dense_table_elements)
    forward.keep_rows(is_rows)
    if vrgd is not None:
        shapes = [v.shape for v in variables]
        vrgd.build(reduction.shard_shapes(shapes), shapes, replicas.per_replica_variable)
    with_squares = vrgd is not None and vrgd.groups == "micro_steps"
    accumulator = Accumulator(replicas, variables, is_rows, reduction.slots, with_squares)
    update = Update(model, variables, replicas, accumulator, reduction, needs, STATISTICS[statistic], after)
    step = TrainStep(model, replicas, forward, accumulator, update, needs_norms=statistic == "all_pairs")
    state, kept = ([], []) if vrgd is None else (vrgd.variables, vrgd.kept_variables)
    made = [*accumulator.variables, *kept]
    return TrainParts(step, accumulator, forward, replicas, Workers(replicas), state, made, update.sections)
