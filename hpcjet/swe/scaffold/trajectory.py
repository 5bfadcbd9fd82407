"""The trajectory file: complete after every write, and never more work than the agent itself."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcjet.errors import StoreError

_SHORTEST_INTERVAL_S = 5.0
_SHARE = 50
"""An interval is at least this many times what the last write took: writing costs two percent of the time at most."""


class TrajectoryFile:
    """A JSON file that is replaced as a whole, so that a reader finds a complete one even after a kill -9."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._due = 0.0

    def offer(self, make: Callable[[], dict[str, Any]]) -> None:
        """Write what `make` gives if it is time again. Raises StoreError."""
        if time.monotonic() >= self._due:
            self.write(make())

    def write(self, data: dict[str, Any]) -> None:
        """Raises StoreError, such as for a full disk."""
        began = time.monotonic()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._draft.write_text(json.dumps(data, separators=(",", ":"), default=str), encoding="ascii")
            self._draft.replace(self._path)
        except OSError as error:
            self._draft.unlink(missing_ok=True)
            raise StoreError(
                f"the trajectory {self._path} cannot be written ({error.strerror}); it needs space and permission; "
                "free some, or set run.root to another folder"
            ) from error
        now = time.monotonic()
        self._due = now + max(_SHORTEST_INTERVAL_S, _SHARE * (now - began))
