"""From an experiment to a compiled model and its callback."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tf_simigrad as sg
from configs.experiment import Experiment
from models import cifar_data, cifar_resnet, digits, input_pipeline


class Task(NamedTuple):
    """What an experiment learns: its network, its data, and what is done to the data."""

    build: Callable[[Experiment], Any]
    load: Callable[[Any], tuple]
    # Shape and type of one example as it is loaded, of one label, and how many examples training has.
    example: tf.TensorSpec
    label: tf.TensorSpec
    examples: int
    standardise: Callable | None = None
    augment: Callable | None = None


TASKS = {
    "digits": Task(
        build=lambda experiment: digits.build(),
        load=lambda data_dir: digits.load(),
        example=tf.TensorSpec([8, 8, 1], tf.float32),
        label=tf.TensorSpec([], tf.int32),
        examples=1437,
    ),
    "cifar10": Task(
        build=lambda experiment: cifar_resnet.build(experiment.depth, width=experiment.width),
        load=cifar_data.load,
        example=tf.TensorSpec([32, 32, 3], tf.uint8),
        label=tf.TensorSpec([], tf.uint8),
        examples=50_000,
        standardise=input_pipeline.standardise_cifar10,
        augment=input_pipeline.crop_and_flip,
    ),
}


def element_spec(task, micro_batch_size):
    """What the input pipeline of a task gives one replica for each micro-step."""
    zeros = [np.zeros([micro_batch_size, *spec.shape], spec.dtype.as_numpy_dtype) for spec in (task.example, task.label)]
    dataset = input_pipeline.epochs_dataset(*zeros, micro_batch_size, 0, augment=task.augment, standardise=task.standardise)
    return dataset.element_spec


def learning_rate(experiment, examples_per_epoch):
    """A rate or a schedule; schedules are asked at examples_seen // reference_batch_size."""
    steps = experiment.epochs * examples_per_epoch // experiment.reference_batch_size
    warmup = int(experiment.warmup_epochs * examples_per_epoch) // experiment.reference_batch_size
    peak = experiment.learning_rate
    schedules = tf.keras.optimizers.schedules
    if experiment.schedule == "cosine":
        if warmup:
            return schedules.CosineDecay(0.0, max(steps - warmup, 1), warmup_target=peak, warmup_steps=warmup)
        return schedules.CosineDecay(peak, max(steps, 1))
    return schedules.PolynomialDecay(0.0, warmup, end_learning_rate=peak) if warmup else peak


def optimizer(experiment, rate):
    if experiment.optimizer == "lars":
        return sg.LARS(rate, momentum=experiment.momentum, weight_decay=experiment.l2)
    return tf.keras.optimizers.SGD(rate, momentum=experiment.momentum)


def transforms(experiment):
    """VRGD first, on the gradient of the loss alone; LARS decays by itself."""
    vrgd = [sg.VRGD(gamma=experiment.vrgd_gamma)] if experiment.vrgd_gamma else []
    l2 = [sg.L2(experiment.l2)] if experiment.l2 and experiment.optimizer != "lars" else []
    return [*vrgd, *l2]


def model(experiment, examples_per_epoch):
    """The compiled model; to be called in the scope of the strategy."""
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16" if experiment.precision == "bfloat16" else "float32")
    built = TASKS[experiment.task].build(experiment)
    built.compile(
        optimizer=optimizer(experiment, learning_rate(experiment, examples_per_epoch)),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
    )
    return built


def callback(experiment):
    return sg.AdaptiveBatch(
        policy=experiment.policy,
        statistic=experiment.statistic,
        learning_rate_rule=experiment.learning_rate_rule,
        reference_batch_size=experiment.reference_batch_size,
        transform=transforms(experiment),
    )
