"""layer.json, the last file of a layer to be written: without a whole one there is no layer."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcjet.atomic import atomic_write

NAME = "layer.json"
FORMAT = 1
"""Changes when layers are made differently, so that old ones are not taken for new ones."""


@dataclass(frozen=True, kw_only=True)
class About:
    """What a layer is. Its file's modification time is when it was last used."""

    repo: str
    commit: str
    head: str
    """The one commit in the tree's .git."""
    seconds: float
    """That making it took."""
    mark: str = ""
    """Another for each time that a layer is made, even if it is the same otherwise."""
    below: str = ""
    """The name of the layer that it stands on."""
    below_mark: str = ""
    size_bytes: int | None = None
    """On disk."""
    format: int = FORMAT


def read_about(folder: Path) -> About | None:
    """What a layer's folder holds; None if that is no whole layer."""
    try:
        values: dict[str, Any] = json.loads((folder / NAME).read_text("utf-8"))
        return About(**{name: value for name, value in values.items() if name in About.__dataclass_fields__})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def write_about(folder: Path, about: About) -> None:
    atomic_write(folder / NAME, json.dumps(asdict(about)) + "\n", mode=0o644)


def last_used(folder: Path) -> float:
    """Seconds since the epoch."""
    return (folder / NAME).stat().st_mtime


def mark_used(folder: Path) -> None:
    os.utime(folder / NAME)
