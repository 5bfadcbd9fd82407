"""The results of points: numbers and short texts from the summary.json or result.json in their run directories."""

import contextlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from hpcjet.rundir import RunDir

RESULT = "result.json"
"""What a program of the user's may write into its run directory, $HPCJET_RUN_DIR."""
USUAL = {"swe": ["resolved", "attempts"]}
"""Experiment -> the columns that are shown unless others are named."""


def results(run: RunDir) -> dict[str, Any]:
    """The results by flat key, such as `loss.final`; empty if there are none yet."""
    found: dict[str, Any] = {}
    for file in (run.summary, run.path / RESULT):
        with contextlib.suppress(OSError, ValueError):
            data = json.loads(file.read_bytes())
            found.update(flat(data) if isinstance(data, dict) else {"result": data})
    return found


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Mappings in mappings as one, keys joined with dots; lists stay as they are."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


def columns(asked: Iterable[str], exp: str, found: Iterable[Mapping[str, Any]]) -> list[str]:
    """The columns to show: those asked for, else the experiment's own, else all that there are."""
    return list(asked) or USUAL.get(exp) or list(dict.fromkeys(key for each in found for key in each))


def text_of(value: Any) -> str:
    """A value in a table."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
