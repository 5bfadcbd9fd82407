"""Files that appear whole: a reader, or a crash at any moment, finds the old content or the new, never a part."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


def atomic_write(path: Path, data: bytes | str, mode: int = 0o600) -> None:
    """Write a file so that readers, and a crash at any moment, see the old content or the new, never a part.

    It has exactly this mode, whatever the umask.
    """
    with replacing(path, mode=mode) as descriptor:
        view = memoryview(data.encode() if isinstance(data, str) else data)
        while view:
            view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o600) -> Iterator[int]:
    """A descriptor whose content takes the place of `path` when the block ends well, and leaves no trace otherwise."""
    part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            os.fchmod(descriptor, mode)
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last through a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
