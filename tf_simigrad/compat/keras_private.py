"""Private names and version differences of the three Kerases (Keras 3, tf_keras, Keras 2.15): the model."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from tf_simigrad.compat import tf_private

keras = tf.keras

KERAS_3: bool = keras.Model.__module__.startswith("keras.src.models")
"""Whether ``tf.keras`` of this process is Keras 3; otherwise it is tf_keras or Keras 2."""


def name_of_keras() -> str:
    """The Keras of this process, for messages: "Keras 3", "tf_keras", or "Keras 2", the package ``keras`` before it was 3."""
    if KERAS_3:
        return "Keras 3"
    return "tf_keras" if keras.Model.__module__.startswith("tf_keras.") else "Keras 2"


def backend() -> str:
    """The Keras backend: "tensorflow", or another one under Keras 3."""
    return keras.backend.backend() if KERAS_3 else "tensorflow"


def keras_distribution() -> Any:
    """What ``keras.distribution.set_distribution`` has set, or None."""
    return keras.distribution.distribution() if KERAS_3 else None


def overrides_train_step(model: Any) -> bool:
    """Whether the model's training step is not Keras's own."""
    return type(model).train_step is not keras.Model.train_step or "train_step" in vars(model)


def overrides_compute_metrics(model: Any) -> bool:
    """Whether the model's ``compute_metrics`` is not Keras's own."""
    return type(model).compute_metrics is not keras.Model.compute_metrics


def steps_per_execution(model: Any) -> int:
    """Dataset elements that one call of the train function consumes; tf_keras shortens the last call of an epoch by it."""
    if KERAS_3:
        return model.steps_per_execution
    return 1 if model._steps_per_execution is None else int(model._steps_per_execution.numpy())


def compiled_identity(model: Any) -> tuple[int, ...]:
    """Identities of what ``compile`` makes anew each time: they differ if the model was compiled again."""
    loss = model._compile_loss if KERAS_3 else model.compiled_loss
    return (id(loss), id(model.optimizer))


def call_in_training(model: Any, x: Any) -> Any:
    """The forward pass of the training step."""
    if KERAS_3 and not model._call_has_training_arg:
        return model(x)
    return model(x, training=True)


def compiled_loss(model: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
    """The compiled loss of this replica's examples, with regularisation and ``add_loss`` terms.

    A mean over them, divided by the number of replicas: both Kerases do that, since they add gradients up. Float32 scalar.
    """
    if KERAS_3:
        loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
    else:
        loss = model.compute_loss(x, y, y_pred, sample_weight)
        model._validate_target_and_loss(y, loss)
    return tf.cast(loss, tf.float32)


def track_loss(model: Any, mean: tf.Tensor, weight: tf.Tensor) -> None:
    """Adds a mean loss to the tracker whose result is the log ``loss``; tf_keras does it inside ``compute_loss``."""
    if KERAS_3:
        model._loss_tracker.update_state(mean, sample_weight=weight)


def own_loss_metric(model: Any) -> Any:
    """A metric for the loss of a ``loss_fn`` where the model's metrics have none; None where they do.

    tf_keras tracks only what ``compute_loss`` has seen, and a Keras 3 model may name metrics of its own in its place.
    """
    if KERAS_3 and any(metric is model._loss_tracker for metric in model.metrics):
        return None
    return keras.metrics.Mean(name="loss")


def metric_results(model: Any) -> dict[str, Any]:
    """Results of the model's metrics; without those that nothing has updated yet (``compile``'s, under a ``loss_fn``)."""
    if not KERAS_3:
        return model.get_metrics_result()
    results: dict[str, Any] = {}
    for metric in model.metrics:
        if getattr(metric, "built", True) is not False:
            result = metric.result()
            results.update(result if isinstance(result, dict) else {metric.name: result})
    return results


def count_train_steps(model: Any, steps: int) -> None:
    """tf_keras's TensorBoard callback reads its step from a counter that the train function advances."""
    if not KERAS_3:
        model._train_counter.assign_add(steps)


def steps_after_first_epoch(first: int, elements: int) -> int:
    """Elements that an epoch is allowed from now on, where the dataset's size was unknown and has just been found.

    Keras 3 counts the call that met the end of the data as well.

    Args:
        first: Index of the first element of the call that met the end.
        elements: Elements that this call was to consume.
    """
    return first + elements if KERAS_3 else first


def autograph_of_keras() -> AbstractContextManager:
    """tf_keras converts user code by AutoGraph inside its train function, Keras 3 does not."""
    return nullcontext() if KERAS_3 else tf_private.autograph_enabled()


def empty_batches_are_safe(model: Any) -> bool:
    """Whether a replica without examples may run the model, or must: a layer that synchronises replicas waits for all.

    tf_keras's BatchNormalization ignores an empty batch; the moving statistics of Keras 3's become NaN.
    """
    return not KERAS_3 or any(getattr(layer, "synchronized", False) for layer in model._flatten_layers())


def is_built(model: Any) -> bool:
    """Whether all variables of the model exist: not before the first batch of a subclassed or deferred Sequential model."""
    return bool(model.built) and all(layer.built for layer in model._flatten_layers(include_self=False))


def unsynchronised_statistics(model: Any, num_replicas: int) -> list[Any]:
    """Moving statistics that replicas update apart: BatchNormalization's.

    Under Keras 3 nobody averages them; tf_keras does when they are read, but ``export`` writes those of the first replica.
    """
    if num_replicas == 1:
        return []
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    return [v for layer in layers if layer.trainable for v in (layer.moving_mean, layer.moving_variance)]


def batch_dependent_layers(model: Any) -> list[str]:
    """Names of the layers whose output for one example depends on the micro-batch of its replica."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    return [layer.name for layer in layers if not getattr(layer, "synchronized", False)]


def has_masked_outputs(model: Any) -> bool:
    """Whether an output of a functional model carries a mask, so that the loss is a mean over what is not masked."""
    outputs = getattr(model, "outputs", None) or []
    return any(getattr(output, "_keras_mask", None) is not None for output in outputs)


def regularised_layers(model: Any) -> list[str]:
    """Names of the layers that add a weight penalty to the loss."""
    kinds = (
        "kernel_regularizer",
        "bias_regularizer",
        "embeddings_regularizer",
        "depthwise_regularizer",
        "pointwise_regularizer",
        "recurrent_regularizer",
        "gamma_regularizer",
        "beta_regularizer",
    )
    return [layer.name for layer in model._flatten_layers() if any(getattr(layer, kind, None) is not None for kind in kinds)]


def tf_variable(variable: Any) -> tf.Variable:
    """The TensorFlow variable inside a Keras 3 variable; a TensorFlow variable itself."""
    return variable.value if KERAS_3 and not isinstance(variable, tf.Variable) else variable


def variable_path(variable: Any) -> str:
    """The variable's name with the names of its layers, "dense/kernel"."""
    return variable.path if KERAS_3 and hasattr(variable, "path") else variable.name.split(":")[0]


def is_ready(model: Any, with_loss: bool) -> bool:
    """Whether everything that a step will use exists already, so that one trace of it suffices.

    Args:
        model: The compiled model.
        with_loss: Whether the compiled loss and metrics are used, and not only the model's layers.
    """
    if not with_loss:
        return is_built(model)
    if KERAS_3:
        containers = [c for c in (model._compile_loss, model._compile_metrics) if c is not None]
    else:
        containers = [model.compiled_loss, model.compiled_metrics]
    return is_built(model) and all(container.built for container in containers)


def build_from(model: Any, element_spec: Any, loss_fn: Any) -> None:
    """Creates what waits for the first batch, by tracing the forward pass on the spec of one dataset element.

    Args:
        model: The compiled model.
        element_spec: Of one dataset element as a replica sees it.
        loss_fn: ``loss_fn(model, data)``; None for the compiled loss, which is built as well.
    """

    def forward(data: Any) -> None:
        if loss_fn is not None:
            loss_fn(model, data)
            return
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        _build_loss_and_metrics(model, y, call_in_training(model, x))

    with model.distribute_strategy.scope(), autograph_of_keras():
        tf.function(forward, autograph=not KERAS_3).get_concrete_function(element_spec)


def _build_loss_and_metrics(model: Any, y: Any, y_pred: Any) -> None:
    if KERAS_3:
        loss, metrics = model._compile_loss, model._compile_metrics
        if loss is not None and not loss.built:
            # By a call, not by build, which takes targets by the names of the outputs for something else.
            loss(y, y_pred)
        if metrics is not None and not metrics.built:
            metrics.build(y, y_pred)
        return
    if not model.compiled_loss.built:
        model.compiled_loss.build(y_pred)
    if not model.compiled_metrics.built:
        # Targets by the names of the outputs fit a model whose outputs are a list.
        model.compiled_metrics.build(y_pred, model.compiled_metrics._conform_to_outputs(y_pred, y))


def repair_evaluation(model: Any, num_replicas: int) -> None:
    """Lets ``evaluate`` work under Keras 3 with several replicas and ``steps_per_execution`` > 1, where its own loop fails.

    ("You must feed a value for placeholder": the loop's body uses values of replicas that are not its own.) The elements of a
    call are evaluated one by one instead. To be called before the evaluation's first batch; does nothing elsewhere.
    """
    steps = steps_per_execution(model)
    if not KERAS_3 or num_replicas == 1 or steps == 1 or model.run_eagerly or hasattr(model.test_function, "one_by_one"):
        return
    one_element = model._make_function(model.test_step)

    def test_function(iterator: Any) -> Any:
        logs = None
        for _ in range(steps):
            element = iterator.get_next_as_optional()
            if not element.has_value():
                break
            logs = one_element(iter([element.get_value()]))
        if logs is None:
            raise StopIteration
        return logs

    test_function.one_by_one = True  # type: ignore[attr-defined]
    model.test_function = test_function


def restored_train_function(model: Any) -> Any:
    """Keras's own train function, made anew and stored in the model."""
    model.train_function = None
    model.make_train_function()
    return model.train_function


def watch_make_train_function(model: Any, before: Callable[[], None]) -> None:
    """Calls ``before`` whenever Keras asks for a train function: once per ``fit`` and per ``train_on_batch``."""
    unwatch_make_train_function(model)
    original = model.make_train_function

    def make_train_function(*args: Any, **kwargs: Any) -> Any:
        before()
        return original(*args, **kwargs)

    make_train_function.watches = True  # type: ignore[attr-defined]
    object.__setattr__(model, "make_train_function", make_train_function)


def unwatch_make_train_function(model: Any) -> None:
    """Undoes ``watch_make_train_function``; does nothing where it was not called."""
    if hasattr(vars(model).get("make_train_function"), "watches"):
        object.__delattr__(model, "make_train_function")
