"""What the keeper must not forget when it is killed: elastic.json. What Slurm and the run's files say is not in it."""

import json
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpcjet.atomic import atomic_write

_log = logging.getLogger(__name__)
FEW_WAITS = 10
FIRST_LEAD_S, BOOT_S = 600.0, 60.0
"""Until a group's queue is known; what a node's start takes on top of the queue."""


@dataclass
class GroupMemory:
    """Of one group."""

    failures: int = 0
    """Starts in a row that came to nothing."""
    failed_at: float = 0.0
    reason: str = ""
    """Of the last one."""
    waits_s: list[float] = field(default_factory=list)
    """From the submission of the last allocations to their first node."""
    paused_until: float = 0.0
    wish_at: float = 0.0
    """The wish that was noted last."""

    @property
    def lead_s(self) -> float:
        """How long before an end its replacement is asked for: three of four such waits are shorter."""
        if not self.waits_s:
            return FIRST_LEAD_S
        return sorted(self.waits_s)[len(self.waits_s) * 3 // 4] + BOOT_S


@dataclass
class Memory:
    """Of one keeper. It is the only one that writes its file."""

    groups: dict[str, GroupMemory] = field(default_factory=dict)
    joined: list[str] = field(default_factory=list)
    """Jobs of which a node has joined."""
    submits: bool = True
    """Whether it can ask Slurm for more."""

    def of(self, group: str) -> GroupMemory:
        return self.groups.setdefault(group, GroupMemory())

    def failed(self, group: str, reason: str, now: float) -> None:
        """One more start came to nothing."""
        mine = self.of(group)
        mine.failures, mine.failed_at, mine.reason = mine.failures + 1, now, reason

    def has_joined(self, group: str, job: str, waited_s: float | None) -> None:
        """A job's first node: the group can start."""
        self.joined.append(job)
        mine = self.of(group)
        mine.failures, mine.reason, mine.paused_until = 0, "", 0.0
        if waited_s is not None:
            mine.waits_s = [*mine.waits_s, round(max(waited_s, 0.0), 1)][-FEW_WAITS:]


class MemoryFile:
    """Keeps a Memory on disk; with a full disk it is kept in this process only, and that is said once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.memory = read_memory(path)
        self._written = asdict(self.memory)
        self._warned = False

    def keep(self) -> None:
        now = asdict(self.memory)
        if now == self._written:
            return
        try:
            atomic_write(self._path, json.dumps(now))
            self._written, self._warned = now, False
        except OSError as error:
            if not self._warned:
                _log.warning("%s cannot be written (%s): failed starts are forgotten if this process ends", self._path,
                             error.strerror)  # fmt: skip
            self._warned = True


def read_memory(path: Path) -> Memory:
    """An empty one if there is none, or none that can be read."""
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        groups = {name: GroupMemory(**each) for name, each in data.pop("groups").items()}
        return Memory(**data, groups=groups)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Memory()
