"""Folders of processes that were killed: nobody else removes them, so the next process of the kind on the node does."""

import contextlib
import fcntl
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from hpcjet.sandbox.scratch import remove_tree

TEMP_VARIABLE = "HPCJET_TEMP"
"""Names the private temp folder of the node to everything that runs there."""
PREFIX = "hj-"
OWNER = ".hpcjet-agent"
"""Marks a folder as one of ours; one without it is just being made, or somebody else's."""

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Mark a folder as in use for as long as the block, or this process, lasts; it lies on a local disk."""
    descriptor = hold(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def hold(folder: Path) -> int:
    """The same until the descriptor that is returned is closed."""
    made = folder / f"{OWNER}-made"
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Under its own name only once it is locked: another agent that sweeps may look at any moment.
        made.rename(folder / OWNER)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def sweep(base: Path, *, prefix: str = PREFIX) -> None:
    """Remove the folders in `base` that are ours and whose process is gone."""
    for folder in base.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid() or not _left_behind(folder):
                continue
            _log.info("removing %s, which a process that was killed left behind", folder)
            end_users(folder)
            remove_tree(folder)


def end_users(folder: Path) -> None:
    """SIGKILL what was started for a temp folder, by its environment, and outlived whoever held the folder.

    A worker process that Ray was just starting looks for its Ray for minutes.
    """
    mark = os.fsencode(f"{TEMP_VARIABLE}={folder}")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)


def _left_behind(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / OWNER, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
