"""VRGD: the gradient signal to noise ratio scales the mean gradient, element by element, before the optimizer."""

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_simigrad.core import gsnr

GROUPS = ("micro_steps", "replicas")


class VRGD:
    """Multiplies each element of the mean gradient by how sure the groups of the batch are of it.

    The batch is made of k groups, each with a mean gradient ``g_d``. Elementwise, with ``g`` their mean and ``s`` their biased
    variance, ``r = g^2 / s``, divided by its mean in the layer (a variable), clipped to ``[gamma, upper]``; the optimizer
    gets ``r g``. With ``ratio_momentum`` b the factor is the moving average ``p <- b p + (1 - b) r``, unbiased.

    It goes with every optimizer: pass it as ``AdaptiveBatch(transform=...)``, before others. The similarity is that of
    the gradient before it; the optimizer's clipping acts after it. Elements whose gradient is 0 (rows of an embedding that no
    example touched) are left out of the layer's mean. With fewer than 4 groups the ratio has no finite mean: the plan's minimum
    is raised to 4, and an update that is shorter (the flush at the end of training) is left unscaled. The ratio can only shrink
    a step where ``upper`` is 1: in noisy layers its mean is about a half, a hidden cut of the learning rate for SGD and
    momentum, which LARS, LAMB and Adam cancel; the logs have it (``vrgd_multiplier``, ``vrgd_groups``).

    Args:
        gamma: Lower clip, between 0 and 1; 1 leaves the gradient as it is.
        upper: Upper clip, ``gamma`` or more; 1 is the paper's.
        ratio_momentum: b above, in [0, 1). The paper has 0 for SGD, momentum and LARS, 0.9 for Adam and LAMB.
        groups: "micro_steps": every micro-gradient of every replica is a group, k = replicas x micro-steps; costs one more
            gradient sum in memory and, on several replicas, half as many bytes again per update. "replicas": each replica's
            gradient is one, k = replicas, at no extra bytes and no extra sum; for 8 replicas or more.

    Raises:
        ValueError: If an argument is out of its range; from ``fit``, if there cannot be 4 groups.

    Example:

    ```python
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer=tf.keras.optimizers.SGD(0.01, momentum=0.9), loss="mse")
    x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(batch_size=64), transform=sg.VRGD(gamma=0.1))
    logs = model.fit(x, x.sum(axis=1), batch_size=8, verbose=0, callbacks=[adaptive]).history
    assert logs["vrgd_groups"] == [8.0] and 0.1 <= logs["vrgd_multiplier"][0] <= 1.0
    ```

    References:
        Jiang, Liu, Ding, Guo, Lin: "Accelerating Large Batch Training via Gradient Signal to Noise Ratio (GSNR)", arXiv
        2309.13681, eq. 2 and 7 to 10. The momentum is the one of VR-Adam there, with a bias correction.
    """

    FEWEST_GROUPS = 4
    RECOMMENDED_GROUPS = 8

    def __init__(
        self, gamma: float = 0.1, upper: float = 1.0, ratio_momentum: float = 0.0, groups: str = "micro_steps"
    ) -> None:
        if not _is_number(gamma) or not 0 < gamma <= 1:
            raise ValueError(f"VRGD: gamma={gamma!r} must be above 0 and at most 1; the paper has 0.1 everywhere.")
        if not _is_number(upper) or upper < gamma:
            raise ValueError(f"VRGD: upper={upper!r} must be a finite number, gamma={gamma} or more; the paper has 1.")
        if not _is_number(ratio_momentum) or not 0 <= ratio_momentum < 1:
            raise ValueError(f"VRGD: ratio_momentum={ratio_momentum!r} must be 0 or more and below 1, such as 0.9.")
        if groups not in GROUPS:
            raise ValueError(f"VRGD: groups={groups!r} is not known. Pass one of {', '.join(map(repr, GROUPS))}.")
        self.gamma = float(gamma)
        self.upper = float(upper)
        self.ratio_momentum = float(ratio_momentum)
        self.groups = groups
        self.keeps_raw = False
        self._raw: list[Any] = []
        self._averages: list[Any] = []
        self._updates: Any = None

    @property
    def variables(self) -> list[Any]:
        """State of each replica: the moving averages of its shards, and the number of updates that they are over."""
        return [*self._averages, self._updates] if self.ratio_momentum else []

    @property
    def has_state_of_elements(self) -> bool:
        """Whether it keeps numbers of each element from update to update."""
        return bool(self.ratio_momentum) or self.keeps_raw

    @property
    def kept_variables(self) -> list[Any]:
        """All variables that it has made: its state, and the raw gradients that it keeps for an optimizer."""
        return [*self.variables, *self._raw]

    def build(
        self,
        shard_shapes: Sequence[Sequence[int]],
        shapes: Sequence[tf.TensorShape],
        make_variable: Callable[[Sequence[int], str], Any],
    ) -> None:
        """Makes the state anew.

        Args:
            shard_shapes: Of one replica's shard of each variable.
            shapes: Of the variables.
            make_variable: ``make_variable(shape, name)``: float32 zeros of which every replica has its own.
        """
        if self.ratio_momentum:
            self._averages = [make_variable(shape, "vrgd_ratio") for shape in shard_shapes]
            self._updates = make_variable([], "vrgd_updates")
        if self.keeps_raw:
            self._raw = [make_variable(shape, "raw_gradient") for shape in shapes]

    def keep_raw(self, gradients: Sequence[tf.Tensor]) -> None:
        """Keeps the mean gradients as they were before, for an optimizer that asks for them. Replica context."""
        for variable, gradient in zip(self._raw, gradients, strict=True):
            variable.assign(gradient)

    def raw_gradient(self, index: int) -> tf.Tensor:
        """What was kept of the variable at that place: the mean gradient before VRGD, float32. Where a variable is updated."""
        return self._raw[index].value()

    def report_size(self, variables: int) -> int:
        """Length of what ``adapted`` reports for so many variables."""
        return 2 + variables

    def adapted(self, shards: Any, total: Callable[[tf.Tensor], tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Multiplies the mean gradient on its shards. Replica context, inside the reduction.

        Args:
            shards: ``distribute.reduction_records.Shards``.
            total: The sum over all replicas of a float32 vector.

        Returns:
            The gradients, and what is reported: the number of groups, the mean multiplier of all, and that of each variable,
            over the elements whose gradient is not 0.
        """
        layers = len(shards.means)
        sums = tf.reshape(total(tf.reshape(gsnr.layer_sums(shards.means, shards.variances), [-1])), [layers, 2])
        factors = gsnr.multipliers(shards.means, shards.variances, sums, tf.constant(self.gamma), tf.constant(self.upper))
        enough = shards.groups >= self.FEWEST_GROUPS
        if self.ratio_momentum:
            factors = self._averaged(factors, tf.logical_and(shards.is_usable, enough))
        gradients, multiplied = gsnr.scaled(shards.means, factors, enough)
        of_layers = total(multiplied)
        means = tf.math.divide_no_nan(of_layers, sums[:, 1])
        whole = tf.math.divide_no_nan(tf.reduce_sum(of_layers), tf.reduce_sum(sums[:, 1]))
        return gradients, tf.concat([[shards.groups, whole], means], axis=0)

    def _averaged(self, factors: list[tf.Tensor], is_kept: tf.Tensor) -> list[tf.Tensor]:
        """The bias-corrected average; the state of an update that is not applied stays what it was."""
        updates = self._updates + 1.0
        before = [tf.convert_to_tensor(v) for v in self._averages]
        after = gsnr.averaged(before, factors, tf.constant(self.ratio_momentum))
        for variable, old, new in zip(self._averages, before, after, strict=True):
            variable.assign(tf.where(is_kept, new, old))
        self._updates.assign(tf.where(is_kept, updates, updates - 1.0))
        return [new / (1.0 - self.ratio_momentum**updates) for new in after]


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
