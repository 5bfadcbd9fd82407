"""Who uses a layer: its folder is locked, shared, for as long as somebody does, and exclusively by who takes it away.

The kernel gives the locks of a dead process back. Layers lie on a local disk, where that is reliable.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from hpcjet.errors import TaskError


def lend(folder: Path) -> int | None:
    """Keep a folder from being taken away until the descriptor that is returned is closed; None if it is not there.

    Raises TaskError where the file system has no locks.
    """
    while True:
        descriptor = _opened(folder)
        if descriptor is None:
            return None
        # Waits for a moment at most: who has the folder exclusively only looks at it and renames it.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError as error:
            os.close(descriptor)
            raise TaskError(f"{folder} cannot be locked ({error.strerror}); trees must lie on a local disk") from error
        if _is_still(descriptor, folder):
            return descriptor
        os.close(descriptor)


@contextlib.contextmanager
def seized(folder: Path) -> Iterator[bool]:
    """Whether a folder is there and nobody uses it; while the block runs, nobody can begin to."""
    descriptor = _opened(folder)
    if descriptor is None:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = _is_still(descriptor, folder)
    except BlockingIOError:
        free = False
    try:
        yield free
    finally:
        os.close(descriptor)


def _opened(folder: Path) -> int | None:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_still(descriptor: int, folder: Path) -> bool:
    """Whether the path still leads to what was opened: it may have been taken away while we waited for the lock."""
    try:
        return os.path.samestat(os.fstat(descriptor), folder.lstat())
    except FileNotFoundError:
        return False
