"""Folders that tools.prepare_data has written. Standard library only."""

import hashlib
import json
from pathlib import Path

METADATA = "metadata.json"


def read_metadata(folder, kind: str) -> dict:
    """What was prepared there.

    Args:
        folder: The folder.
        kind: As `tools.prepare_data` calls it.

    Returns:
        Its metadata.

    Raises:
        ValueError: If there is no such preparation, what is there cannot be read or is of another kind, or files are missing.
    """
    how = f"python -m tools.prepare_data {kind} --help says how to make one"
    if folder is None:
        raise ValueError(f"--data-dir is missing: expected a folder of the kind {kind}; {how}")
    path = Path(folder) / METADATA
    if not path.is_file():
        raise ValueError(f"{folder} holds no prepared data: no {METADATA}; {how}")
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
        found = metadata["kind"]
        named = [name for names in metadata["files"].values() for name in names] if found == kind else []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not what tools.prepare_data writes ({error!r}); {how}") from error
    if found != kind:
        raise ValueError(f"{folder} holds prepared data of the kind {found}, expected {kind}; {how}")
    missing = [name for name in named if not (Path(folder) / name).is_file()]
    if missing:
        raise ValueError(f"{folder} is incomplete: {', '.join(missing)} missing; {how}")
    return metadata


def check_replaceable(folder, kind: str) -> None:
    """Raises a ValueError where a preparation of that kind would replace other data than an earlier one."""
    path = Path(folder) / METADATA
    if not path.is_file():
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["kind"]
    except (ValueError, KeyError, TypeError):
        found = "unknown"
    if found != kind:
        raise ValueError(f"--output {folder} holds prepared data of the kind {found}: use another folder, or remove it first")


def fingerprint(folder) -> str | None:
    """Of what a folder holds: of its metadata; None where it has none."""
    path = Path(folder or ".") / METADATA
    return hashlib.sha256(path.read_bytes()).hexdigest() if folder is not None and path.is_file() else None


def check_settings(folder, metadata: dict, **settings) -> None:
    """Raises a ValueError where the data was prepared with other settings than an experiment has."""
    differing = {name: value for name, value in settings.items() if metadata.get(name) != value}
    wrong = [f"{name}={value}, prepared with {metadata.get(name)}" for name, value in differing.items()]
    if wrong:
        raise ValueError(f"{folder} does not fit the experiment: {'; '.join(wrong)}. Prepare it anew, or --set task.<name>")
