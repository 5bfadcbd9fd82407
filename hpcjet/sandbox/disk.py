"""What the commands of a sandbox have written."""

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES = 512
DEEP = 200
"""Levels of folders that are looked into."""


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

    def measure(self, pids: Iterable[int]) -> Written:
        """Walk the folders; files that were removed and are still open count too."""
        found, open_ = walk(self._folders), removed_but_open(pids)
        self.now = Written(found.bytes + open_.bytes, found.files + open_.files, open_.memory_bytes) - self._start
        return self.now


def walk(folders: Iterable[Path]) -> Written:
    """Everything below some folders. Follows no link: commands may exchange a folder for one at any time."""
    total_bytes = total_files = 0
    for top in folders:
        waiting: list[tuple[int, int]] = []
        try:
            waiting.append((os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC), 0))
        except OSError:
            continue
        while waiting:
            folder, depth = waiting.pop()
            try:
                for entry in os.scandir(folder):
                    try:
                        found = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(found.st_mode) and depth < DEEP:
                            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                            waiting.append((os.open(entry.name, flags, dir_fd=folder), depth + 1))
                    except OSError:  # gone, closed to us, or more folders than descriptors
                        continue
                    total_bytes += found.st_blocks * BLOCK_BYTES
                    total_files += 1
            except OSError:
                continue
            finally:
                os.close(folder)
    return Written(total_bytes, total_files)


def removed_but_open(pids: Iterable[int]) -> Written:
    """Files without a name that processes hold open."""
    seen: dict[tuple[int, int], tuple[int, bool]] = {}
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(folder):  # noqa: PTH208 (per process and round)
                target = os.readlink(f"{folder}/{name}")  # noqa: PTH115
                if target.endswith(" (deleted)") and not target.startswith("/dev/shm/"):
                    found = os.stat(f"{folder}/{name}")  # noqa: PTH116
                    if stat.S_ISREG(found.st_mode):
                        memory = target.startswith("/memfd:")
                        seen[found.st_dev, found.st_ino] = (found.st_blocks * BLOCK_BYTES, memory)
        except OSError:  # the process is gone, or closed to us
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
