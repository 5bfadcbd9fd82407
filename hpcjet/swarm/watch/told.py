"""What a training tells beside its rows: the seats, and what was lost."""

import errno
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcjet.atomic import atomic_write

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SeatFacts:
    """One seat, as the driver knows it."""

    seat: str
    node: str
    worlds: int
    attempts: int = 1
    """How often its host was started."""
    fragments: int = 0
    agent_steps: int = 0
    agent_steps_per_s: float = 0.0
    shares: dict[str, float] | None = None
    """Where its time went, such as act, step, wait, insert; 0 to 1."""
    faults: int = 0
    """Worlds that failed and were made anew."""
    fault: str = ""
    """The last one: world, agent, step and what was wrong."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Something that died, and what it cost."""

    time: float
    """Unix seconds."""
    what: str
    """Such as `node n3` or `learner rank 1`."""
    lost_fragments: int = 0
    seconds_to_first_new_sample: float | None = None
    """None if none came any more."""


def write_seats(path: Path, seats: Sequence[SeatFacts]) -> None:
    """Replace seats.json; a full disk is no reason to stop."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps([asdict(seat) for seat in seats]))
    except OSError as error:
        _log.warning("%s could not be written: %s", path.name, error)


def read_seats(path: Path) -> list[SeatFacts]:
    """Empty if there are none, or none that can be read."""
    try:
        data = json.loads(path.read_text())
        return [SeatFacts(**each) for each in data]
    except (OSError, ValueError, TypeError):
        return []


def note_loss(path: Path, loss: Loss) -> None:
    """Add a line to losses.jsonl. Raises OSError; then the file is as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        line = json.dumps(asdict(loss)).encode() + b"\n"
        try:
            if file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.truncate(before)
            raise


def read_losses(path: Path) -> list[Loss]:
    """Without lines that cannot be read."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [loss for line in lines if (loss := _loss(line))]


def _loss(line: str) -> Loss | None:
    try:
        data: dict[str, Any] = json.loads(line)
        seconds = data.get("seconds_to_first_new_sample")
        return Loss(
            time=float(data["time"]),
            what=str(data["what"]),
            lost_fragments=int(data.get("lost_fragments") or 0),
            seconds_to_first_new_sample=None if seconds is None else float(seconds),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
