"""The records that cross the layers: what the reduction measured, what an update did, what the next one is to do."""

from typing import Any, NamedTuple


class Moments(NamedTuple):
    """What a reduction knows of the gradients of one update. Each field is a float32 scalar tensor.

    Groups A and B are the two halves; gradients here are means over the weight (examples, or what ``loss_fn`` says) of
    what they average, unscaled. A field that the reduction did not measure is NaN.

    Attributes:
        dot: Inner product of the mean gradients of the two groups.
        squared_norm_a: Squared norm of the mean gradient of group A.
        squared_norm_b: Squared norm of the mean gradient of group B.
        weight_a: Weight of group A.
        weight_b: Weight of group B.
        squared_norm: Squared norm of the mean gradient of all.
        weighted_squared_norms: Sum over the micro-gradients of weight times squared norm.
        micro_gradients: Number of micro-gradients with a weight: replicas times micro-steps, less the empty ones.
        examples: Number of examples.
    """

    dot: Any
    squared_norm_a: Any
    squared_norm_b: Any
    weight_a: Any
    weight_b: Any
    squared_norm: Any
    weighted_squared_norms: Any
    micro_gradients: Any
    examples: Any


class UpdateReport(NamedTuple):
    """What one update measured and did, as the host sees it: the input of every policy.

    Args:
        batch_size: Examples that entered the update, over all replicas.
        micro_steps: Micro-batches per replica that entered it.
        similarity: Cosine of the two group gradients in [-1, 1]; None where it was not measurable.
        squared_gradient_norm: Unbiased estimate of the squared norm of the true gradient; may be negative; None if unknown.
        noise_trace: Unbiased estimate of the trace of the per-example gradient covariance; None if unknown.
        learning_rate: Base learning rate, as the optimizer holds it.
        effective_learning_rate: Base learning rate times the multiplier of the rule.
        skipped: True if the gradient was not finite and the weights were left alone.

    Example:

    ```python
    report = sg.UpdateReport(batch_size=256, micro_steps=4, similarity=0.5, squared_gradient_norm=1.0, noise_trace=128.0,
                             learning_rate=0.1, effective_learning_rate=0.1, skipped=False)
    assert report.noise_scale == 128.0
    ```
    """

    batch_size: int
    micro_steps: int
    similarity: float | None
    squared_gradient_norm: float | None
    noise_trace: float | None
    learning_rate: float
    effective_learning_rate: float
    skipped: bool

    @property
    def noise_scale(self) -> float | None:
        """Trace of the gradient covariance over the squared gradient norm, in examples; None where that is undefined."""
        if self.squared_gradient_norm is None or self.noise_trace is None or self.squared_gradient_norm <= 0:
            return None
        return self.noise_trace / self.squared_gradient_norm


class UpdateRecord(NamedTuple):
    """One row of ``AdaptiveBatch.history``: one change of the weights.

    Args:
        examples_seen: Examples seen since training began, this update included, over all replicas.
        batch_size: Examples that entered the update, over all replicas.
        micro_steps: Micro-batches per replica that entered it.
        similarity: Cosine of the two group gradients in [-1, 1]; None where it was not measurable.
        noise_scale: Trace of the gradient covariance over the squared gradient norm, in examples; None where undefined.
        learning_rate: Base learning rate.
        effective_learning_rate: Base learning rate times the multiplier of the rule.
        skipped: True if the gradient was not finite and the weights were left alone.

    Example:

    ```python
    record = sg.UpdateRecord(examples_seen=512, batch_size=256, micro_steps=4, similarity=0.5, noise_scale=128.0,
                             learning_rate=0.1, effective_learning_rate=0.1, skipped=False)
    assert record._asdict()["batch_size"] == 256
    ```
    """

    examples_seen: int
    batch_size: int
    micro_steps: int
    similarity: float | None
    noise_scale: float | None
    learning_rate: float
    effective_learning_rate: float
    skipped: bool


class BatchPlan(NamedTuple):
    """What the host asks of the coming updates.

    Attributes:
        micro_steps: Micro-batches per replica and update.
        batch_size: Examples per update over all replicas, with full micro-batches.
    """

    micro_steps: int
    batch_size: int
