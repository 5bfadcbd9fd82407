"""A view without overlays: a copy of the stack of base folders for each sandbox."""

import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcjet.errors import SandboxError
from hpcjet.sandbox.identity import Identity
from hpcjet.sandbox.scratch import remove_tree


def copy_stack(lowers: Sequence[Path], target: Path, who: Identity) -> None:
    """Copy the merged content of `lowers` (bottom first) into the folder `target`, owned by the sandbox user.

    Times and modes are kept, so that make sees nothing to do. Blocks are shared where the file system can (XFS, btrfs);
    nothing is ever a hard link to a base file, so whatever is done to the copy leaves the base as it is. Raises
    SandboxError.
    """
    for count, layer in enumerate(lowers):
        names = list(_walk(layer))
        if count:
            for name in names:
                _make_way(layer / name, target / name)
        _run(["cp", "-a", "--reflink=auto", "--remove-destination", f"{layer}/.", str(target)], who)
        for name in names:
            if _is_whiteout(layer / name):
                _drop(target / name)


def _walk(layer: Path) -> Iterator[Path]:
    """Every path below a folder, relative to it, folders before their content."""
    for folder, folders, files in os.walk(layer, onerror=_refuse):
        for name in (*folders, *files):
            yield (Path(folder) / name).relative_to(layer)


def _refuse(error: OSError) -> None:
    raise SandboxError(f"cannot read the base folder {error.filename}: {error.strerror}") from error


def _make_way(source: Path, target: Path) -> None:
    """Remove what the layer deletes, replaces by another kind of file, or hides as an opaque folder.

    Folders that stay are opened to their owner, who writes to them now; cp gives them the layer's mode in the end.
    """
    try:
        below = target.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    above = source.lstat().st_mode
    if stat.S_IFMT(below) != stat.S_IFMT(above) or (stat.S_ISDIR(above) and _is_opaque(source)):
        remove_tree(target)
    elif stat.S_ISDIR(below) and below & 0o700 != 0o700:
        target.chmod(stat.S_IMODE(below) | 0o700)


def _drop(whiteout: Path) -> None:
    """Remove a whiteout that was copied along; its folder looks as if it had never been there."""
    folder = whiteout.parent.stat()
    whiteout.parent.chmod(stat.S_IMODE(folder.st_mode) | 0o700)
    whiteout.unlink()
    whiteout.parent.chmod(stat.S_IMODE(folder.st_mode))
    os.utime(whiteout.parent, ns=(folder.st_atime_ns, folder.st_mtime_ns))


def _is_whiteout(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _is_opaque(folder: Path) -> bool:
    try:
        return os.getxattr(folder, "user.overlay.opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False


def _run(argv: list[str], who: Identity) -> None:
    done = subprocess.run(argv, capture_output=True, check=False, cwd="/", **who.popen())
    if done.returncode != 0:
        why = done.stderr.decode(errors="replace").strip()
        raise SandboxError(f"cannot copy a base folder for a sandbox without overlays: `{' '.join(argv)}` said: {why}")
