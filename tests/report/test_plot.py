"""Pictures are drawn, also of runs that lack something."""

import subprocess
import sys

import pytest

from tf_simigrad.records import UpdateRecord
from tf_simigrad.report import plot

pytestmark = pytest.mark.one_keras

PNG = b"\x89PNG\r\n\x1a\n"
EPOCHS = [
    {"epoch": e + 1, "examples_seen": 640 * (e + 1), "accuracy": 0.5 + e / 20, "val_accuracy": 0.4 + e / 20} for e in range(5)
]


def records(batch_size=32, similarity=0.2):
    return [
        UpdateRecord(batch_size * (i + 1), batch_size, 2, similarity, 100.0, 0.1, 0.1 * (1 + i / 100), False)
        for i in range(100)
    ]


def size(path):
    header = path.read_bytes()[:24]
    assert header.startswith(PNG)
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")


def test_a_run_is_drawn_at_the_width_of_a_page(tmp_path):
    plot.plot_history(records(), EPOCHS, tmp_path / "a.png", "a title", target_similarity=0.2)
    assert size(tmp_path / "a.png") == (900, 1000)


@pytest.mark.parametrize(
    ("some", "epochs"),
    [
        (records(similarity=None), EPOCHS),
        (records(similarity=float("nan")), []),
        (records()[:1], [{"examples_seen": 32, "loss": 1.0}]),
    ],
)
def test_what_is_unknown_is_left_out(tmp_path, some, epochs):
    plot.plot_history(some, epochs, tmp_path / "a.png", "a title")
    assert size(tmp_path / "a.png") == (900, 1000)


def test_runs_are_drawn_over_each_other(tmp_path):
    runs = [plot.Run("one", records(), EPOCHS, 0.2), plot.Run("two", records(512, 0.5), [])]
    plot.plot_runs(runs, tmp_path / "two.png", "two runs")
    assert size(tmp_path / "two.png") == (900, 1000)


@pytest.mark.parametrize("runs", [[], [plot.Run("empty", [], EPOCHS)]])
def test_nothing_to_draw_is_refused(tmp_path, runs):
    with pytest.raises(ValueError, match="nothing to draw"):
        plot.plot_runs(runs, tmp_path / "a.png", "a title")


def test_without_matplotlib_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'tf_simigrad\[plot\]'"):
        plot.plot_history(records(), EPOCHS, tmp_path / "a.png", "a title")


def test_reports_need_neither_tensorflow_nor_matplotlib_to_be_imported():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('tensorflow', 'matplotlib', 'numpy')));"
        "from tf_simigrad.report import history, plot"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
