"""progress.json of a training, for those who follow the run."""

import json
import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path

from hpcjet.atomic import atomic_write

_log = logging.getLogger(__name__)
EVERY_S = 1.0


class SwarmProgress:
    """Written at most once a second; `updates` and `agent_steps` are where the training ends, 0 for no such limit."""

    def __init__(self, path: Path, *, updates: int = 0, agent_steps: int = 0) -> None:
        self._path = path
        self._goals = {"updates": updates, "agent_steps": agent_steps}
        self._began = time.time()
        self._first: dict[str, float] | None = None
        self._next, self._note = 0.0, ""
        self._fails = False

    def write(self, row: Mapping[str, float | str], *, note: str = "") -> None:
        """`row` is the newest one, {} before the first; `note` is what is out of the ordinary, in a few words."""
        stand = {key: _finite(row.get(key)) or 0.0 for key in ("version", "agent_steps")}
        if self._first is None and row:
            # What an earlier start did says nothing of how long this one takes.
            self._first = {**stand, "t": time.time()}
        now = time.monotonic()
        if now < self._next and note == self._note:
            return
        self._next, self._note = now + EVERY_S, note
        told = {key: value if isinstance(value, str) else _finite(value) for key, value in row.items()}
        data = {"kind": "swarm", "goals": self._goals, "first": self._first, "row": told, "note": note}
        try:
            atomic_write(self._path, json.dumps({**data, "began": self._began, "updated": time.time()}))
            self._fails = False
        except OSError as error:
            if not self._fails:
                _log.warning("%s could not be written: %s", self._path.name, error)
            self._fails = True


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
