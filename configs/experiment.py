"""What an experiment is made of."""

import dataclasses
from typing import Any

CHOICES = {
    "task": ("digits", "cifar10"),
    "optimizer": ("momentum", "lars"),
    "schedule": ("constant", "cosine"),
    "precision": ("float32", "bfloat16"),
    "statistic": ("two_groups", "two_groups_by_variable", "all_pairs"),
    "learning_rate_rule": ("sqrt", "linear", "adascale", "none"),
}
AT_LEAST_ONE = ("epochs", "micro_batch_size", "reference_batch_size", "validation_batch_size", "width")
NOT_NEGATIVE = ("max_updates", "seed", "learning_rate", "momentum", "l2", "vrgd_gamma", "warmup_epochs")


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One training run; what can be derived (replicas, steps, updates) is not said.

    Attributes:
        name: Names the folder of results.
        task: "digits" (scikit-learn's, a small convolutional network) or "cifar10" (a ResNet, standard augmentation).
        policy: A policy of tf_simigrad: SimiGrad, NoiseScale, FixedBatch.
        epochs: Passes over the training examples.
        micro_batch_size: Examples per replica in one forward and backward pass.
        reference_batch_size: The batch size that `learning_rate` is meant for, over all replicas.
        learning_rate: At its highest.
        optimizer: "momentum" (SGD) or "lars".
        momentum: Of either.
        l2: Weight of the coupled L2 penalty: gradient += l2 * weight. With LARS its weight decay, inside the trust ratio.
        vrgd_gamma: Lower clip of VRGD, 0.1 in the paper; 0: without VRGD.
        schedule: "constant" or "cosine", over the examples seen.
        warmup_epochs: Length of a linear warm-up, part of `epochs`.
        statistic: What is measured of the gradients: "two_groups", "two_groups_by_variable" or "all_pairs".
        learning_rate_rule: How the rate follows the batch size: "sqrt", "linear", "adascale" or "none".
        precision: Of the forward and backward pass, "float32" or "bfloat16" (for TPUs); weights and statistics are float32.
        depth: Of the ResNet, 6n + 2.
        width: Channels of its first stage.
        seed: Of weights, order and augmentation.
        max_updates: Ends training after this many updates; 0: no limit.
        validation_batch_size: Examples in one element of the validation data, over all replicas.
        deterministic: Whether TensorFlow uses deterministic kernels only: runs repeat to the bit, and are slower.
    """

    name: str
    task: str
    policy: Any
    epochs: int
    micro_batch_size: int
    reference_batch_size: int
    learning_rate: float
    optimizer: str = "momentum"
    momentum: float = 0.9
    l2: float = 0.0
    vrgd_gamma: float = 0.0
    schedule: str = "cosine"
    warmup_epochs: float = 0.0
    statistic: str = "two_groups"
    learning_rate_rule: str = "sqrt"
    precision: str = "float32"
    depth: int = 20
    width: int = 16
    seed: int = 0
    max_updates: int = 0
    validation_batch_size: int = 500
    deterministic: bool = False

    def __post_init__(self):
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(choices)}")
        for names, least in ((AT_LEAST_ONE, 1), (NOT_NEGATIVE, 0)):
            for name in names:
                if not getattr(self, name) >= least:
                    raise ValueError(f"{name}={getattr(self, name)}: expected {least} or more")
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs={self.warmup_epochs}: expected fewer than epochs={self.epochs}")
        if self.depth < 8 or (self.depth - 2) % 6:
            raise ValueError(f"depth={self.depth}: expected 6n + 2: 8, 14, 20, 32, 44, 56, 110, ...")
        if not dataclasses.is_dataclass(self.policy):
            raise ValueError(f"policy={self.policy!r}: expected a policy such as FixedBatch(batch_size=128)")

    def as_dict(self) -> dict:
        """Everything as JSON can hold it; the policy with its class name under "type"."""
        return {**dataclasses.asdict(self), "policy": {"type": type(self.policy).__name__, **dataclasses.asdict(self.policy)}}
