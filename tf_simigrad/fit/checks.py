"""What the callback refuses, and what it warns of, before training starts."""

import logging
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_simigrad.compat import keras3_workers, keras_optimizer, keras_private
from tf_simigrad.control.policy import Policy
from tf_simigrad.distribute.replicas import Replicas, check_strategy
from tf_simigrad.optimizers.transforms import Transform
from tf_simigrad.optimizers.vrgd import VRGD

_LOG = logging.getLogger("tf_simigrad")


def check_model(model: Any, has_loss_fn: bool) -> None:
    """Raises a ValueError for a model, optimizer or strategy under which the results would be wrong.

    Args:
        model: What ``set_model`` was given.
        has_loss_fn: Whether the callback was given a ``loss_fn``.
    """
    _check_keras(model)
    check_strategy(model.distribute_strategy)
    check_workers_of_keras3(keras3_workers.is_needed(model.distribute_strategy))
    if keras_private.overrides_train_step(model) and not has_loss_fn:
        raise ValueError(
            f"{type(model).__name__} overrides train_step, which AdaptiveBatch would replace: it cannot know that loss. "
            "Pass AdaptiveBatch(..., loss_fn=lambda model, data: <mean loss of one micro-batch>), or override compute_loss "
            "instead of train_step."
        )
    _check_optimizer(model)
    replicas = Replicas(model.distribute_strategy)
    if replicas.is_compiled:
        _check_for_tpu(model)
    elif model.jit_compile and replicas.count > 1:
        raise ValueError(
            "jit_compile=True with several replicas does not work in either Keras off TPU (a compiled function may not use "
            "variables of another device). Compile the model with jit_compile=False."
        )
    if not has_loss_fn:
        _check_losses(model)


def _check_for_tpu(model: Any) -> None:
    if keras_private.KERAS_3:
        raise ValueError(
            "AdaptiveBatch does not support TPUStrategy under Keras 3, whose own fit has open reports there (keras#21061). Set "
            "TF_USE_LEGACY_KERAS=1 before importing TensorFlow, and build the model with tf_keras."
        )
    if model.run_eagerly:
        raise ValueError("run_eagerly=True does not work under TPUStrategy, whose programs are compiled. Leave it out.")
    if keras_optimizer.has_loss_scale(model.optimizer):
        raise ValueError(
            "A LossScaleOptimizer does not work under TPUStrategy in tf_keras, and TPUs do not need one: use the policy "
            "mixed_bfloat16, whose range is that of float32, in place of mixed_float16."
        )


def check_static_shapes(element_spec: Any) -> None:
    """Raises a ValueError for dataset elements that no program compiled for a TPU can take.

    Args:
        element_spec: Of one dataset element as a replica sees it; None where it is not known.
    """
    if element_spec is None:
        raise ValueError(
            "Under TPUStrategy give fit a tf.data.Dataset whose elements are of one size: batch(..., drop_remainder=True)."
        )
    for spec in tf.nest.flatten(element_spec):
        if not isinstance(spec, tf.TensorSpec):
            raise ValueError(f"Elements of the dataset hold a {type(spec).__name__}, {spec}. A TPU takes dense tensors only.")
        if not spec.shape.is_fully_defined():
            raise ValueError(
                f"An element of the dataset has the shape {spec.shape}, and a TPU's program needs to know it beforehand. "
                "Give the dataset elements of one size: batch(micro_batch_size * replicas, drop_remainder=True), and pad or "
                "crop other dimensions (padded_batch with padded_shapes, tf.ensure_shape)."
            )
        if spec.dtype == tf.string:
            raise ValueError("An element of the dataset holds strings, which a TPU cannot take. Make them numbers in its map.")


def check_workers_of_keras3(needs_repair: bool) -> None:
    """Raises a ValueError if Keras 3 is to train with several workers and has not been repaired for it."""
    if needs_repair:
        raise ValueError(
            "Keras 3 as released cannot train under MultiWorkerMirroredStrategy (keras#20585). Call "
            "tf_simigrad.enable_keras3_multi_worker() first, or use tf_keras (TF_USE_LEGACY_KERAS=1)."
        )


def _check_optimizer(model: Any) -> None:
    if model.optimizer is None:
        raise ValueError("The model was compiled without an optimizer. Pass one: model.compile(optimizer=..., loss=...).")
    if keras_optimizer.is_several(model.optimizer):
        raise ValueError(
            "MultiOptimizer is not supported: its parts have learning rates of their own, which the rule would not reach. Use "
            "one optimizer for all variables."
        )
    if keras_optimizer.is_broken_nadam(model.optimizer) and model.distribute_strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "tf_keras's Nadam gives NaN on several replicas once its variables are built before the first step. Use Adam, one "
            "replica, or Keras 3."
        )
    steps = keras_optimizer.accumulation_steps(model.optimizer)
    if steps:
        raise ValueError(
            f"The optimizer accumulates gradients by itself (gradient_accumulation_steps={steps}). AdaptiveBatch accumulates, "
            "and decides how often; construct the optimizer without gradient_accumulation_steps."
        )


def _check_keras(model: Any) -> None:
    if not isinstance(model, keras_private.keras.Model):
        other = 0 if keras_private.name_of_keras() == "tf_keras" else 1
        raise ValueError(
            f"This model is a {type(model).__module__}.{type(model).__name__}, but tf.keras of this process is "
            f"{keras_private.name_of_keras()}. Set TF_USE_LEGACY_KERAS={other} before importing TensorFlow: both must be one."
        )
    if keras_private.backend() != "tensorflow":
        raise ValueError(
            f"AdaptiveBatch needs Keras on TensorFlow, not on {keras_private.backend()!r}. Set KERAS_BACKEND=tensorflow."
        )
    if keras_private.keras_distribution() is not None:
        raise ValueError(
            "AdaptiveBatch does not support keras.distribution: there the replicas' gradients are never seen apart. Build the "
            "model under tf.distribute.MirroredStrategy instead."
        )


def _check_losses(model: Any) -> None:
    for loss in tf.nest.flatten(model.loss):
        reduction = getattr(loss, "reduction", None)
        if hasattr(loss, "reduction") and reduction in ("sum", "none", None, "mean_with_sample_weight"):
            raise ValueError(
                f"The loss {loss.name!r} has reduction={reduction!r}, which is no mean over examples: micro-batches of it do "
                "not average to the large batch. Use reduction='sum_over_batch_size', or a loss_fn that returns (mean, weight)."
            )


def warn_of(model: Any, replicas: Replicas, has_loss_fn: bool) -> None:
    """Logs what a user may want to know about this model. To be called once it is built."""
    penalised = keras_private.regularised_layers(model)
    if penalised:
        _LOG.warning(
            "The layers %s add weight penalties to the loss: the same vector in both groups, which inflates the "
            "similarity. Use AdaptiveBatch(transform=sg.L2(...)) in their place.",
            ", ".join(penalised),
        )
    dependent = keras_private.batch_dependent_layers(model)
    if dependent:
        _LOG.warning(
            "The layers %s normalise over the micro-batch of each replica, whatever the batch size is.", ", ".join(dependent)
        )
    if keras_private.has_masked_outputs(model) and not has_loss_fn:
        _LOG.warning(
            "An output of the model is masked: its loss is a mean over what is not masked in each micro-batch, and the update "
            "weighs micro-batches by their examples. For the mean over all, pass loss_fn=... that returns (mean_loss, weight)."
        )
    if has_loss_fn:
        _LOG.info("With a loss_fn, metrics given to compile or updated in train_step are not updated; the loss is.")
    if keras_private.overrides_compute_metrics(model):
        _LOG.warning(
            "%s overrides compute_metrics: it is called, but the logs hold the results of model.metrics only.",
            type(model).__name__,
        )
    if replicas.count > 1:
        _LOG.info(
            "%d replicas under %s: groups of %d and %d.",
            replicas.count,
            replicas.name,
            replicas.count // 2,
            replicas.count - replicas.count // 2,
        )


def transforms_of(transform: Transform | VRGD | Sequence[Transform | VRGD] | None) -> list[Transform | VRGD]:
    """The transforms that the callback was given, as a list.

    Raises:
        ValueError: If one is none, or a ``VRGD`` does not come first.
    """
    if transform is None:
        return []
    transforms: list[Any] = list(transform) if isinstance(transform, (list, tuple)) else [transform]
    for item in transforms:
        if not isinstance(item, (Transform, VRGD)):
            raise ValueError(
                f"transform={item!r} is no Transform. Pass sg.VRGD(...), sg.L2(...), an instance of your own subclass of "
                "sg.Transform, or a list of them."
            )
    if any(isinstance(item, VRGD) for item in transforms[1:]):
        raise ValueError(
            "VRGD must be the first transform, and the only VRGD: it compares the groups of the batch, which the transforms "
            f"after it do not see any more. Got {[type(item).__name__ for item in transforms]}; put VRGD in front."
        )
    return transforms


def fewest_micro_steps(policy: Policy, transforms: Sequence[Transform | VRGD], replicas: int) -> tuple[int, str]:
    """The fewest micro-steps that an update may have, and why; (1, "") where nothing forbids one.

    Raises:
        ValueError: If no number of micro-steps gives a ``VRGD`` enough groups.
    """
    fewest, reason = (
        (2, "the similarity compares two groups of gradients") if policy.needs_similarity and replicas == 1 else (1, "")
    )
    vrgd = next((t for t in transforms if isinstance(t, VRGD)), None)
    if vrgd is None:
        return fewest, reason
    if vrgd.groups == "replicas" and replicas < vrgd.FEWEST_GROUPS:
        raise ValueError(
            f"VRGD(groups='replicas') needs {vrgd.FEWEST_GROUPS} replicas or more, {vrgd.RECOMMENDED_GROUPS} are recommended; "
            f"there are {replicas}. Pass groups='micro_steps', by which each micro-step of each replica is a group."
        )
    if vrgd.groups == "replicas":
        return fewest, reason
    needed = -(-vrgd.FEWEST_GROUPS // replicas)
    return (needed, f"VRGD compares {vrgd.FEWEST_GROUPS} groups of gradients or more") if needed > fewest else (fewest, reason)
