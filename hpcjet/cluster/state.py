"""state.json: how far a run is, for those who watch it."""

import json
import time
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path

from hpcjet.atomic import atomic_write


class Phase(str, Enum):
    """Where a run stands. The last three are final for one allocation."""

    submitted = "submitted"
    starting = "starting"
    running = "running"
    done = "done"
    failed = "failed"
    interrupted = "interrupted"


REQUEUED = "requeued"
"""Slurm was asked to run the job again."""
QUEUED = "queued"
"""A person, or Slurm, has put the job back into the queue already."""
RESUBMIT = "resubmit"
"""It should run again, but the node could not ask for it: who watches the run submits it."""
ASK = "ask"
"""The node does not know whether the job was preempted or cancelled: who watches the run sees it in its last state."""


@dataclass(frozen=True)
class RunState:
    """Times in Unix seconds."""

    phase: Phase
    allocation: str = ""
    exit_code: int | None = None
    reason: str = ""
    """Why it failed, for a person."""
    then: str = ""
    """What follows an interruption: REQUEUED, QUEUED, RESUBMIT, ASK, or nothing."""
    started: float = 0.0
    updated: float = 0.0

    @property
    def final(self) -> bool:
        return self.phase in (Phase.done, Phase.failed, Phase.interrupted)


def write_state(path: Path, state: RunState) -> None:
    """Replace the state file."""
    atomic_write(path, json.dumps({**asdict(state), "phase": state.phase.value, "updated": time.time()}))


def read_state(path: Path) -> RunState | None:
    """The state, or None if there is none yet."""
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return RunState(**{**data, "phase": Phase(data["phase"])})


def annotate_state(path: Path, reason: str) -> None:
    """Add why a run is about to fail; the phase stays the node agent's to write."""
    state = read_state(path)
    if state is not None:
        write_state(path, replace(state, reason=reason))
