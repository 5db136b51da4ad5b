"""The picture of a run: batch size, similarity, learning rate and its quality over the examples seen."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tf_simigrad.records import UpdateRecord
from tf_simigrad.report.history import running_median

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MEDIAN_SHARE = 40
"""A window of the running median is one part in so many of the run."""


class Run(NamedTuple):
    """One run to draw.

    Args:
        label: Its name in the legend.
        records: ``AdaptiveBatch.history``.
        epochs: One mapping per epoch with ``examples_seen`` and, where known, the measure and ``val_`` and its name.
        target_similarity: The similarity the policy holds, or None.
        measure: What the quality of the run is read from.
    """

    label: str
    records: Sequence[UpdateRecord]
    epochs: Sequence[Mapping[str, float]]
    target_similarity: float | None = None
    measure: str = "accuracy"


def plot_history(
    records: Sequence[UpdateRecord],
    epochs: Sequence[Mapping[str, float]],
    path: str | os.PathLike,
    title: str,
    target_similarity: float | None = None,
    measure: str = "accuracy",
) -> None:
    """Draws one run as a PNG.

    Args:
        records: ``AdaptiveBatch.history``.
        epochs: One mapping per epoch with ``examples_seen`` and, where known, the measure and ``val_`` and its name.
        path: The file to write.
        title: Stands above the picture.
        target_similarity: The similarity the policy holds, or None.
        measure: What the quality of the run is read from.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    plot_runs([Run(title, records, epochs, target_similarity, measure)], path, title)


def plot_runs(runs: Sequence[Run], path: str | os.PathLike, title: str) -> None:
    """Draws several runs over each other as a PNG.

    Args:
        runs: What to draw; with more than one, a legend names them.
        path: The file to write.
        title: Stands above the picture.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If there is no run to draw, or a run has no updates.
    """
    empty = [run.label for run in runs if not run.records]
    if empty or not runs:
        raise ValueError(f"nothing to draw: {', '.join(empty) or 'no run'} has no updates; train for one update at least")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("drawing needs matplotlib: pip install 'tf_simigrad[plot]'") from error
    # A figure of its own and not pyplot's: no global state, no display, and a notebook's backend stays as it is.
    figure = Figure(figsize=(9, 10), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(4, 1, sharex=True)
    for index, run in enumerate(runs):
        colour = _COLOURS[index % len(_COLOURS)]
        _draw_batch_size(panels[0], run, colour)
        _draw_similarity(panels[1], run, colour, single=len(runs) == 1)
        _draw_learning_rate(panels[2], run, colour, single=len(runs) == 1)
        _draw_measure(panels[3], run, colour)
    _label(figure, panels, title, runs)
    figure.savefig(os.fspath(path), format="png")


def _draw_batch_size(axes: Any, run: Run, colour: str) -> None:
    seen = [record.examples_seen for record in run.records]
    axes.step(seen, [record.batch_size for record in run.records], where="pre", color=colour, linewidth=1.4, label=run.label)


def _draw_similarity(axes: Any, run: Run, colour: str, single: bool) -> None:
    seen = [record.examples_seen for record in run.records]
    values = [record.similarity for record in run.records]
    median = running_median(values, max(5, len(values) // _MEDIAN_SHARE))
    if single:
        axes.plot(seen, _gaps(values), color=colour, alpha=0.25, linewidth=0.7, label="each update")
    axes.plot(seen, _gaps(median), color=colour, linewidth=1.6, label="running median" if single else None)
    if run.target_similarity is not None:
        label = f"target {run.target_similarity:g}" if single else None
        axes.axhline(run.target_similarity, color="0.25" if single else colour, linestyle="--", linewidth=1.1, label=label)


def _draw_learning_rate(axes: Any, run: Run, colour: str, single: bool) -> None:
    seen = [record.examples_seen for record in run.records]
    effective = [record.effective_learning_rate for record in run.records]
    axes.plot(seen, effective, color=colour, linewidth=1.4, label="effective" if single else None)
    base = [record.learning_rate for record in run.records]
    axes.plot(seen, base, color="0.35" if single else colour, linestyle=":", linewidth=1.4, label="base" if single else None)


def _draw_measure(axes: Any, run: Run, colour: str) -> None:
    for name, style in ((run.measure, ":"), (f"val_{run.measure}", "-")):
        if points := _points(run, name):
            axes.plot(*zip(*points, strict=True), style, color=colour, linewidth=1.4, marker="o", markersize=2.5)


def _points(run: Run, name: str) -> list[tuple[float, float]]:
    return [(epoch["examples_seen"], epoch[name]) for epoch in run.epochs if epoch.get(name) is not None]


def _gaps(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _label(figure: Any, panels: Any, title: str, runs: Sequence[Run]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.ticker import EngFormatter, MaxNLocator, ScalarFormatter

    figure.suptitle(title, fontsize=13)
    measures = ", ".join(dict.fromkeys(run.measure.replace("_", " ") for run in runs))
    for axes, label in zip(panels, ("batch size (examples)", "similarity", "learning rate", measures), strict=True):
        axes.set_ylabel(label)
        axes.grid(True, color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yscale("log", base=2)
    sizes = [record.batch_size for run in runs for record in run.records]
    if max(sizes) < 2 * min(sizes):
        panels[0].set_ylim(min(sizes) / 2, max(sizes) * 2)
    panels[0].yaxis.set_major_formatter(ScalarFormatter())
    panels[3].yaxis.set_major_locator(MaxNLocator(5))
    panels[3].xaxis.set_major_formatter(EngFormatter(sep=""))
    panels[3].set_xlim(left=0)
    panels[3].set_xlabel("examples seen")
    grey = [Line2D([], [], color="0.35", linestyle=style) for style in ("-", ":")]
    if len(runs) == 1:
        panels[1].legend(loc="best", fontsize=8)
        panels[2].legend(loc="best", fontsize=8)
    else:
        panels[0].legend(loc="best", fontsize=8)
        panels[2].legend(grey, ["effective", "base"], loc="best", fontsize=8)
    lines = [("validation", grey[0], "val_"), ("training", grey[1], "")]
    drawn = [(name, line) for name, line, prefix in lines if any(_points(run, prefix + run.measure) for run in runs)]
    if drawn:
        panels[3].legend([line for _, line in drawn], [name for name, _ in drawn], loc="best", fontsize=8)
