"""The custom train step that ``fit`` runs in place of Keras's own: elements -> accumulate -> update when full."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_simigrad.compat import keras_private
from tf_simigrad.core import rows, trees
from tf_simigrad.distribute.replicas import Replicas
from tf_simigrad.train.accumulator import Accumulator
from tf_simigrad.train.forward import Forward, MicroGradient, batch_tensor
from tf_simigrad.train.update import INPUT_SPECS, Update, UpdateInputs


class ExecutionInputs(NamedTuple):
    """What the host passes into the graph for one call of several dataset elements, as scalar tensors.

    Attributes:
        elements: Int32: dataset elements to consume.
        pending: Int32: micro-steps accumulated before the call.
        micro_steps: Int32: micro-steps per update.
        multiplier: Float32: effective over base learning rate.
        examples_seen: Int64: examples up to the last update before the call.
        reference_batch_size: Int64: examples per step of a LearningRateSchedule.
        schedule_offset: Int64: the schedule's step at ``examples_seen`` = 0.
    """

    elements: tf.Tensor
    pending: tf.Tensor
    micro_steps: tf.Tensor
    multiplier: tf.Tensor
    examples_seen: tf.Tensor
    reference_batch_size: tf.Tensor
    schedule_offset: tf.Tensor


class TrainStep:
    """The traced functions of one model: a micro-step, an update, and a loop of both for ``steps_per_execution`` > 1.

    The host chooses between the first two, so that no condition stands between them; the loop holds the same update.

    Args:
        model: The Keras model, compiled and built.
        replicas: Where it lives.
        forward: Forward and backward pass.
        accumulator: Where micro-gradients are summed.
        update: What ends an accumulation.
        needs_norms: Whether the statistic wants the squared norm of every micro-gradient.
    """

    def __init__(
        self, model: Any, replicas: Replicas, forward: Forward, accumulator: Accumulator, update: Update, needs_norms: bool
    ) -> None:
        self._model = model
        self._replicas = replicas
        self._forward = forward
        self._accumulator = accumulator
        self._update = update
        self._needs_norms = needs_norms
        self.traces = {"micro_step": 0, "update": 0}
        # A program that is compiled whole anyway holds no compiled function.
        alone = model.jit_compile and not replicas.is_compiled
        self._accumulate = tf.function(self.accumulate, jit_compile=True) if alone else self.accumulate
        self.micro_step: Callable = self._next_micro_step
        if not model.run_eagerly:
            self.micro_step = tf.function(self._next_micro_step, reduce_retracing=True)
        # The update holds blocking collectives, which replicas that run eagerly, one after the other, would never meet in.
        self._traced_update: Any = tf.function(self._run_update)
        self.average_statistics: Callable = tf.function(self._run_average)
        self.metrics: Callable = self._metrics if model.run_eagerly else tf.function(self._metrics)
        self.execution: Callable = tf.function(self._run_execution)

    @tf.autograph.experimental.do_not_convert
    def _next_micro_step(self, iterator: Any, slot: tf.Tensor) -> dict:
        """Consumes one dataset element. Cross-replica context.

        Args:
            iterator: The iterator that Keras passes to its train function.
            slot: Int32 scalar: the group of this micro-step where one replica forms both.

        Returns:
            The metrics so far; none where ``Replicas.defers_metrics``.
        """
        self._run_micro_step(next(iterator), slot)
        return {} if self._replicas.defers_metrics else self._metrics()

    def _run_micro_step(self, data: Any, slot: tf.Tensor) -> None:
        self.traces["micro_step"] += 1
        data = tf.nest.map_structure(_none_if_optional, data)
        self._replicas.run(self._accumulate, (data, slot))

    @tf.autograph.experimental.do_not_convert
    def _metrics(self) -> dict:
        """Results of all metrics, each over all replicas. Cross-replica context."""
        return {**self._forward.own_metrics(), **keras_private.metric_results(self._model)}

    def accumulate(self, data: Any, slot: tf.Tensor) -> None:
        """Forward, backward, add: one micro-step of one replica. Replica context.

        Args:
            data: One dataset element as this replica sees it.
            slot: Int32 scalar: the group of this micro-step where one replica forms both.
        """
        tensors = [t for t in tf.nest.flatten(data, expand_composites=True) if t is not None]
        # Counts of static shapes are constants to the graph: without this they would be added even where the data has ended.
        with tf.control_dependencies(tensors):
            first = batch_tensor(data)
            safe = self._replicas.count == 1 or first.shape[0] is not None or keras_private.empty_batches_are_safe(self._model)
            if safe:
                self._add(self._forward(data), slot)
            else:
                tf.cond(tf.shape(first)[0] > 0, lambda: self._add(self._forward(data), slot), lambda: None)

    def _add(self, micro: MicroGradient, slot: tf.Tensor) -> None:
        for index, gradient in enumerate(micro.weighted):
            self._update.has_gradient[index] |= gradient is not None
        norms = tf.constant(0.0)
        if self._needs_norms:
            squares = trees.squared_norm(rows.values([g for g in micro.weighted if g is not None]))
            norms = tf.math.divide_no_nan(squares, micro.weight)
        present = tf.cast(micro.weight > 0, tf.float32)
        counters = tf.stack([micro.examples, micro.weight, norms, present, micro.fingerprint])
        self._accumulator.add(micro.weighted, counters, slot)

    def update(self, inputs: UpdateInputs) -> tf.Tensor:
        """Ends the accumulation; see ``train.update.Update``. Traced once, and again if a variable gets its first gradient."""
        return self._traced_update(inputs, tuple(self._update.has_gradient))

    def update_program(self) -> Callable[..., tf.Tensor]:
        """One replica's update as a function of ``UpdateInputs``; see ``train.update.Update.program``.

        To be asked for after ``accumulate`` has been traced, which finds out what has a gradient.
        """
        return self._update.program(tuple(self._update.has_gradient))

    def update_graph(self) -> tf.Graph:
        """The graph of the update, with the collectives that it runs; for tools that count them."""
        return self._traced_update.get_concrete_function(INPUT_SPECS, tuple(self._update.has_gradient)).graph

    @tf.autograph.experimental.do_not_convert
    def _run_update(self, inputs: UpdateInputs, has_gradient: tuple[bool, ...]) -> tf.Tensor:
        self.traces["update"] += 1
        return self._update(inputs, has_gradient)

    @tf.autograph.experimental.do_not_convert
    def _run_average(self) -> None:
        self._replicas.run(self._update.average_statistics)

    @tf.autograph.experimental.do_not_convert
    def _run_execution(self, iterator: Any, inputs: ExecutionInputs) -> tuple[dict, *tuple[tf.Tensor, ...]]:
        """Consumes several dataset elements, updating whenever the accumulation is full. Cross-replica context.

        Args:
            iterator: The iterator that Keras passes to its train function.
            inputs: The plan, which holds for the whole call.

        Returns:
            The metrics; the elements consumed (fewer than asked for at the end of the data); the micro-steps pending; per
            update its vector [updates, sum of its sections] and its micro-steps [updates].
        """
        entries = [sum(self._update.sections)]
        reports = tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=entries)
        steps = tf.TensorArray(tf.int32, size=0, dynamic_size=True, element_shape=[])

        def body(i: Any, pending: Any, seen: Any, more: Any, reports: Any, steps: Any) -> tuple:
            element = iterator.get_next_as_optional()
            more = element.has_value()
            tf.cond(more, lambda: self._run_micro_step(element.get_value(), pending % 2), lambda: None)
            pending += tf.cast(more, tf.int32)
            full = tf.logical_and(more, pending >= inputs.micro_steps)

            def update() -> tuple:
                step = inputs.schedule_offset + seen // inputs.reference_batch_size
                report = self.update(UpdateInputs(inputs.multiplier, step, pending))
                return (
                    tf.constant(0),
                    seen + tf.cast(report[0], tf.int64),
                    reports.write(reports.size(), report),
                    steps.write(steps.size(), pending),
                )

            left, seen, reports, steps = tf.cond(full, update, lambda: (pending, seen, reports, steps))
            return i + tf.cast(more, tf.int32), left, seen, more, reports, steps

        done, pending, _, _, reports, steps = tf.while_loop(
            lambda i, pending, seen, more, reports, steps: tf.logical_and(i < inputs.elements, more),
            body,
            (tf.constant(0), inputs.pending, inputs.examples_seen, tf.constant(True), reports, steps),
            parallel_iterations=1,
        )
        return self._metrics(), done, pending, reports.stack(), steps.stack()


def _none_if_optional(value: Any) -> Any:
    """Keras 3 puts an empty ``Optional`` where an element has a None."""
    return None if isinstance(value, tf.experimental.Optional) else value
