"""A history comes back as it was written, and is summed up rightly."""

import math

import pytest

from tf_simigrad.records import UpdateRecord
from tf_simigrad.report import history

pytestmark = pytest.mark.one_keras


def record(seen, batch_size, micro_steps, similarity=0.25, skipped=False):
    return UpdateRecord(seen, batch_size, micro_steps, similarity, 1 / 3, 0.1, 0.1 * math.sqrt(2), skipped)


RECORDS = [
    record(32, 32, 2, None),
    record(64, 32, 2, -0.123456789012345),
    record(112, 48, 3, skipped=True),
    record(176, 64, 4),
    record(192, 16, 1, 1e-30),
]


def test_records_come_back_equal(tmp_path):
    history.write_history(tmp_path / "history.csv", RECORDS)
    assert history.read_history(tmp_path / "history.csv") == RECORDS
    assert [type(value) for value in history.read_history(tmp_path / "history.csv")[0]] == [type(value) for value in RECORDS[0]]
    assert [path.name for path in tmp_path.iterdir()] == ["history.csv"]


def test_the_header_names_the_fields(tmp_path):
    history.write_history(tmp_path / "history.csv", [])
    assert (tmp_path / "history.csv").read_text() == ",".join(UpdateRecord._fields) + "\n"
    assert history.read_history(tmp_path / "history.csv") == []


def test_values_that_are_not_finite_come_back(tmp_path):
    history.write_history(tmp_path / "history.csv", [record(1, 1, 1, math.inf), record(2, 1, 1, math.nan)])
    first, second = history.read_history(tmp_path / "history.csv")
    assert first.similarity == math.inf
    assert math.isnan(second.similarity)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "lacks the columns examples_seen, batch_size"),
        (",".join(UpdateRecord._fields) + "\n1,2,3,4,5,6,7,0\n1,x,3,4,5,6,7,0\n", "line 3: .*'x'"),
        (",".join(UpdateRecord._fields) + "\n1,2,3\n", "line 2"),
    ],
)
def test_what_is_no_history_is_refused(tmp_path, text, message):
    (tmp_path / "history.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        history.read_history(tmp_path / "history.csv")


def test_epochs_come_back_equal(tmp_path):
    epochs = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 1 / 3, "val_accuracy": 0.75}]
    history.write_epochs(tmp_path / "epochs.csv", epochs)
    assert history.read_epochs(tmp_path / "epochs.csv") == epochs
    assert type(history.read_epochs(tmp_path / "epochs.csv")[0]["epoch"]) is int


def test_what_are_no_epochs_is_refused(tmp_path):
    (tmp_path / "epochs.csv").write_text("epoch\none\n")
    with pytest.raises(ValueError, match="epochs.csv: .*'one'.*rows of numbers"):
        history.read_epochs(tmp_path / "epochs.csv")


def test_summary():
    # 2, 2, 3, 4 micro-steps: two changes; the last update, of one, may be a flush.
    assert history.summarise(RECORDS) == {
        "updates": 4,
        "skipped_updates": 1,
        "examples_seen": 192,
        "mean_batch_size": 36.0,
        "max_batch_size": 64,
        "batch_changes": 2,
    }


def test_summary_of_nothing():
    assert history.summarise([])["updates"] == 0
    assert history.summarise([])["mean_batch_size"] is None


def test_running_median():
    assert history.running_median([1, 9, 2, 8, 3], 3) == [5, 2, 8, 3, 5.5]
    assert history.running_median([1, 9, 2, 8], 1) == [1, 9, 2, 8]
    assert history.running_median([1, None, math.nan, 8], 3) == [1, 1, 8, 8]
    assert history.running_median([None, None], 5) == [None, None]
    with pytest.raises(ValueError, match="width=0"):
        history.running_median([1], 0)
