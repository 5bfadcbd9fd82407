"""Making and removing the scratch folder of a sandbox."""

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from hpcjet.errors import SandboxError
from hpcjet.sandbox.identity import Identity
from hpcjet.sandbox.options import Layout

DEEP = 100
"""Levels of folders that are removed with one descriptor open for each."""


def make_scratch(layout: Layout, who: Identity, *, view: bool) -> int:
    """Make the folders of a sandbox and lock them; returns the descriptor that holds the lock."""
    layout.scratch.mkdir(parents=True, exist_ok=True, mode=0o711)
    lock = os.open(layout.scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _lock(lock, layout.scratch)
        os.fchmod(lock, 0o711 if who.switch else 0o700)
        remove_tree(layout.work)
        for folder in (layout.tmp, layout.home, *((layout.upper, layout.work) if view else ())):
            folder.mkdir(exist_ok=True, mode=0o755)
            who.own(folder)
        for folder in (layout.io, layout.root):
            folder.mkdir(exist_ok=True, mode=0o755)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _lock(descriptor: int, scratch: Path) -> None:
    """Overlayfs lets two sandboxes share an upper layer without a word, and its content is then undefined."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SandboxError(
            f"scratch={scratch} is in use by another sandbox; give each sandbox a folder of its own"
        ) from None


def remove_tree(path: Path) -> None:
    """Remove a folder whatever the modes in it are. Follows no symbolic link; a path that is gone already is fine,
    and so is another process that removes it too.

    Overlayfs leaves an inner work folder of mode 000, and commands leave folders that their owner may not write, or
    that are thousands of levels deep.
    """
    try:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    waiting = [path.name]
    try:
        while waiting:
            _remove(waiting.pop(), parent, depth=0, top=(parent, path.name), waiting=waiting)
    finally:
        os.close(parent)


def _remove(name: str, parent: int, *, depth: int, top: tuple[int, str], waiting: list[str]) -> None:
    """Depth first with one open descriptor per level, so that no path is resolved twice.

    A folder that is too deep moves beside the top one and waits there for its turn.
    """
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=parent)
            return
        if found.st_mode & 0o700 != 0o700:
            # Not a link (seen above), and what made it has ended.
            os.chmod(name, 0o700, dir_fd=parent)
        if depth == DEEP:
            waiting.append(f".{top[1]}.{found.st_ino}")
            os.rename(name, waiting[-1], src_dir_fd=parent, dst_dir_fd=top[0])
            return
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except FileNotFoundError:
        return
    try:
        for entry in os.listdir(folder):  # noqa: PTH208 (by descriptor)
            _remove(entry, folder, depth=depth + 1, top=top, waiting=waiting)
    finally:
        os.close(folder)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=parent)
