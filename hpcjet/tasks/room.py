"""Room for base trees on a file system: how much there must be, and how much there is."""

import os
from dataclasses import dataclass
from pathlib import Path

from hpcjet.errors import TaskError

GIB = 1024**3
DAY_S = 86_400.0
LEAST_FILES = 20_000
"""Files and folders that a build may need at least; CPython's tree has 5,300."""


class NoRoom(TaskError):
    """There is no room for a base tree on the node: no fault of the task."""


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Which base trees stay on a node, and what must be free before another one is built."""

    size_bytes: int | None = 50 * GIB
    """Of all trees together; those in use stay even if they are larger. None: no limit."""
    age_s: float | None = 30 * DAY_S
    """Since the last use. None: no limit."""
    free_bytes: int = 2 * GIB
    """Free space on the file system."""

    @classmethod
    def of(cls, *, gb: float | None, days: float | None, free_gb: float) -> "Keep":
        return cls(
            size_bytes=None if gb is None else int(gb * GIB),
            age_s=None if days is None else days * DAY_S,
            free_bytes=int(free_gb * GIB),
        )


def free_bytes(folder: Path) -> int:
    """What this user may still write on the file system of a folder."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def lack(folder: Path, keep: Keep) -> str:
    """What is missing there for another tree, for a person; empty if there is room."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < keep.free_bytes:
        return f"{free / GIB:.1f} GiB free, {keep.free_bytes / GIB:g} needed"
    # Some file systems do not count: they tell no inodes at all.
    if disk.f_files and disk.f_favail < LEAST_FILES:
        return f"room for {disk.f_favail} more files, {LEAST_FILES} needed"
    return ""


def check_room(folder: Path, keep: Keep) -> None:
    """Raises NoRoom if another tree may not be built below a folder."""
    if missing := lack(folder, keep):
        raise NoRoom(
            f"exp.trees={folder} has no room for another base tree: {missing} (exp.trees_free_gb); free space there "
            "(hpcjet tasks clean --help), lower exp.trees_free_gb, or set exp.trees to a folder on another local disk"
        )
