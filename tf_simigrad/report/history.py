"""The history of a run as a table: written, read back, and summed up. Standard library only."""

import csv
import os
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tf_simigrad.records import UpdateRecord

_TYPES = typing.get_type_hints(UpdateRecord)


def write_history(path: str | os.PathLike, records: Sequence[UpdateRecord]) -> None:
    """Writes one row per update as CSV, with the fields of ``UpdateRecord`` as its header.

    A value that is None becomes an empty cell, ``skipped`` is 0 or 1. The file is replaced as a whole, so that a reader
    never sees half of it.

    Args:
        path: The file; its folder must exist.
        records: ``AdaptiveBatch.history``, or a part of it.
    """
    _write_table(path, [record._asdict() for record in records], UpdateRecord._fields)


def read_history(path: str | os.PathLike) -> list[UpdateRecord]:
    """Reads what ``write_history`` wrote.

    Args:
        path: The file.

    Returns:
        The records, equal to those that were written.

    Raises:
        ValueError: If the file lacks a column, or a cell does not hold what its column should.
    """
    rows = _read_table(path)
    missing = [name for name in UpdateRecord._fields if rows and name not in rows[0]]
    if missing:
        raise ValueError(f"{path} is no history of updates: it lacks the columns {', '.join(missing)}")
    return [_record(path, number, row) for number, row in enumerate(rows, start=2)]


def summarise(records: Sequence[UpdateRecord]) -> dict[str, Any]:
    """Sums up a run.

    Updates that were skipped (their gradient was not finite) count as seen examples, but not as updates.

    Args:
        records: ``AdaptiveBatch.history`` from the first update on.

    Returns:
        A dictionary with updates, skipped_updates, examples_seen, mean_batch_size (examples that entered updates, over
        updates), max_batch_size, and batch_changes: how many updates were made of another number of micro-steps than
        the one before. The last update is left out of that: it may be a flush of what was pending.
    """
    sizes = [record.batch_size for record in records if not record.skipped]
    steps = [record.micro_steps for record in records[:-1]]
    return {
        "updates": len(sizes),
        "skipped_updates": len(records) - len(sizes),
        "examples_seen": records[-1].examples_seen if records else 0,
        "mean_batch_size": sum(sizes) / len(sizes) if sizes else None,
        "max_batch_size": max(sizes, default=None),
        "batch_changes": sum(before != after for before, after in zip(steps, steps[1:], strict=False)),
    }


def running_median(values: Sequence[float | None], width: int) -> list[float | None]:
    """The median of the known values in a window around each place.

    Args:
        values: Any numbers; None and NaN are unknown.
        width: Places in a window; near the ends it is cut off.

    Returns:
        As many values; None where a window knows none.

    Raises:
        ValueError: If `width` is less than 1.
    """
    if width < 1:
        raise ValueError(f"width={width}: expected 1 or more")
    before, after = (width - 1) // 2, width // 2 + 1
    return [_median(values[max(0, place - before) : place + after]) for place in range(len(values))]


def write_epochs(path: str | os.PathLike, epochs: Sequence[Mapping[str, float]]) -> None:
    """Writes one row per epoch as CSV; the columns are the names that any epoch has, in order of appearance.

    Args:
        path: The file; its folder must exist.
        epochs: Names and numbers of each epoch.
    """
    columns = list(dict.fromkeys(name for epoch in epochs for name in epoch))
    _write_table(path, epochs, columns)


def read_epochs(path: str | os.PathLike) -> list[dict[str, float]]:
    """Reads what ``write_epochs`` wrote.

    Args:
        path: The file.

    Returns:
        One dictionary per epoch, without the names whose cells are empty.

    Raises:
        ValueError: If a cell holds no number.
    """
    try:
        return [{name: _number(text) for name, text in row.items() if text} for row in _read_table(path)]
    except ValueError as error:
        raise ValueError(f"{path}: {error}; expected a header of names and rows of numbers") from None


def _write_table(path: str | os.PathLike, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    partial = Path(f"{os.fspath(path)}.partial")
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    os.replace(partial, path)


def _read_table(path: str | os.PathLike) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _cell(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def _record(path: str | os.PathLike, number: int, row: dict[str, str]) -> UpdateRecord:
    try:
        return UpdateRecord(**{name: _parse(row[name], _TYPES[name]) for name in UpdateRecord._fields})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}, line {number}: {error}; expected a row of {', '.join(UpdateRecord._fields)}") from None


def _parse(text: str, hint: Any) -> Any:
    if hint is bool:
        return bool(int(text))
    if hint is int:
        return int(text)
    if text == "" and type(None) in typing.get_args(hint):
        return None
    return float(text)


def _median(values: Sequence[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None and value == value)
    if not known:
        return None
    middle = len(known) // 2
    return known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2
