"""The train step of the model that ``fit`` is called on: checked, assembled, and given back what a checkpoint has saved."""

from collections.abc import Callable, Sequence
from typing import Any

from tf_simigrad.compat import keras_private, tf_private
from tf_simigrad.control.policy import Policy, is_count
from tf_simigrad.core.similarity import STATISTICS
from tf_simigrad.distribute.replicas import Replicas
from tf_simigrad.fit import checks
from tf_simigrad.optimizers.transforms import Transform
from tf_simigrad.optimizers.vrgd import VRGD
from tf_simigrad.train.assemble import TrainParts, assemble


class Preparation:
    """Traces and accumulators of one model at a time; kept from ``fit`` to ``fit`` where they still belong to it.

    Args:
        policy: Of the callback.
        statistic: Of the callback.
        transform: Of the callback.
        loss_fn: Of the callback.
        dense_table_elements: Of the callback.

    Attributes:
        parts: The last train step; None before the first.
        loss_fn: As given.

    Raises:
        ValueError: If an argument is unusable.
    """

    def __init__(
        self,
        policy: Policy,
        statistic: str,
        transform: Transform | VRGD | Sequence[Transform | VRGD] | None,
        loss_fn: Callable[[Any, Any], Any] | None,
        dense_table_elements: int | None,
    ) -> None:
        if statistic not in STATISTICS:
            raise ValueError(f"statistic={statistic!r} is not known. Pass one of {', '.join(map(repr, STATISTICS))}.")
        if loss_fn is not None and not callable(loss_fn):
            raise ValueError(f"loss_fn={loss_fn!r} must be callable: loss_fn(model, data) -> mean loss of one micro-batch.")
        if dense_table_elements is not None and not (is_count(dense_table_elements) or dense_table_elements == 0):
            raise ValueError(
                f"dense_table_elements={dense_table_elements!r} must be a whole number of elements, 0 or more, or None: no "
                "gradient is kept as rows."
            )
        self.parts: TrainParts | None = None
        self.loss_fn = loss_fn
        self._policy = policy
        self._statistic = statistic
        self._dense_table_elements = dense_table_elements
        self._transforms = checks.transforms_of(transform)
        self._key: tuple = ()
        self._restored: dict[str, list] | None = None

    def check(self, model: Any) -> None:
        """Raises a ValueError for a model that ``fit`` with the callback would refuse."""
        checks.check_model(model, self.loss_fn is not None)
        self.fewest_micro_steps(model.distribute_strategy.num_replicas_in_sync)

    def fewest_micro_steps(self, replicas: int) -> tuple[int, str]:
        """See ``checks.fewest_micro_steps``."""
        return checks.fewest_micro_steps(self._policy, self._transforms, replicas)

    def train_parts(self, model: Any, element_spec: Any) -> TrainParts:
        """The train step for a checked model and dataset elements of this spec; the last one where it still fits.

        Args:
            model: Compiled.
            element_spec: Nested ``tf.TensorSpec`` of a dataset element, distributed or as one replica sees it.

        Returns:
            Its parts.

        Raises:
            ValueError: If an element's shapes are not static where they must be.
        """
        replicas = Replicas(model.distribute_strategy)
        element = tf_private.first_replica_spec(element_spec)
        if replicas.is_compiled:
            checks.check_static_shapes(element)
        if not keras_private.is_ready(model, with_loss=self.loss_fn is None):
            keras_private.build_from(model, element, self.loss_fn)
        key = (*keras_private.compiled_identity(model), *(id(v) for v in model.trainable_variables))
        if self.parts is None or key != self._key:
            checks.warn_of(model, replicas, self.loss_fn is not None)
            self.parts = assemble(
                model, replicas, self._statistic, self._transforms, self.loss_fn, element, self._dense_table_elements
            )
            self._key = key
        return self.parts

    def arrays_to_save(self, is_pending: bool) -> dict[str, list]:
        """Arrays of this worker's replicas: the pending sums, where there are any, and the state of a ``VRGD``."""
        arrays: dict[str, list] = {}
        if self.parts is not None:
            if is_pending:
                arrays["pending"] = self.parts.replicas.arrays_of(self.parts.accumulator.variables)
            if self.parts.state:
                arrays["transform"] = self.parts.replicas.arrays_of(self.parts.state)
        return arrays

    def arrays_to_resume(self, arrays: dict[str, list]) -> None:
        """Takes what ``arrays_to_save`` gave, for ``put_back``."""
        self._restored = arrays

    def put_back(self, parts: TrainParts) -> None:
        """Gives the arrays of a checkpoint, if there are any left, to those whose they are."""
        restored, self._restored = self._restored, None
        if restored is None:
            return
        if "pending" in restored:
            parts.replicas.assign_arrays(parts.accumulator.variables, restored["pending"], "pending gradient sums")
        parts.replicas.assign_arrays(parts.state, restored.get("transform", []), "moving averages of VRGD")
