"""The records that cross the layers."""

import pytest

from tf_simigrad.records import BatchPlan, Moments, UpdateRecord, UpdateReport

pytestmark = pytest.mark.one_keras

REPORT = UpdateReport(
    batch_size=256, micro_steps=4, similarity=0.5, squared_gradient_norm=2.0, noise_trace=256.0, learning_rate=0.1,
    effective_learning_rate=0.2, skipped=False,
)  # fmt: skip

FIELDS = {
    Moments: ("dot", "squared_norm_a", "squared_norm_b", "weight_a", "weight_b", "squared_norm", "weighted_squared_norms",
              "micro_gradients", "examples"),
    UpdateReport: ("batch_size", "micro_steps", "similarity", "squared_gradient_norm", "noise_trace", "learning_rate",
                   "effective_learning_rate", "skipped"),
    UpdateRecord: ("examples_seen", "batch_size", "micro_steps", "similarity", "noise_scale", "learning_rate",
                   "effective_learning_rate", "skipped"),
    BatchPlan: ("micro_steps", "batch_size"),
}


@pytest.mark.parametrize("record", FIELDS)
def test_fields_in_order(record):
    """The order counts: histories are saved as rows."""
    assert record._fields == FIELDS[record]
    assert record._field_defaults == {}


@pytest.mark.parametrize("record", FIELDS)
def test_every_field_is_documented(record):
    assert [name for name in record._fields if f"        {name}: " not in record.__doc__] == []


@pytest.mark.parametrize(
    ("squared_norm", "trace", "noise_scale"),
    [
        (2.0, 256.0, 128.0),
        (0.5, 0.0, 0.0),
        (1e-30, 1e-27, 1000.0),
        (None, 256.0, None),
        (2.0, None, None),
        (None, None, None),
        (0.0, 256.0, None),
        (-1e-9, 256.0, None),
    ],
)
def test_noise_scale_of_a_report(squared_norm, trace, noise_scale):
    report = REPORT._replace(squared_gradient_norm=squared_norm, noise_trace=trace)
    assert report.noise_scale == (noise_scale if noise_scale is None else pytest.approx(noise_scale))


@pytest.mark.parametrize("record", [REPORT, BatchPlan(2, 128)], ids=lambda record: type(record).__name__)
def test_records_cannot_be_changed(record):
    with pytest.raises(AttributeError):
        record.batch_size = 1
    assert record._replace(batch_size=1).batch_size == 1
