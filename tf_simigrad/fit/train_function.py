"""What stands in ``model.train_function`` while ``fit`` runs: drives the traced functions by the control loop."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_simigrad.compat import keras_optimizer, keras_private, tf_private
from tf_simigrad.fit import agreement, report_vector
from tf_simigrad.fit.control_loop import ControlLoop
from tf_simigrad.optimizers.vrgd import VRGD
from tf_simigrad.records import UpdateRecord
from tf_simigrad.train.assemble import TrainParts
from tf_simigrad.train.forward import batch_tensor
from tf_simigrad.train.train_step import ExecutionInputs
from tf_simigrad.train.update import UpdateInputs

_LOG = logging.getLogger("tf_simigrad")
END_OF_DATA = (StopIteration, tf.errors.OutOfRangeError)
_NO_UPDATE_YET = 2**31 - 1


class TrainFunction:
    """Consumes as many dataset elements per call as Keras expects, and updates the weights when the plan says so.

    Args:
        model: The Keras model.
        parts: Its traced functions and accumulators.
        loop: Clock, policy and history.
    """

    def __init__(self, model: Any, parts: TrainParts, loop: ControlLoop) -> None:
        self._model = model
        self._parts = parts
        self._loop = loop
        self._last: dict[str, float] = {}
        self._in_graph = False
        self._metrics: dict[str, Any] = {}
        self._workers = parts.workers
        self._paths = [keras_private.variable_path(v) for v in model.trainable_variables]
        self._shared_data = agreement.SharedData()
        self._warned_of_groups = False
        self._waits = False

    def begin(self, iterator: Any, steps: int | None, epochs: int) -> None:
        """Sees to it that all workers will take the same steps, and plans where the dataset's shapes are static.

        Args:
            iterator: Keras's iterator.
            steps: Dataset elements of an epoch, as far as Keras knows them.
            epochs: Epochs planned.

        Raises:
            ValueError: If the workers would part ways, or no feasible batch size lies within the policy's bounds.
        """
        # The end of the data has to be noticed with the element that is not there, and what was seen last has to be shown.
        self._waits = self._parts.replicas.is_compiled and steps is None
        elements = keras_private.steps_per_execution(self._model)
        agreement.check_fit(self._workers, steps, epochs, elements, tf_private.is_endless(iterator))
        examples = self._workers.gather([self._static_examples(iterator)], "planning")[:, 0]
        if all(examples):
            self._loop.set_unit(int(examples.sum()))

    def _static_examples(self, iterator: Any) -> int:
        """Examples of one dataset element on this worker; 0 where its shapes do not tell."""
        spec = getattr(iterator, "element_spec", None)
        if spec is None:
            return 0
        shape = batch_tensor(tf_private.first_replica_spec(spec)).shape
        return shape[0] * self._parts.replicas.count // self._workers.count if shape.rank and shape[0] is not None else 0

    def __call__(self, iterator: Any, elements: int, ends_epoch: bool, ends_training: bool) -> dict[str, Any]:
        """One call of Keras's training loop.

        Args:
            iterator: Keras's iterator.
            elements: Dataset elements to consume; fewer at the end of the data.
            ends_epoch: Whether the epoch ends with this call, as far as that is known beforehand.
            ends_training: Whether the epoch is the last one planned.

        Returns:
            Logs: the model's metrics and the callback's own.

        Raises:
            StopIteration: At the end of the data, after what was pending has been flushed or averaged.
        """
        # And stays so: an epoch's last call may be shorter. On a TPU the host chooses among programs, which run without it.
        self._in_graph |= elements > 1 and not self._model.run_eagerly and not self._parts.replicas.is_compiled
        try:
            metrics = self._execute(iterator, elements) if self._in_graph else self._loop_on_host(iterator, elements)
        except END_OF_DATA:
            self._end_epoch(ends_training)
            raise
        if ends_epoch:
            self._end_epoch(ends_training)
        keras_private.count_train_steps(self._model, elements)
        if self._parts.replicas.defers_metrics and not self._in_graph:
            metrics = self._deferred_metrics(refresh=ends_epoch or self._waits or self._loop.state.pending_steps == 0)
        return {**metrics, **self._own_logs()}

    def _deferred_metrics(self, refresh: bool) -> dict[str, Any]:
        """The metrics as they were right after the last update, not after each micro-step.

        Several workers have to meet for them: one that waited for the others' metrics inside an accumulation, while they wait
        for its update, would hang. A TPU goes through its micro-steps without the host, where it is known how many there are.
        """
        if refresh or not self._metrics:
            with self._workers.waiting("the metrics"):
                self._metrics = self._parts.step.metrics()
        return self._metrics

    def _pending_examples(self) -> int:
        examples = self._parts.accumulator.examples()
        return int(self._workers.gather([examples], "counting the pending examples").sum())

    def discard_pending(self) -> None:
        """Drops what is accumulated, counts it and says so."""
        if self._loop.state.pending_steps:
            dropped = self._pending_examples()
            self._loop.state.discarded_examples += dropped
            _LOG.warning(
                "Training stopped inside an accumulation: %d examples of %d micro-steps are discarded.",
                dropped,
                self._loop.state.pending_steps,
            )
        self._parts.accumulator.reset()
        self._loop.restart()

    def _loop_on_host(self, iterator: Any, elements: int) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        for index in range(elements):
            try:
                metrics = self._micro_step(iterator)
            except END_OF_DATA:
                if index == 0:
                    raise
                break
        return metrics

    def _micro_step(self, iterator: Any) -> dict[str, Any]:
        if self._loop.state.pending_steps == 0:
            self._compare_plans()
        with self._workers.waiting("a micro-step"):  # whether there is data, the workers have to ask each other
            metrics = self._parts.step.micro_step(iterator, tf.constant(self._loop.state.pending_steps % 2))
        if self._waits:
            tf_private.wait_for_calls()
        self._accumulated(self._loop.state.pending_steps + 1)
        if self._loop.is_full:
            self._update(self._loop.plan.batch_size)
        return metrics

    def _compare_plans(self) -> None:
        """Before an accumulation, when all workers are at the same place: one that planned otherwise would leave it alone."""
        if self._workers.count > 1 and self._loop.is_planned:
            plans = self._workers.gather([self._loop.plan.micro_steps], "comparing the plans")
            agreement.check_micro_steps(plans[:, 0])

    def _accumulated(self, pending_steps: int) -> None:
        self._loop.state.pending_steps = pending_steps
        if not self._loop.is_planned:
            self._loop.set_unit(self._pending_examples() // pending_steps)

    def _update(self, batch_size: int) -> None:
        multiplier = self._loop.multiplier(batch_size)
        inputs = UpdateInputs(
            tf.constant(multiplier, tf.float32),
            tf.constant(self._loop.schedule_step, tf.int64),
            tf.constant(self._loop.state.pending_steps),
        )
        with self._workers.waiting("an update"):
            report = self._parts.step.update(inputs).numpy()
        self._observe(report[None], [self._loop.state.pending_steps], multiplier)
        self._loop.restart()

    def _execute(self, iterator: Any, elements: int) -> dict[str, Any]:
        """Several elements in one graph call; the very first element alone where only it can tell the micro-batch size."""
        if not self._loop.is_planned:
            metrics = self._run_execution(iterator, 1, _NO_UPDATE_YET)
            if self._loop.is_full:
                self._update(self._loop.plan.batch_size)
            elements -= 1
            try:
                return self._run_execution(iterator, elements, self._loop.plan.micro_steps)
            except END_OF_DATA:
                return metrics
        return self._run_execution(iterator, elements, self._loop.plan.micro_steps)

    def _run_execution(self, iterator: Any, elements: int, micro_steps: int) -> dict[str, Any]:
        loop, state = self._loop, self._loop.state
        multiplier = loop.multiplier(loop.plan.batch_size) if loop.is_planned else 1.0
        inputs = ExecutionInputs(
            elements=tf.constant(elements),
            pending=tf.constant(state.pending_steps),
            micro_steps=tf.constant(micro_steps),
            multiplier=tf.constant(multiplier, tf.float32),
            examples_seen=tf.constant(state.examples_seen, tf.int64),
            reference_batch_size=tf.constant(state.reference_batch_size or 1, tf.int64),
            schedule_offset=tf.constant(state.schedule_offset, tf.int64),
        )
        self._compare_plans()
        with self._workers.waiting("a call of several dataset elements"):
            metrics, done, pending, reports, steps = self._parts.step.execution(iterator, inputs)
        if int(done) == 0:
            raise StopIteration
        if len(steps):
            self._observe(reports.numpy(), steps.numpy(), multiplier)
            loop.restart()
        self._accumulated(int(pending))
        return metrics

    def _end_epoch(self, ends_training: bool) -> None:
        """Flushes what is pending at the end of the last planned epoch; otherwise it is carried into the next epoch."""
        if self._loop.state.pending_steps == 0:
            return
        if ends_training:
            self._update(self._pending_examples())
        else:
            with self._workers.waiting("averaging the moving statistics"):
                self._parts.step.average_statistics()

    def _observe(self, vectors: np.ndarray, micro_steps: Sequence[int], multiplier: float) -> None:
        updates = [
            report_vector.decoded(vector, self._parts.sections, int(steps), self._paths)
            for vector, steps in zip(vectors, micro_steps, strict=True)
        ]
        for update in updates:
            agreement.check_micro_steps(update.micro_steps)
            self._shared_data.observe(update.fingerprints)
            self._warn_of_few_groups(update.logs.get("vrgd_groups"))
        records = self._loop.observe([update.report for update in updates])
        if any(r.skipped for r in records):
            _LOG.warning(
                "The squared norm of an update's gradient was not finite: %d examples seen, weights left alone.",
                self._loop.state.examples_seen,
            )
        self._last = {**_logs_of(records[-1], multiplier), **updates[-1].logs}

    def _warn_of_few_groups(self, groups: float | None) -> None:
        if groups is None or groups >= VRGD.RECOMMENDED_GROUPS or self._warned_of_groups:
            return
        self._warned_of_groups = True
        _LOG.warning(
            "VRGD compares %d groups of gradients in an update; with fewer than %d its ratio is mostly noise. Use more "
            "micro-steps per update (smaller dataset elements), or more replicas.",
            groups,
            VRGD.RECOMMENDED_GROUPS,
        )

    def _own_logs(self) -> dict[str, float]:
        if not self._last:
            base = keras_optimizer.base_learning_rate(self._model.optimizer, tf.constant(self._loop.schedule_step, tf.int64))
            multiplier = self._loop.multiplier(self._loop.plan.batch_size)
            plan = self._loop.plan
            self._last = _logs_of(
                UpdateRecord(0, plan.batch_size, plan.micro_steps, None, None, float(base), float(base) * multiplier, False),
                multiplier,
            )
        state = self._loop.state
        return {**self._last, "examples_seen": float(state.examples_seen), "skipped_updates": float(state.skipped_updates)}


def _logs_of(record: UpdateRecord, multiplier: float) -> dict[str, float]:
    return {
        "batch_size": float(record.batch_size),
        "micro_steps": float(record.micro_steps),
        "similarity": math.nan if record.similarity is None else record.similarity,
        "noise_scale": math.nan if record.noise_scale is None else record.noise_scale,
        "learning_rate": record.learning_rate,
        "learning_rate_multiplier": multiplier,
        "effective_learning_rate": record.effective_learning_rate,
    }
