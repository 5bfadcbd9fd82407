"""What a sandbox uses, held against its limits."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from hpcjet.sandbox.cgroup import Group
from hpcjet.sandbox.disk import Disk, Written, removed_but_open, shm_use
from hpcjet.sandbox.processes import Usage, cpu_seconds
from hpcjet.sandbox.spec import Limits

ON_DISK = ("disk", "files")
"""Limits of what stays when the command is gone."""


@dataclass
class Meter:
    """Of one sandbox. `look` is called by the supervisor again and again."""

    limits: Limits
    disk: Disk
    root: int = 0
    """The command server's process."""
    group: Group | None = None
    pids: Callable[[], Collection[int]] = tuple
    """The processes of the sandbox now."""

    def __post_init__(self) -> None:
        self._cpu_start = 0.0
        self._full_at = Written()

    def begin(self) -> None:
        """A command starts."""
        if self.limits.cpu_s is not None:
            self._cpu_start = cpu_seconds(self.root, self.pids())

    def held(self) -> str:
        """The limit that the kernel has held since it was asked last."""
        return self.group.hit() if self.group is not None else ""

    def look(self, usage: Usage) -> tuple[str, float]:
        """The limit that is exceeded (or nothing), and the largest part of a limit in use."""
        shm_bytes, shm_files = shm_use(usage.pids)
        exceeded, part = judge(usage, self.limits, also_bytes=shm_bytes + self.disk.now.memory_bytes)
        if exceeded == "memory" and self.disk.now.memory_bytes:
            # What the last walk saw may be gone with its command, and must not end the next one.
            unnamed = removed_but_open(usage.pids).memory_bytes
            exceeded, part = judge(usage, self.limits, also_bytes=shm_bytes + unnamed)
        if not exceeded and self.limits.cpu_s is not None:
            used = (cpu_seconds(self.root, usage.pids) - self._cpu_start) / self.limits.cpu_s
            exceeded, part = ("cpu" if used > 1 else ""), max(part, used)
        return exceeded or self._disk(shm_files), part

    def _disk(self, shm_files: int) -> str:
        """Once over the limit, only what grows further is ended: else nobody could clean up."""
        now, limits = self.disk.now, self.limits
        files = now.files + shm_files
        for name, used, before, limit in (
            ("disk", now.bytes, self._full_at.bytes, limits.disk_bytes),
            ("files", files, self._full_at.files, limits.disk_files),
        ):
            if limit is not None and used > max(limit, before):
                return name
        return ""

    def look_at_disk(self, pids: Collection[int]) -> None:
        """Nothing is counted beyond the limits: who makes files faster than they are counted is ended too."""
        limits, before = self.limits, self._full_at
        self.disk.measure(
            pids,
            enough_bytes=math.inf if limits.disk_bytes is None else max(limits.disk_bytes, before.bytes),
            enough_files=math.inf if limits.disk_files is None else max(limits.disk_files, before.files),
        )

    def settle(self) -> None:
        """After a command was ended for the disk: how full it is now is what later ones may not exceed."""
        pids = tuple(self.pids())
        now = self.disk.measure(pids)
        self._full_at = Written(now.bytes, now.files + shm_use(pids)[1])

    @property
    def watches_disk(self) -> bool:
        return self.limits.disk_bytes is not None or self.limits.disk_files is not None


def judge(usage: Usage, limits: Limits, *, also_bytes: int = 0) -> tuple[str, float]:
    """Of processes and memory: the limit that is exceeded (or nothing), and the largest part in use.

    `also_bytes`: memory that belongs to no process.
    """
    part = usage.threads / limits.processes if limits.processes else 0.0
    if part > 1:
        return "processes", part
    if limits.memory_bytes:
        memory = (usage.rss_bytes() + also_bytes) / limits.memory_bytes
        if memory > 1:
            memory = (usage.pss_bytes() + also_bytes) / limits.memory_bytes
        if memory > 1:
            return "memory", memory
        part = max(part, memory)
    return "", part
