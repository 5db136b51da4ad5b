"""One update: reduce, measure, transform, apply."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_simigrad.compat import keras_optimizer, keras_private
from tf_simigrad.core.rows import Gradient
from tf_simigrad.core.similarity import Measurement
from tf_simigrad.distribute.reduction import AllToAllReduction, LocalReduction
from tf_simigrad.distribute.reduction_records import Needs
from tf_simigrad.distribute.replicas import OneReplica, Replicas
from tf_simigrad.optimizers.transforms import Transform
from tf_simigrad.records import Moments
from tf_simigrad.train.accumulator import Accumulator

REPORT = (
    "examples",
    "similarity",
    "squared_gradient_norm",
    "noise_trace",
    "learning_rate",
    "effective_learning_rate",
    "finite",
)
"""Entries of the first section of the float32 vector that an update reports, in order."""


class UpdateInputs(NamedTuple):
    """What the host passes into the graph for one update, as scalar tensors.

    Attributes:
        multiplier: Float32: effective over base learning rate.
        schedule_step: Int64: the step at which a LearningRateSchedule is evaluated.
        micro_steps: Int32: micro-steps that this worker has accumulated.
    """

    multiplier: tf.Tensor
    schedule_step: tf.Tensor
    micro_steps: tf.Tensor


INPUT_SPECS = UpdateInputs(tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int32))


class Update:
    """Ends an accumulation: reduces it over the replicas, measures it, transforms it and applies it to the weights.

    Args:
        model: The Keras model, compiled.
        variables: Its trainable variables.
        replicas: Where it lives.
        accumulator: What the micro-steps have summed.
        reduction: Reduction of the replicas' sums to means and moments.
        needs: What the reduction was made for.
        measure: Statistic of the moments (``core.similarity``); of each variable too where the reduction has these moments.
        transforms: Transforms of the mean gradient, in order.
    """

    def __init__(
        self,
        model: Any,
        variables: Sequence[Any],
        replicas: Replicas,
        accumulator: Accumulator,
        reduction: LocalReduction | AllToAllReduction,
        needs: Needs,
        measure: Callable[[Moments], Measurement],
        transforms: Sequence[Transform],
    ) -> None:
        self._optimizer = model.optimizer
        self._variables = list(variables)
        self._replicas = replicas
        self._accumulator = accumulator
        self._reduction = reduction
        self._measure = measure
        self._transforms = transforms
        self._statistics = [
            keras_private.tf_variable(v) for v in keras_private.unsynchronised_statistics(model, replicas.count)
        ]
        self.has_gradient = [False] * len(self._variables)
        each = len(self._variables)
        self.sections = [
            len(REPORT),
            replicas.workers,
            replicas.count,
            2 * each if needs.by_variable else 0,
            0 if needs.adapt is None else needs.adapt.report_size(each),
        ]

    def __call__(self, inputs: UpdateInputs, has_gradient: Sequence[bool]) -> tf.Tensor:
        """Runs the update, in one program where XLA compiles it whole. Cross-replica context.

        Args:
            inputs: Multiplier, schedule step and micro-steps.
            has_gradient: For each variable, whether a micro-step has had a gradient of it.

        Returns:
            Float32 vector of the lengths in ``sections``: the entries of ``REPORT``, the micro-steps
            of each worker, the fingerprint of each replica, similarity and noise scale of each variable, what the ``Adapt``
            reports. Where the micro-steps differ the weights are left alone. Of a gradient whose squared norm is not finite:
            the weights and the optimizer are left alone, the accumulation is dropped.
        """
        if not self._replicas.is_compiled:
            # No condition may stand around a collective or an optimizer in a replica (keras#20582): they stand outside.
            return self._sequence(self._replicas, inputs, has_gradient)
        return self._replicas.first(self._replicas.run(self.program(has_gradient), tuple(inputs)))

    def program(self, has_gradient: Sequence[bool]) -> Callable[..., tf.Tensor]:
        """The whole update of one replica, conditions and all, as a function of ``UpdateInputs``. Replica context."""
        return lambda *inputs: self._sequence(OneReplica(), UpdateInputs(*inputs), has_gradient)

    def _sequence(self, replicas: Replicas | OneReplica, inputs: UpdateInputs, has_gradient: Sequence[bool]) -> tf.Tensor:
        """Reduce, measure, transform, apply."""
        base = keras_optimizer.base_learning_rate(self._optimizer, inputs.schedule_step)
        effective = base * inputs.multiplier
        gradients, sections = replicas.run(self._reduce_and_measure, (tf.cast(inputs.micro_steps, tf.float32),))
        reported, workers, *others = replicas.first(sections)
        examples, squared_norm, *measured = tf.unstack(reported)
        finite = tf.math.is_finite(squared_norm)
        agree = tf.reduce_all(tf.equal(workers, workers[0]))

        def apply() -> None:
            with keras_optimizer.reduced_gradients(self._optimizer), keras_optimizer.learning_rate(self._optimizer, effective):
                present = [g if has else None for g, has in zip(gradients, has_gradient, strict=True)]
                replicas.run(self._transform_and_apply, (present,))

        tf.cond(tf.logical_and(finite, agree), apply, lambda: None)
        keras_optimizer.update_loss_scale(self._optimizer, finite)
        replicas.run(self._accumulator.clear)
        entries = tf.stack([examples, *measured, base, effective, tf.cast(finite, tf.float32)])
        return tf.concat([entries, workers, *others], axis=0)

    def average_statistics(self) -> None:
        """Averages over the replicas what they keep apart: moving statistics. Replica context."""
        if self._statistics:
            self._reduction.average(self._statistics)

    def _reduce_and_measure(self, micro_steps: tf.Tensor) -> tuple[list[Gradient], list[tf.Tensor]]:
        reduced = self._reduction(self._accumulator.read(), micro_steps)
        self.average_statistics()
        moments = reduced.moments
        reported = tf.stack([moments.examples, moments.squared_norm, *self._measure(moments)])
        by_variable = tf.zeros([0])
        if reduced.by_variable is not None:
            measured = self._measure(reduced.by_variable)
            scale = measured.noise_trace / measured.squared_gradient_norm
            by_variable = tf.concat([measured.similarity, scale], axis=0)
        return reduced.gradients, [reported, reduced.micro_steps, reduced.fingerprints, by_variable, reduced.adapted]

    def _transform_and_apply(self, gradients: Sequence[Gradient | None]) -> None:
        for transform in self._transforms:
            gradients = _checked(transform, transform(gradients, self._variables), gradients)
        cast = [None if g is None else tf.cast(g, v.dtype) for g, v in zip(gradients, self._variables, strict=True)]
        keras_optimizer.apply(self._optimizer, cast, self._variables)


def _checked(transform: Transform, after: Any, before: Sequence[Gradient | None]) -> Sequence[Gradient | None]:
    """What a transform returned: one gradient per variable, each of its shape, or a ValueError."""
    shapes = [_shape(g) for g in before]
    given = [_shape(g) for g in after] if isinstance(after, (list, tuple)) else after
    if given != shapes:
        raise ValueError(
            f"{type(transform).__name__} returned gradients of shapes {given}. Expected a list with one gradient per "
            f"variable, of shapes {shapes}."
        )
    return after


def _shape(gradient: Any) -> list | None:
    if gradient is None:
        return None
    shape = (gradient if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)).shape
    # Of an IndexedSlices that was made without its dense_shape nothing is known.
    return None if shape.rank is None else shape.as_list()
