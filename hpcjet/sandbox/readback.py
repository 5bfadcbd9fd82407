"""Reading, on the host, what a sandbox wrote."""

import os
import stat
from pathlib import Path, PurePosixPath

from hpcjet.errors import SandboxError

MAX_BYTES = 256 << 20


def read_back(folder: Path, name: str, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file at the relative path `name` below `folder`, without following any link in `name`.

    Commands may have put a link to a secret of the host, or a pipe that never ends, where a result is expected.
    Raises FileNotFoundError if it is not there, SandboxError if it is something else or larger than `max_bytes`.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise ValueError(f"name={name!r} must be a relative path without '..'")
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = _open(part, descriptor, last=part is parts[-1], shown=f"{folder}/{name}")
            os.close(descriptor)
            descriptor = inner
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:
        raise SandboxError(f"{folder}/{name} is larger than {max_bytes} bytes")
    return data


def _open(part: str, parent: int, *, last: bool, shown: str) -> int:
    kind = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY if last else os.O_PATH | os.O_DIRECTORY
    try:
        descriptor = os.open(part, kind | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SandboxError(f"{shown} is not a plain file ({error.strerror})") from error
    if last and not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SandboxError(f"{shown} is not a plain file")
    return descriptor
