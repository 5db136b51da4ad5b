"""One base class for our optimizers under the three Kerases: an algorithm says what its slots are and what its step is."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_simigrad.compat.keras_private import KERAS_3, keras, tf_variable, variable_path

Schedule = keras.optimizers.schedules.LearningRateSchedule

KERAS_ARGUMENTS = frozenset(
    {"clipnorm", "clipvalue", "global_clipnorm", "use_ema", "ema_momentum", "ema_overwrite_frequency", "name"}
    | ({"loss_scale_factor", "gradient_accumulation_steps"} if KERAS_3 else {"jit_compile"})
)
"""Arguments of Keras's own base class that ours pass on to it; without its ``weight_decay``."""

serializable: Callable[[type], type] = keras.utils.register_keras_serializable(package="tf_simigrad")
"""Class decorator: a saved model names the class "tf_simigrad>LARS", and finds it once its module has been imported."""


class VariableStep(NamedTuple):
    """What one step of an optimizer does to one variable is a function of this.

    Attributes:
        place: Index of the variable among the trainable ones.
        path: The variable's path, "dense/kernel".
        weight: Its value, float32.
        gradient: Its gradient, reduced and clipped; dense, float32.
        slots: The values of its slots, in the order of ``slot_names``; float32.
        learning_rate: Of this step, float32 scalar.
        number: Which step it is, from 1; float32 scalar.
    """

    place: int
    path: str
    weight: tf.Tensor
    gradient: tf.Tensor
    slots: tuple[tf.Tensor, ...]
    learning_rate: tf.Tensor
    number: tf.Tensor


class OptimizerBase(keras.optimizers.Optimizer):
    """A Keras optimizer whose step treats each variable by itself, and is computed in float32 whatever the variable's dtype.

    Clipping, moving averages, constraints, schedules and the loss scale are Keras's. Its ``weight_decay`` stays None: Keras
    would decay the weights before the step, outside of it.

    Args:
        learning_rate: A float, a schedule, or under Keras 3 a callable.
        **kwargs: ``KERAS_ARGUMENTS``.
    """

    slot_names: tuple[str, ...] = ()

    def __init__(self, learning_rate: Any, **kwargs: Any) -> None:
        if KERAS_3:
            super().__init__(learning_rate=learning_rate, **kwargs)
        else:
            name = kwargs.pop("name", None) or type(self).__name__
            super().__init__(name=name, weight_decay=None, **kwargs)
            self._learning_rate = self._build_learning_rate(learning_rate)

    @abc.abstractmethod
    def step(self, at: VariableStep) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """What to subtract from the weight, and the new values of the slots; float32."""

    @abc.abstractmethod
    def hyperparameters(self) -> dict[str, Any]:
        """The arguments of the algorithm beside the learning rate, by name, as values that JSON knows."""

    def on_build(self, paths: Sequence[str]) -> None:  # noqa: B027 (most algorithms have nothing to check)
        """Called once with the paths of the variables that are to be trained."""

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the slots: float32, 0, on the variable's device. Does nothing where they exist.

        Raises:
            ValueError: If a variable belongs to another strategy than that of the scope.
        """
        if self.built if KERAS_3 else getattr(self, "_built", False):
            return
        self._check_scope(variables)
        super().build(variables)
        self._paths = tuple(variable_path(v) for v in variables)
        self._slots = [[self._new_slot(v, name) for name in self.slot_names] for v in variables]
        self.on_build(self._paths)
        if not KERAS_3:
            self._built = True

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> None:
        """One step of one variable; Keras calls it, in the variable's update context."""
        index = self._index_of(variable)
        slots = [tf_variable(slot) for slot in self._slots[index]]
        rate = self.learning_rate if learning_rate is None else learning_rate
        at = VariableStep(
            place=index,
            path=self._paths[index],
            weight=tf.cast(variable, tf.float32),
            gradient=_dense(gradient, variable.shape),
            slots=tuple(tf.convert_to_tensor(slot) for slot in slots),
            learning_rate=tf.cast(rate, tf.float32),
            number=tf.cast(self.iterations, tf.float32) + 1.0,
        )
        change, values = self.step(at)
        for slot, value in zip(slots, values, strict=True):
            slot.assign(value)
        wide = variable.dtype if variable.dtype.size > 4 else tf.float32
        variable.assign(tf.cast(tf.cast(variable, wide) - tf.cast(change, wide), variable.dtype))

    def get_config(self) -> dict[str, Any]:
        """All arguments, by name."""
        config = {name: value for name, value in super().get_config().items() if name != "weight_decay"}
        if not KERAS_3:
            rate = self._serialize_hyperparameter(self._learning_rate)
            config["learning_rate"] = rate if isinstance(rate, dict) else float(rate)
        return {**config, **self.hyperparameters()}

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Keras's way to exclude variables, which would not reach our decay.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            f"{type(self).__name__} does not use exclude_from_weight_decay(var_list={var_list!r}, var_names={var_names!r}). "
            f"Pass patterns to its constructor: {type(self).__name__}(..., exclude_from_decay=[...])."
        )

    def _check_scope(self, variables: Sequence[Any]) -> None:
        """Slots made elsewhere would not be mirrored, and updated once per replica; so would Keras 3's count of steps."""
        strategy = tf.distribute.get_strategy()
        elsewhere = KERAS_3 and self._distribution_strategy is not strategy
        if elsewhere or not all(strategy.extended.variable_created_in_scope(tf_variable(v)) for v in variables):
            raise ValueError(
                f"{type(self).__name__} and the variables that it is built for belong to different strategies. Make the model "
                "and the optimizer, compile, load and build inside `with strategy.scope():`."
            )

    def _new_slot(self, variable: Any, name: str) -> Any:
        """Not ``add_variable_from_reference``, whose slots have the dtype of the variable."""
        name = f"{variable_path(variable).replace('/', '_')}_{name}"
        with tf.distribute.get_strategy().extended.colocate_vars_with(tf_variable(variable)):
            return self.add_variable(shape=variable.shape, dtype="float32", initializer="zeros", name=name)

    def _index_of(self, variable: Any) -> int:
        return self._get_variable_index(variable) if KERAS_3 else self._index_dict[self._var_key(variable)]


def _dense(gradient: Any, shape: tf.TensorShape) -> tf.Tensor:
    """The gradient in float32; the rows of an ``IndexedSlices`` that share an index are summed in it."""
    gradient = tf.cast(gradient, tf.float32)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, shape[0])
    return gradient
