"""Forward and backward pass of one micro-batch on one replica: its mean gradient, its weight, its examples."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_simigrad.compat import keras_optimizer, keras_private
from tf_simigrad.core import rows, trees
from tf_simigrad.core.fingerprint import fingerprint
from tf_simigrad.core.rows import Gradient

LossFn = Callable[[Any, Any], Any]


class MicroGradient(NamedTuple):
    """The gradient of one micro-batch on one replica.

    Attributes:
        weighted: Gradients of the mean loss times ``weight``, float32, unscaled; None where a variable has none; rows of
            distinct indices where they are kept as rows.
        examples: Float32 scalar.
        weight: Float32 scalar: examples, or what ``loss_fn`` says the mean is over.
        fingerprint: Float32 scalar of the data (``core.fingerprint``).
    """

    weighted: list[Gradient | None]
    examples: tf.Tensor
    weight: tf.Tensor
    fingerprint: tf.Tensor


class Forward:
    """Computes micro-gradients with the model's own loss and metrics, or with a ``loss_fn``.

    Args:
        model: The Keras model, compiled.
        variables: Its trainable variables.
        num_replicas: By which Keras divides its losses.
        loss_fn: ``loss_fn(model, data)`` -> mean loss, or (mean loss, weight); None for the compiled loss.
    """

    def __init__(self, model: Any, variables: Sequence[Any], num_replicas: int, loss_fn: LossFn | None) -> None:
        self._model = model
        self._variables = list(variables)
        self._num_replicas = num_replicas
        self._loss_fn = loss_fn
        self._loss = keras_private.own_loss_metric(model) if loss_fn is not None else None
        self._is_rows = [False] * len(self._variables)

    def keep_rows(self, is_rows: Sequence[bool]) -> None:
        """For each variable, whether its gradient is to be rows, as it is an ``IndexedSlices``."""
        self._is_rows = list(is_rows)

    def own_metrics(self) -> dict[str, tf.Tensor]:
        """The mean loss of ``loss_fn``, where the model does not track it itself. Cross-replica context."""
        return {} if self._loss is None else {"loss": self._loss.result()}

    def reset_metrics(self) -> None:
        """Starts ``own_metrics`` anew, as Keras does with the model's metrics when an epoch begins."""
        if self._loss is not None:
            self._loss.reset_state()

    def __call__(self, data: Any) -> MicroGradient:
        """One micro-batch. Replica context.

        Args:
            data: One dataset element as this replica sees it: x, (x, y) or (x, y, sample_weight).

        Returns:
            Its micro-gradient.
        """
        gradients, examples, weight, factor = self.gradients(data)

        def weighted(gradient: Gradient | None, is_rows: bool) -> Gradient | None:
            if gradient is None:
                return None
            kept = rows.of_gradient(gradient) if is_rows else trees.dense(gradient)
            # multiply_no_nan: a replica without examples has the loss 0 / 0 and the weight 0
            return rows.like([kept], [tf.math.multiply_no_nan(*rows.values([kept]), factor)])[0]

        found = [weighted(gradient, is_rows) for gradient, is_rows in zip(gradients, self._is_rows, strict=True)]
        return MicroGradient(found, examples, weight, fingerprint(tf.nest.flatten(data)))

    def gradients(self, data: Any) -> tuple[list[Gradient | None], tf.Tensor, tf.Tensor, tf.Tensor]:
        """Gradients of what the loss is multiplied by and divided by, examples, weight, and the factor that undoes the former.

        The factor makes them those of the mean loss times the weight. Replica context.
        """
        examples = tf.cast(count_examples(data), tf.float32)
        scale = keras_optimizer.loss_scale(self._model.optimizer)
        with tf.GradientTape() as tape, keras_private.autograph_of_keras():
            loss, weight, divided_by = self._loss_of(data, examples)
            scaled = loss if scale is None else loss * scale
        factor = weight * divided_by if scale is None else weight * divided_by / scale
        return tape.gradient(scaled, self._variables), examples, weight, factor

    def _loss_of(self, data: Any, examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, float]:
        """Loss, weight, and by what the loss is divided: undone after the gradient, lest a float16 one overflow sooner."""
        if self._loss_fn is not None:
            loss, weight = _with_weight(self._loss_fn(self._model, data), examples)
            keras_private.track_loss(self._model, loss, weight)
            if self._loss is not None:
                self._loss.update_state(loss, sample_weight=weight)
            return loss, weight, 1.0
        x, y, sample_weight = keras_private.keras.utils.unpack_x_y_sample_weight(data)
        y_pred = keras_private.call_in_training(self._model, x)
        loss = keras_private.compiled_loss(self._model, x, y, y_pred, sample_weight)
        keras_private.track_loss(self._model, loss * self._num_replicas, examples)
        self._model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return loss, examples, float(self._num_replicas)


def batch_tensor(data: Any) -> Any:
    """The tensor (or spec) of a dataset element whose first dimension counts the examples: a target's, else an input's."""
    x, y, _ = keras_private.keras.utils.unpack_x_y_sample_weight(data)
    return next(t for t in (*tf.nest.flatten(y), *tf.nest.flatten(x)) if t is not None)


def count_examples(data: Any) -> tf.Tensor:
    """Examples in one replica's part of a dataset element. Int32 scalar."""
    return tf.shape(batch_tensor(data), out_type=tf.int32)[0]


def _with_weight(returned: Any, examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    loss, weight = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, examples)
    if loss is None or weight is None or isinstance(loss, tuple):
        raise ValueError(f"loss_fn(model, data) returned {returned!r}. Expected the mean loss, or (mean loss, weight).")
    loss, weight = tf.cast(loss, tf.float32), tf.cast(weight, tf.float32)
    if loss.shape.rank != 0 or weight.shape.rank != 0:
        raise ValueError(
            f"loss_fn(model, data) must return the mean loss of the micro-batch as a scalar, or (mean loss, weight) with a "
            f"scalar weight; it returned shapes {loss.shape} and {weight.shape}. Reduce them before returning."
        )
    return loss, weight
