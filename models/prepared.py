"""Folders that tools.prepare_data has written. Standard library only."""

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
        ValueError: If there is no such preparation, it is of another kind, or files of it are missing.
    """
    how = f"python -m tools.prepare_data {kind} --help says how to make one"
    if folder is None:
        raise ValueError(f"--data-dir is missing: expected a folder of the kind {kind}; {how}")
    path = Path(folder) / METADATA
    if not path.is_file():
        raise ValueError(f"{folder} holds no prepared data: no {METADATA}; {how}")
    metadata = json.loads(path.read_text(encoding="utf-8"))
    if metadata.get("kind") != kind:
        raise ValueError(f"{folder} holds prepared data of the kind {metadata.get('kind')}, expected {kind}; {how}")
    named = [name for names in metadata["files"].values() for name in names]
    missing = [name for name in named if not (Path(folder) / name).is_file()]
    if missing:
        raise ValueError(f"{folder} is incomplete: {', '.join(missing)} missing; {how}")
    return metadata


def check_settings(folder, metadata: dict, **settings) -> None:
    """Raises a ValueError where the data was prepared with other settings than an experiment has."""
    differing = {name: value for name, value in settings.items() if metadata.get(name) != value}
    wrong = [f"{name}={value}, prepared with {metadata.get(name)}" for name, value in differing.items()]
    if wrong:
        raise ValueError(f"{folder} does not fit the experiment: {'; '.join(wrong)}. Prepare it anew, or --set task.<name>")
