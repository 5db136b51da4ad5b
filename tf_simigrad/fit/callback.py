"""The callback: from then on the batch size follows the gradients, update by update."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from tf_simigrad.compat import keras3_workers, keras_optimizer, keras_private
from tf_simigrad.control.policy import Policy, check_bounds, is_count
from tf_simigrad.core import lr_rules
from tf_simigrad.fit.checks import check_workers_of_keras3
from tf_simigrad.fit.control_loop import ControlLoop, LoopState
from tf_simigrad.fit.limits import DENSE_TABLE_ELEMENTS
from tf_simigrad.fit.preparation import Preparation
from tf_simigrad.fit.slot import TrainFunctionSlot
from tf_simigrad.fit.train_function import END_OF_DATA, TrainFunction
from tf_simigrad.optimizers.transforms import Transform
from tf_simigrad.optimizers.vrgd import VRGD
from tf_simigrad.records import UpdateRecord
from tf_simigrad.train.assemble import TrainParts

_LOG = logging.getLogger("tf_simigrad")


class AdaptiveBatch(keras_private.keras.callbacks.Callback):
    """Adapts the batch size inside ``model.fit``, and the learning rate with it.

    The dataset given to ``fit`` yields micro-batches of equal size (``micro_batch_size * replicas`` examples each).
    Gradients are summed over as many of them as the policy wants, reduced once, measured, and applied once. Progress bar,
    epochs, validation and the other callbacks stay what they are. What is pending at the end of an epoch is carried into the
    next one and flushed at the end of the last; where training stops before, it is discarded, counted in
    ``discarded_examples``, and logged.

    The effective learning rate is the optimizer's own (which other callbacks may change; a LearningRateSchedule is evaluated
    at ``examples_seen // reference_batch_size``) times the rule's multiplier. ``optimizer.iterations`` counts updates. A
    gradient that is not finite is dropped whole, leaves the weights alone and is counted.

    Args:
        policy: ``SimiGrad``, ``NoiseScale``, ``FixedBatch``, or your own ``Policy``.
        statistic: "two_groups": the cosine between the mean gradients of the two halves of the replicas, or of the even and
            odd micro-steps where there is one replica (one more gradient sum in memory). "two_groups_by_variable": the same,
            and similarity and noise scale of each variable in the logs (``similarity/dense/kernel``), for looking at a model.
            "all_pairs": the same expectation from the norms of all micro-gradients, with less noise; reads every
            micro-gradient once more.
        learning_rate_rule: "sqrt", "linear", "adascale", "none", or ``rule(batch_size, reference_batch_size, noise_scale) ->
            multiplier`` (examples; the noise scale is an average up to the previous update, None while unknown,
            infinite while the gradient is lost in noise).
        reference_batch_size: Batch size in examples that the optimizer's learning rate was tuned for. None: the first one.
        transform: A ``VRGD`` or a ``Transform`` of the mean gradient, or a sequence of them, applied in order.
        loss_fn: ``loss_fn(model, data)`` returns the mean loss of one micro-batch, or ``(mean_loss, weight)`` where the mean is
            not over examples (tokens, say). For models that override ``train_step``. Called in replica context, for the
            examples of one replica; not to be divided by the number of replicas.
        verbose: 0 prints nothing, 1 a line per epoch.
        dense_table_elements: The gradient of a variable with more elements stays an ``IndexedSlices`` where it is one (an
            embedding's): only the rows that examples have touched are summed, exchanged between replicas, measured, scaled by
            VRGD and handed to the optimizer, which decides whether it steps the others too (Adam and momentum do, tf_keras's
            legacy momentum does not). By default 33,554,432, which is 128 MiB; 0: every such gradient; None: none. Not on TPUs
            and with ``jit_compile``, as XLA needs static shapes, nor under ``run_eagerly``: there it is dense. A ``Transform``
            is given the ``IndexedSlices``, of distinct indices.

    Raises:
        ValueError: From here, if an argument is unusable; from ``fit``, before training, if the model, its optimizer or its
            strategy is one under which the results would be wrong.

    Example:

    ```python
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer=tf.keras.optimizers.SGD(0.01), loss="mse")
    x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
    adaptive = sg.AdaptiveBatch(sg.SimiGrad(target_similarity=0.3, min_batch_size=16, max_batch_size=64))
    model.fit(x, x.sum(axis=1), batch_size=8, epochs=2, verbose=0, callbacks=[adaptive])
    assert 16 <= adaptive.history[0].batch_size <= 64
    ```

    References:
        Qin et al., "SimiGrad", NeurIPS 2021.
    """

    def __init__(
        self,
        policy: Policy,
        statistic: str = "two_groups",
        learning_rate_rule: str | Callable[[int, int, float | None], float] = "sqrt",
        reference_batch_size: int | None = None,
        transform: Transform | VRGD | Sequence[Transform | VRGD] | None = None,
        loss_fn: Callable[[Any, Any], Any] | None = None,
        verbose: int = 0,
        dense_table_elements: int | None = DENSE_TABLE_ELEMENTS,
    ) -> None:
        super().__init__()
        check_workers_of_keras3(keras3_workers.is_needed_by_environment())
        if not isinstance(policy, Policy):
            raise ValueError(
                f"policy={policy!r} is no Policy. Pass sg.SimiGrad(...), sg.NoiseScale(...), sg.FixedBatch(...) or an "
                "instance of your own subclass of sg.Policy."
            )
        check_bounds(policy)
        if reference_batch_size is not None and (not is_count(reference_batch_size)):
            raise ValueError(f"reference_batch_size={reference_batch_size!r} must be a whole number of examples, or None.")
        self.verbose = verbose
        self._policy = policy
        self._rule = lr_rules.resolve(learning_rate_rule)
        self._preparation = Preparation(policy, statistic, transform, loss_fn, dense_table_elements)
        self._reference_batch_size = reference_batch_size
        self._loop = self._new_loop()
        self._function: TrainFunction | None = None
        self._owner: tuple[Any, Any] | None = None
        self._is_resumed = False
        self._is_new = True
        self._slot: TrainFunctionSlot | None = None
        self._epoch = 0
        self._steps_of_first_epoch = 0

    @property
    def policy(self) -> Policy:
        """The policy it was made with."""
        return self._policy

    @property
    def loss_fn(self) -> Callable[[Any, Any], Any] | None:
        """The ``loss_fn`` it was made with."""
        return self._preparation.loss_fn

    @property
    def history(self) -> list[UpdateRecord]:
        """One record per update, oldest first."""
        return self._loop.state.history

    @property
    def examples_seen(self) -> int:
        """Examples of all updates so far, over all replicas; what is pending is not in it yet."""
        return self._loop.state.examples_seen

    @property
    def discarded_examples(self) -> int:
        """Examples that were accumulated when training stopped, and never entered an update.

        Those of a ``fit`` that ended by an exception are counted when the next one begins.
        """
        return self._loop.state.discarded_examples

    @property
    def skipped_updates(self) -> int:
        """Updates that were dropped because their gradient was not finite."""
        return self._loop.state.skipped_updates

    @property
    def batch_size(self) -> int:
        """Examples that the update in the making is planned to have; what the policy wants while the micro-batch is unknown."""
        return self._loop.plan.batch_size if self._loop.is_planned else int(self._loop.state.policy.wanted_batch_size)

    @property
    def traces(self) -> int:
        """How often the functions of the training step were traced: 1, whatever the batch size did (calls, if run eagerly)."""
        parts = self._preparation.parts
        return 0 if parts is None else max(parts.step.traces.values())

    def set_batch_size(self, batch_size: int) -> None:
        """Sets the batch size; the policy goes on from there. What is rounded is logged.

        An update that is being accumulated keeps the size it was begun with: the next one has the new size.

        Args:
            batch_size: Examples per update over all replicas, within the bounds of the policy (any size for ``FixedBatch``).

        Raises:
            ValueError: If it is not a whole number within the bounds.

        Example:

        ```python
        adaptive = sg.AdaptiveBatch(sg.SimiGrad(target_similarity=0.3, min_batch_size=16, max_batch_size=64))
        adaptive.set_batch_size(32)
        assert adaptive.batch_size == 32
        ```
        """
        self._loop.set_batch_size(batch_size)

    def check(self, model: Any) -> None:
        """Refuses a model that ``fit`` with this callback would refuse.

        Args:
            model: Compiled.

        Raises:
            ValueError: If the model, its optimizer or its strategy is not supported.
        """
        self._preparation.check(model)

    def set_model(self, model: Any) -> None:
        """Checks the model and takes the place of its train function. Called by Keras.

        Args:
            model: The compiled model that ``fit`` was called on.

        Raises:
            ValueError: If the model, its optimizer or its strategy is not supported.
        """
        super().set_model(model)
        self.check(model)
        if self._function is not None:
            self._function.discard_pending()  # on_train_end was not called: the last fit ended by an exception
        self._take_over_state(model)
        self._steps_of_first_epoch = 0
        self._function = None
        self._slot = TrainFunctionSlot(model, self._call)

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Makes sure that no other callback has taken this one's place. Called by Keras."""
        if self._slot is None or not self._slot.is_taken:
            keras_private.restored_train_function(self.model)
            raise ValueError("Another callback has replaced the train function of this fit. Pass one AdaptiveBatch only.")

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Notes which epoch it is. Called by Keras."""
        self._epoch = epoch
        if self._preparation.parts is not None:
            self._preparation.parts.forward.reset_metrics()

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Announces one call of the train function. Called by Keras."""
        if self._slot is not None:
            self._slot.arm(batch)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Prints a line if ``verbose``. Called by Keras."""
        if self.verbose and self.history:
            last = self.history[-1]
            print(
                f"Epoch {epoch + 1}: {len(self.history)} updates, {self.examples_seen} examples, batch size {self.batch_size}, "
                f"similarity {last.similarity}, effective learning rate {last.effective_learning_rate:.4g}"
            )

    def on_test_begin(self, logs: dict | None = None) -> None:
        """Repairs Keras 3's evaluation where it is broken. Called by Keras."""
        keras_private.repair_evaluation(self.model, self.model.distribute_strategy.num_replicas_in_sync)

    def on_train_end(self, logs: dict | None = None) -> None:
        """Gives the model its own train function back. Called by Keras."""
        if self._function is not None:
            self._function.discard_pending()
            self._function = None
        if self._slot is not None:
            self._slot.release()

    def _call(self, iterator: Any, first: int) -> Any:
        if self._function is None:
            self._function = self._prepared(iterator)
        elements = keras_private.steps_per_execution(self.model)
        steps = self.params.get("steps") or self._steps_of_first_epoch
        try:
            return self._function(
                iterator,
                elements,
                ends_epoch=bool(steps) and first + elements >= steps,
                ends_training=self._epoch + 1 >= self.params["epochs"],
            )
        except END_OF_DATA:
            self._steps_of_first_epoch = keras_private.steps_after_first_epoch(first, elements)
            raise

    def _take_over_state(self, model: Any) -> None:
        """Goes on where the last ``fit`` of the same model and optimizer ended; anything else begins anew."""
        owned = self._owner is not None and self._owner[0] is model and self._owner[1] is model.optimizer
        if not owned and not self._is_resumed:
            if self._owner is not None:
                _LOG.info("Another model or optimizer than in the last fit: the batch size and the history begin anew.")
                self._loop = self._new_loop()
            self._is_new = True
        self._is_resumed = False
        self._owner = (model, model.optimizer)

    def _prepared(self, iterator: Any) -> TrainFunction:
        """The train function of this ``fit``; traces and accumulators of the last one are kept where they still fit."""
        parts = self.train_parts(self.model, getattr(iterator, "element_spec", None))
        if self._is_new:  # not earlier: a callback such as BackupAndRestore sets the iterations when training begins
            self._loop.state.schedule_offset = keras_optimizer.iterations(self.model.optimizer)
            self._is_new = False
        self._loop.start(*self._preparation.fewest_micro_steps(parts.replicas.count))
        self._preparation.put_back(parts)
        function = TrainFunction(self.model, parts, self._loop)
        function.begin(iterator, self.params.get("steps"), self.params["epochs"])
        return function

    def train_parts(self, model: Any, element_spec: Any) -> TrainParts:
        """The train step of a model as ``fit`` would trace it, without a ``fit``: for tools that look at programs.

        Args:
            model: Compiled, and one that ``check`` accepts.
            element_spec: Nested ``tf.TensorSpec`` of a dataset element, distributed or as one replica sees it.

        Returns:
            Its parts; the same as last time where nothing has been compiled or built anew since.

        Raises:
            ValueError: If an element's shapes are not static where they must be.
        """
        return self._preparation.train_parts(model, element_spec)

    def _new_loop(self) -> ControlLoop:
        return ControlLoop(self._policy, self._rule, self._reference_batch_size)

    def state_to_save(self) -> tuple[LoopState, dict[str, list]]:
        """What ``EpochCheckpoint`` saves: the loop's state, and arrays of this worker's replicas.

        These are the pending sums, where there are any, and the state of a ``VRGD``, if it has one.
        """
        return self._loop.state, self._preparation.arrays_to_save(is_pending=self._loop.state.pending_steps > 0)

    def state_to_resume(self, state: LoopState, arrays: dict[str, list]) -> None:
        """Takes what ``state_to_save`` gave, for the next ``fit``."""
        self._function = None
        self._loop = self._new_loop()
        self._loop.resume(state)
        self._preparation.arrays_to_resume(arrays)
        self._is_resumed, self._is_new = True, False
