"""What an experiment is made of."""

import dataclasses
from typing import Any

import tf_simigrad as sg
from models.tasks import TASKS
from models.tasks.base import Task
from tf_simigrad.fit.limits import DENSE_TABLE_ELEMENTS

CHOICES = {
    "optimizer": ("sgd", "momentum", "adam", "adamw", "lars", "lamb"),
    "schedule": ("constant", "cosine", "linear", "steps"),
    "precision": ("float32", "bfloat16"),
    "statistic": ("two_groups", "two_groups_by_variable", "all_pairs"),
    "learning_rate_rule": ("sqrt", "linear", "adascale", "none"),
    "vrgd_groups": ("micro_steps", "replicas"),
}
AT_LEAST_ONE = ("epochs", "micro_batch_size", "reference_batch_size", "validation_batch_size")
NOT_NEGATIVE = (
    "max_updates", "seed", "learning_rate", "momentum", "l2", "weight_decay", "global_clipnorm", "vrgd_gamma", "warmup_epochs",
    "examples_per_epoch", "validation_examples", "dense_table_elements",
)  # fmt: skip
DECAYS_BY_ITSELF = ("adamw", "lars", "lamb")
POLICIES = ("SimiGrad", "NoiseScale", "FixedBatch")


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One training run; what can be derived (replicas, steps, updates) is not said.

    Attributes:
        name: Names the folder of results.
        task: What is learned, with its settings: one of `models.tasks`.
        policy: A policy of tf_simigrad: SimiGrad, NoiseScale, FixedBatch.
        epochs: Passes over the training examples, or over so many of them:
        examples_per_epoch: Examples of an epoch, after each of which the run validates and saves; 0: all there are.
        micro_batch_size: Examples per replica in one forward and backward pass.
        reference_batch_size: The batch size that `learning_rate` is meant for, over all replicas.
        learning_rate: At its highest.
        optimizer: "sgd" (without momentum), "momentum" (SGD with it), "adam", "adamw", "lars" or "lamb".
        momentum: Of momentum and LARS; the others do not use it.
        l2: Weight of the coupled L2 penalty of SGD, momentum and Adam: gradient += l2 * weight.
        weight_decay: Of AdamW (decoupled), LARS and LAMB (inside the trust ratio); not of biases and normalisations.
        global_clipnorm: The mean gradient of an update is scaled down to this norm; 0: it is not.
        vrgd_gamma: Lower clip of VRGD, 0.1 in the paper; 0: without VRGD.
        vrgd_groups: What VRGD compares, "micro_steps" or "replicas".
        schedule: "constant", or over the examples seen "cosine" or "linear" (both to 0) or "steps".
        step_epochs: The epochs after which "steps" divides the rate by ten.
        warmup_epochs: Length of a linear warm-up, part of `epochs`.
        statistic: What is measured of the gradients: "two_groups", "two_groups_by_variable" or "all_pairs".
        learning_rate_rule: How the rate follows the batch size: "sqrt", "linear", "adascale" or "none".
        precision: Of the forward and backward pass, "float32" or "bfloat16" (for TPUs); weights and statistics are float32.
        dense_table_elements: Gradients of embedding tables with more elements are kept as rows; see `AdaptiveBatch`.
        seed: Of weights, order and augmentation.
        max_updates: Ends training after this many updates; 0: no limit.
        validation_batch_size: Examples in one element of the validation data, over all replicas.
        validation_examples: The first so many of the validation data are used; 0: all.
        deterministic: Whether TensorFlow uses deterministic kernels only: runs repeat to the bit, and are slower.
    """

    name: str
    task: Task
    policy: Any
    epochs: int
    micro_batch_size: int
    reference_batch_size: int
    learning_rate: float
    examples_per_epoch: int = 0
    optimizer: str = "momentum"
    momentum: float = 0.9
    l2: float = 0.0
    weight_decay: float = 0.0
    global_clipnorm: float = 0.0
    vrgd_gamma: float = 0.0
    vrgd_groups: str = "micro_steps"
    schedule: str = "cosine"
    step_epochs: tuple = ()
    warmup_epochs: float = 0.0
    statistic: str = "two_groups"
    learning_rate_rule: str = "sqrt"
    precision: str = "float32"
    dense_table_elements: int = DENSE_TABLE_ELEMENTS
    seed: int = 0
    max_updates: int = 0
    validation_batch_size: int = 500
    validation_examples: int = 0
    deterministic: bool = False

    def __post_init__(self):
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(choices)}")
        for names, least in ((AT_LEAST_ONE, 1), (NOT_NEGATIVE, 0)):
            for name in names:
                if not getattr(self, name) >= least:
                    raise ValueError(f"{name}={getattr(self, name)}: expected {least} or more")
        if not isinstance(self.task, Task):
            raise ValueError(f"task={self.task!r}: expected one of models.tasks, such as Cifar10(network='resnet20')")
        if not dataclasses.is_dataclass(self.policy):
            raise ValueError(f"policy={self.policy!r}: expected a policy such as FixedBatch(batch_size=128)")
        self._check_schedule()
        self._check_decay()

    def _check_schedule(self):
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs={self.warmup_epochs}: expected fewer than epochs={self.epochs}")
        if (self.schedule == "steps") != bool(self.step_epochs):
            raise ValueError(f"schedule={self.schedule!r}, step_epochs={self.step_epochs}: one needs the other")
        steps = (self.warmup_epochs, *self.step_epochs, self.epochs)
        if self.step_epochs and list(steps) != sorted(set(steps)):
            raise ValueError(f"step_epochs={self.step_epochs}: expected to rise between warm-up and epochs={self.epochs}")

    def _check_decay(self):
        by_itself = self.optimizer in DECAYS_BY_ITSELF
        if by_itself and self.l2:
            raise ValueError(f"l2={self.l2}: {self.optimizer} decays by itself; set weight_decay, and l2 to 0")
        if not by_itself and self.weight_decay:
            raise ValueError(f"weight_decay={self.weight_decay}: {self.optimizer} has none; set l2, and weight_decay to 0")

    def as_dict(self) -> dict:
        """Everything as JSON can hold it; task and policy with their class names under "type"."""
        return {**dataclasses.asdict(self), "task": _typed(self.task), "policy": _typed(self.policy)}

    @classmethod
    def from_dict(cls, values: dict) -> "Experiment":
        """The experiment that `as_dict` gave, as read from JSON.

        Raises:
            ValueError: If it is of another version: it names what this one does not know.
        """
        tasks = {task.__name__: task for task in TASKS}
        try:
            task, policy = dict(values["task"]), dict(values["policy"])
            kinds = tasks[task.pop("type")], getattr(sg, policy.pop("type"))
            nested = {"task": kinds[0](**task), "policy": kinds[1](**policy)}
            return cls(**{**values, **nested, "step_epochs": tuple(values["step_epochs"])})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is no experiment of this version of tf_simigrad: {error!r}") from error


def _typed(instance) -> dict:
    return {"type": type(instance).__name__, **dataclasses.asdict(instance)}
