"""Folders that a process holds as long as it lives: what one that was killed left is known, and removed by another."""

import contextlib
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hpcjet.sandbox.scratch import remove_tree

OWNER = ".hpcjet-agent"
"""Marks a folder as one of ours; one without it is just being made, or somebody else's."""
PREFIX = "hpcjet-"


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
        os.write(descriptor, _here())
        # Under its own name only once it is locked: another process that sweeps may look at any moment.
        made.rename(folder / OWNER)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def left_behind(base: Path, *, prefix: str) -> Iterator[Path]:
    """The folders in `base` that are ours and whose process is gone."""
    for folder in base.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if not folder.is_symlink() and folder.stat().st_uid == os.geteuid() and _is_let_go(folder):
                yield folder


def _is_let_go(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.read(descriptor, 1024) in (b"", _here())
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def _here() -> bytes:
    """The host: in a folder that several share, a lock may be known on one of them only."""
    return socket.gethostname().encode()


@contextlib.contextmanager
def temp_folder(base: Path, name: str) -> Iterator[Path]:
    """A new folder in `base`, gone after the block; if this process is killed, remove_left of another removes it."""
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-", dir=base))
    descriptor, owner = -1, os.getpid()
    try:
        descriptor = hold(folder)
        yield folder
    finally:
        if os.getpid() == owner:  # not in a fork that ends
            with contextlib.suppress(OSError):  # after an interrupt something may still be written there
                remove_tree(folder)
        if descriptor >= 0:
            os.close(descriptor)


def remove_left(base: Path) -> None:
    """Remove the folders of temp_folder whose process is gone."""
    for folder in left_behind(base, prefix=PREFIX):
        with contextlib.suppress(OSError):
            remove_tree(folder)
