"""What the commands of a sandbox have written."""

import math
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BLOCK_BYTES = 512
DEEP = 50
"""Levels of folders that are open at a time."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Written:
    """Bytes on disk, files and folders, and bytes in memory that belong to no process (memfd)."""

    bytes: int = 0
    files: int = 0
    memory_bytes: int = 0

    def __sub__(self, other: "Written") -> "Written":
        return Written(self.bytes - other.bytes, self.files - other.files, self.memory_bytes - other.memory_bytes)


class Disk:
    """The folders that one sandbox writes to. What is there at the start, a copied tree, does not count."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._start = walk(folders)
        self.now = Written()

    def measure(
        self, pids: Iterable[int], *, enough_bytes: float = math.inf, enough_files: float = math.inf
    ) -> Written:
        """Walk the folders; files that were removed and are still open count too.

        Where more than `enough` is there the walk ends early: how much more is then not known.
        """
        found = walk(
            self._folders, enough_bytes=self._start.bytes + enough_bytes, enough_files=self._start.files + enough_files
        )
        open_ = removed_but_open(pids)
        self.now = Written(found.bytes + open_.bytes, found.files + open_.files, open_.memory_bytes) - self._start
        return self.now


def walk(folders: Iterable[Path], *, enough_bytes: float = math.inf, enough_files: float = math.inf) -> Written:
    """Everything below some folders, or a part that is more than `enough`.

    Follows no link: commands may exchange a folder for one at any time.

    One descriptor is open per level, and never more than DEEP: commands may make folders by the thousand, beside and
    below each other, and neither may the node run out of descriptors nor may anything go uncounted.
    """
    count = _Count(enough_bytes, enough_files)
    for top in folders:
        count.later.append(())
        while count.later and not count.enough:
            parts = count.later.pop()
            folder = _reach(top, parts)
            if folder is not None:
                count.add(folder, parts, 0)
    return Written(count.bytes, count.files)


def _reach(top: Path, parts: tuple[str, ...]) -> int | None:
    """Open a folder step by step; None if it is gone, or a link now."""
    folder = None
    try:
        folder = os.open(top, _FOLDER)
        for part in parts:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
    except OSError:
        if folder is not None:
            os.close(folder)
        return None
    return folder


@dataclass
class _Count:
    enough_bytes: float
    enough_files: float
    bytes: int = 0
    files: int = 0
    later: list[tuple[str, ...]] = field(default_factory=list)
    """Folders that are too deep to be looked into from where the walk began."""

    @property
    def enough(self) -> bool:
        return self.files > self.enough_files or self.bytes > self.enough_bytes

    def add(self, folder: int, parts: tuple[str, ...], depth: int) -> None:
        """What is in an open folder and below; closes it."""
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._add_entry(entry, folder, parts, depth)
                    if self.enough:
                        return
        except OSError:  # gone, or closed to us
            return
        finally:
            os.close(folder)

    def _add_entry(self, entry: "os.DirEntry[str]", folder: int, parts: tuple[str, ...], depth: int) -> None:
        try:
            found = entry.stat(follow_symlinks=False)
            self.bytes += found.st_blocks * BLOCK_BYTES
            self.files += 1
            if not stat.S_ISDIR(found.st_mode):
                return
            if depth == DEEP:
                self.later.append((*parts, entry.name))
                return
            inner = os.open(entry.name, _FOLDER, dir_fd=folder)
        except OSError:
            return
        self.add(inner, (*parts, entry.name), depth + 1)


def removed_but_open(pids: Iterable[int]) -> Written:
    """Files without a name that processes hold open."""
    seen: dict[tuple[int, int], tuple[int, bool]] = {}
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)  # noqa: PTH208 (per process and round)
        except OSError:  # the process is gone, or closed to us
            continue
        for name in names:
            try:
                target = os.readlink(f"{folder}/{name}")  # noqa: PTH115
                if target.endswith(" (deleted)") and not target.startswith("/dev/shm/"):
                    found = os.stat(f"{folder}/{name}")  # noqa: PTH116
                    if stat.S_ISREG(found.st_mode):
                        memory = target.startswith("/memfd:")
                        seen[found.st_dev, found.st_ino] = (found.st_blocks * BLOCK_BYTES, memory)
            except OSError:  # closed meanwhile; one that is closed all the time must not hide the others
                continue
    disk = [size for size, memory in seen.values() if not memory]
    return Written(sum(disk), len(disk), sum(size for size, memory in seen.values() if memory))


def shm_use(pids: Sequence[int]) -> tuple[int, int]:
    """Bytes and files in the /dev/shm of a sandbox that has one of its own, seen through one of its processes."""
    for pid in pids[:3]:
        try:
            if os.stat(f"/proc/{pid}/ns/mnt").st_ino == os.stat("/proc/self/ns/mnt").st_ino:  # noqa: PTH116
                return 0, 0
            found = os.statvfs(f"/proc/{pid}/root/dev/shm")
        except OSError:
            continue
        return (found.f_blocks - found.f_bfree) * found.f_frsize, max(0, found.f_files - found.f_ffree)
    return 0, 0
