"""From an experiment to a compiled model and its callback."""

import tensorflow as tf

import tf_simigrad as sg
from tf_simigrad.compat.keras_private import KERAS_3
from tf_simigrad.optimizers.patterns import BIASES_AND_NORMS
from tf_simigrad.optimizers.vr_optimizers import RATIO_MOMENTUM

# The length of an epoch where there is no data to count: schedules are built, and nobody looks at their course.
EXAMPLES_WITHOUT_DATA = 1_000_000
# As LARS and LAMB tell them; tf_keras's AdamW looks at names, which end in :0.
NO_DECAY = tuple(pattern.removesuffix("$") + "(:0)?$" for pattern in BIASES_AND_NORMS)


def learning_rate(experiment, examples_per_epoch):
    """A rate or a schedule; schedules are asked at examples_seen // reference_batch_size."""

    def steps(epochs):
        return int(epochs * examples_per_epoch) // experiment.reference_batch_size

    whole, warmup, peak = steps(experiment.epochs), steps(experiment.warmup_epochs), experiment.learning_rate
    schedules = tf.keras.optimizers.schedules
    if experiment.schedule == "cosine":
        after = schedules.CosineDecay(peak, max(whole - warmup, 1))
    elif experiment.schedule == "linear":
        after = schedules.PolynomialDecay(peak, max(whole - warmup, 1), end_learning_rate=0.0)
    elif experiment.schedule == "steps":
        # Keras keeps the rate at the boundary itself, and changes it with the step after it.
        boundaries = [steps(epoch) - warmup - 1 for epoch in experiment.step_epochs]
        after = schedules.PiecewiseConstantDecay(boundaries, [peak / 10**i for i in range(len(boundaries) + 1)])
    else:
        after = peak
    return WarmUp(after, peak, warmup) if warmup else after


@tf.keras.utils.register_keras_serializable("tf_simigrad_tools")
class WarmUp(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Rises in a straight line from 0 to a peak, and then follows another schedule, or stays.

    Args:
        after: A schedule, which is asked from its own step 0 on, or a rate.
        peak: The rate at the end of the warm-up.
        steps: Its length.
    """

    def __init__(self, after, peak, steps):
        self.after, self.peak, self.steps = after, peak, steps

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        after = self.after(tf.maximum(step - self.steps, 0.0)) if callable(self.after) else self.after
        return tf.where(step < self.steps, self.peak * step / self.steps, after)

    @classmethod
    def from_config(cls, config):
        after = config["after"]
        schedule = tf.keras.optimizers.schedules.deserialize(after) if isinstance(after, dict) else after
        return cls(**{**config, "after": schedule})

    def get_config(self):
        return {"after": self.after, "peak": self.peak, "steps": self.steps}


def stateless_sgd(rate, **clip):
    """SGD without momentum. The newer one of tf_keras keeps and multiplies a momentum of every table's size, even one of 0."""
    sgd = tf.keras.optimizers.SGD if KERAS_3 else tf.keras.optimizers.legacy.SGD
    return sgd(rate, momentum=0.0, **clip)


def optimizer(experiment, rate):
    clip = {"global_clipnorm": experiment.global_clipnorm or None}
    decay = experiment.weight_decay
    match experiment.optimizer:
        case "sgd":
            return stateless_sgd(rate, **clip)
        case "lars":
            return sg.LARS(rate, momentum=experiment.momentum, weight_decay=decay, **clip)
        case "lamb":
            return sg.LAMB(rate, weight_decay=decay, **clip)
        case "adam":
            return tf.keras.optimizers.Adam(rate, **clip)
        case "adamw":
            adamw = tf.keras.optimizers.AdamW(rate, weight_decay=decay, **clip)
            adamw.exclude_from_weight_decay(var_names=list(NO_DECAY))
            return adamw
    return tf.keras.optimizers.SGD(rate, momentum=experiment.momentum, **clip)


def transforms(experiment):
    """VRGD first, on the gradient of the loss alone."""
    vrgd = [vrgd_of(experiment)] if experiment.vrgd_gamma else []
    return [*vrgd, *([sg.L2(experiment.l2)] if experiment.l2 else [])]


def vrgd_of(experiment):
    """As the VR optimizers of the package make it: those that build moments average the ratio too."""
    moments = {"ratio_momentum": RATIO_MOMENTUM} if experiment.optimizer in ("adam", "adamw", "lamb") else {}
    return sg.VRGD(gamma=experiment.vrgd_gamma, groups=experiment.vrgd_groups, **moments)


def model(experiment, examples_per_epoch):
    """The compiled model; to be called in the scope of the strategy."""
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16" if experiment.precision == "bfloat16" else "float32")
    built = experiment.task.build()
    built.compile(
        optimizer=optimizer(experiment, learning_rate(experiment, examples_per_epoch)), **experiment.task.compile_arguments()
    )
    return built


def callback(experiment):
    return sg.AdaptiveBatch(
        policy=experiment.policy,
        statistic=experiment.statistic,
        learning_rate_rule=experiment.learning_rate_rule,
        reference_batch_size=experiment.reference_batch_size,
        transform=transforms(experiment),
        loss_fn=experiment.task.loss_fn,
        dense_table_elements=experiment.dense_table_elements,
    )
