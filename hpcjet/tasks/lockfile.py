"""Lock files, held by the one process that makes something."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from hpcjet.errors import TaskError

POLL_S = 0.2


@contextlib.contextmanager
def locked(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold a lock file. The kernel gives it back when its holder dies; it lies on a local disk, where that is reliable.

    Raises TaskError if it is held for longer than timeout_s.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        with path.open("a+", encoding="utf-8") as file:
            while not _try_lock(file.fileno(), path):
                if time.monotonic() > deadline:
                    holder = path.read_text("utf-8").strip()
                    raise TaskError(f"waited {timeout_s:.0f} s for {path}, held by {holder}; end that process or wait")
                time.sleep(POLL_S)
            if not _leads_to(path, file.fileno()):
                continue  # cleaning took it away while we waited
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
            file.flush()
            yield
            return


def _leads_to(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _try_lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise TaskError(f"{path} cannot be locked ({error.strerror}); trees must lie on a local disk") from error
    return True


@contextlib.contextmanager
def tried(path: Path) -> Iterator[bool]:
    """Hold a lock file that is there, if nobody else does; whether it is held."""
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield _leads_to(path, file.fileno())
