"""What stands in ``model.train_function`` while ``fit`` runs: drives the traced functions by the control loop."""

import contextlib
import logging
import math
from typing import Any

import numpy as np
import tensorflow as tf

from tf_simigrad.compat import keras_optimizer, keras_private, tf_private
from tf_simigrad.distribute.watch import CollectiveWatch
from tf_simigrad.fit.control_loop import ControlLoop
from tf_simigrad.records import UpdateRecord, UpdateReport
from tf_simigrad.train.assemble import TrainParts
from tf_simigrad.train.forward import batch_tensor
from tf_simigrad.train.train_step import ExecutionInputs
from tf_simigrad.train.update import REPORT, UpdateInputs

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
        self._watch = CollectiveWatch() if parts.replicas.workers > 1 else None

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
        self._plan_from_spec(iterator)
        self._in_graph |= elements > 1 and not self._model.run_eagerly  # and stays so: an epoch's last call may be shorter
        try:
            metrics = self._execute(iterator, elements) if self._in_graph else self._loop_on_host(iterator, elements)
        except END_OF_DATA:
            self._end_epoch(ends_training)
            raise
        if ends_epoch:
            self._end_epoch(ends_training)
        keras_private.count_train_steps(self._model, elements)
        if self._parts.replicas.workers > 1 and not self._in_graph:
            metrics = self._metrics_of_workers(refresh=ends_epoch or self._loop.state.pending_steps == 0)
        return {**metrics, **self._own_logs()}

    def _metrics_of_workers(self, refresh: bool) -> dict[str, Any]:
        """Metrics over all workers, which have to meet for them: right after an update, not after each micro-step.

        A worker that waited for the others' metrics inside an accumulation, while they wait for its update, would hang.
        """
        if refresh or not self._metrics:
            with self._waiting("the metrics"):
                self._metrics = self._parts.step.metrics()
        return self._metrics

    def _waiting(self, operation: str) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext() if self._watch is None else self._watch.over(operation)

    def _pending_examples(self) -> int:
        if self._watch is None:
            return self._parts.accumulator.examples()
        with self._waiting("counting the pending examples"):
            return int(self._parts.step.pending_examples())

    def discard_pending(self) -> None:
        """Drops what is accumulated, counts it and says so."""
        if self._loop.state.pending_steps:
            dropped = self._parts.accumulator.examples()
            self._loop.state.discarded_examples += dropped
            _LOG.warning(
                "Training stopped inside an accumulation: %d examples of %d micro-steps are discarded.",
                dropped,
                self._loop.state.pending_steps,
            )
        self._parts.accumulator.reset()
        self._loop.restart()

    def _plan_from_spec(self, iterator: Any) -> None:
        """Plans before anything is traced, where the dataset's shapes are static."""
        if self._loop.is_planned:
            return
        spec = getattr(iterator, "element_spec", None)
        if spec is None:
            return
        shape = batch_tensor(tf_private.first_replica_spec(spec)).shape
        if shape.rank and shape[0] is not None:
            self._loop.set_unit(shape[0] * self._parts.replicas.count)

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
        if self._loop.state.pending_steps == 0 and self._loop.is_planned and self._watch is not None:
            self._compare_plans()
        metrics = self._parts.step.micro_step(iterator, tf.constant(self._loop.state.pending_steps % 2))
        self._accumulated(self._loop.state.pending_steps + 1)
        if self._loop.is_full:
            self._update(self._loop.plan.batch_size)
        return metrics

    def _compare_plans(self) -> None:
        """Before an accumulation, when all workers are at the same place: one that planned otherwise would leave it alone."""
        with self._waiting("comparing the plans"):
            check_workers(self._parts.step.plans_of_workers(tf.constant(float(self._loop.plan.micro_steps))).numpy())

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
        with self._waiting("an update"):
            report = self._parts.step.update(inputs).numpy()
        self._observe([decoded(report, self._loop.state.pending_steps)], multiplier)
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
        with self._waiting("a call of several updates"):
            metrics, done, pending, reports, steps = self._parts.step.execution(iterator, inputs)
        if int(done) == 0:
            raise StopIteration
        if len(steps):
            self._observe([decoded(r, int(k)) for r, k in zip(reports.numpy(), steps.numpy(), strict=True)], multiplier)
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
            self._parts.step.average_statistics()

    def _observe(self, reports: list[UpdateReport], multiplier: float) -> None:
        records = self._loop.observe(reports)
        if any(r.skipped for r in records):
            _LOG.warning(
                "The squared norm of an update's gradient was not finite: %d examples seen, weights left alone.",
                self._loop.state.examples_seen,
            )
        self._last = _logs_of(records[-1], multiplier)

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


def decoded(vector: np.ndarray, micro_steps: int) -> UpdateReport:
    """The report of one update, from the vector that it returned (``train.update.REPORT``); NaN becomes None."""
    entries = dict(zip(REPORT, (float(v) for v in vector), strict=False))
    check_workers(vector[len(REPORT) :])
    measured = {
        key: value if math.isfinite(value) else None
        for key, value in entries.items()
        if key in ("similarity", "squared_gradient_norm", "noise_trace")
    }
    return UpdateReport(
        batch_size=int(entries["examples"]),
        micro_steps=micro_steps,
        learning_rate=entries["learning_rate"],
        effective_learning_rate=entries["effective_learning_rate"],
        skipped=entries["finite"] == 0.0,
        **measured,
    )


def check_workers(micro_steps: np.ndarray) -> None:
    """Raises a RuntimeError, on every worker, if the workers of an update had not accumulated alike.

    Args:
        micro_steps: Micro-steps of each worker [workers].
    """
    values, counts = np.unique(micro_steps, return_counts=True)
    if len(values) == 1:
        return
    usual = values[np.argmax(counts)]
    odd = [f"worker {i} has {int(k)}" for i, k in enumerate(micro_steps) if k != usual or counts.max() == 1]
    others = "" if counts.max() == 1 else f", the others {int(usual)}"
    raise RuntimeError(
        f"The workers disagree about the micro-steps of an update: {', '.join(odd)}{others}. All workers must run the same "
        "policy, bounds and callbacks on elements of the same size; set_batch_size must be called alike on all of them."
    )
