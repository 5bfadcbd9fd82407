"""The code of a run as it was at the launch: a copy on the shared file system that pending jobs run from.

<run.root>/.snapshots/<hash of the content>/tree/    the copy, shared by all runs and points with the same content
                                           /users/   one file per run directory that needs it
A copy is made under another name and renamed when it is whole. One that no run needs any more is removed by the next.
"""

import contextlib
import hashlib
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcjet.config.root import SnapshotKind
from hpcjet.errors import ConfigError
from hpcjet.rundir import RunDir, path_name

FOLDER = ".snapshots"
LEFT_OUT = frozenset({".git", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".ruff_cache",
                      ".pytest_cache", FOLDER})  # fmt: skip
"""Folders that snapshot=copy does not take."""
MOST_BYTES = 2 * 1024**3
UNFINISHED_S = 3600.0
"""After that a copy that never became whole is given up."""


@dataclass(frozen=True)
class Snapshot:
    """A copy of `top`."""

    top: Path
    folder: Path

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    def inside(self, path: Path) -> Path:
        """Where a path of the original is in the copy; itself if it is not below `top`, or was not taken."""
        if not path.is_relative_to(self.top):
            return path
        copied = self.tree / path.relative_to(self.top)
        return copied if copied.exists() else path

    def python_path(self, entries: Sequence[str]) -> list[str]:
        """The entries of sys.path that lie in the copy: an editable installation is imported from there."""
        moved = [self.inside(Path(entry or ".").absolute()) for entry in entries]
        return list(dict.fromkeys(str(path) for path in moved if path.is_relative_to(self.tree)))

    def add_user(self, run: RunDir) -> None:
        """Keep the copy for as long as this run directory exists."""
        (self.folder / "users" / path_name(str(run.path))).write_text(str(run.path))


def take(kind: SnapshotKind, here: Path, root: Path) -> Snapshot:
    """Copy what is around `here` (git: its repository; copy: the folder itself) to below `root`.

    Raises ConfigError if there is no repository, or too much to copy.
    """
    top = _repository(here) if kind is SnapshotKind.git else here
    files = sorted(_tracked(top) if kind is SnapshotKind.git else _walk(top, without=root))
    _check_size(top, files, kind)
    home = root / FOLDER
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_unused(home)
    folder = home / _digest(top, files)
    if not folder.exists():
        _copy(top, files, folder)
    os.utime(folder)  # in use: not for removal within the hour in which its run is made
    return Snapshot(top, folder)


def _repository(here: Path) -> Path:
    done = _git(here, "rev-parse", "--show-toplevel")
    if done is None:
        raise ConfigError(
            f"snapshot=git: {here} is in no git repository; launch from one, or set snapshot=copy or none"
        )
    return Path(os.fsdecode(done).rstrip("\n"))


def _tracked(top: Path) -> Iterator[str]:
    """Tracked files, and new ones that are not ignored, relative to `top`; in submodules too."""
    listed = _git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard") or b""
    for name in dict.fromkeys(os.fsdecode(each) for each in listed.split(b"\0") if each):
        path = top / name
        if path.is_symlink() or path.is_file():
            yield name
        elif path.is_dir():
            yield from (f"{name.rstrip('/')}/{each}" for each in _tracked(path))


def _walk(top: Path, *, without: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(top):
        at = Path(folder)
        for each in [each for each in folders if (at / each).is_symlink()]:
            yield str((at / each).relative_to(top))
        kept = [each for each in folders if each not in LEFT_OUT and not (at / each).is_symlink()]
        folders[:] = [each for each in kept if (at / each).absolute() != without]
        yield from (str((at / name).relative_to(top)) for name in names if not _is_special(at / name))


def _is_special(path: Path) -> bool:
    """A socket, a pipe, a device: nothing to copy."""
    return not (path.is_symlink() or path.is_file())


def _check_size(top: Path, files: Sequence[str], kind: SnapshotKind) -> None:
    size = sum((top / name).lstat().st_size for name in files)
    if size > MOST_BYTES:
        largest = sorted(files, key=lambda name: (top / name).lstat().st_size)[-3:]
        raise ConfigError(
            f"snapshot={kind.name}: {top} has {size / 1024**3:.1f} GiB in {len(files)} files, more than 2 GiB; "
            f"the largest are {', '.join(reversed(largest))}: launch from a smaller folder, or set snapshot=none"
        )


def _digest(top: Path, files: Sequence[str]) -> str:
    """Of names, modes and contents, and of the place: what is imported knows where it lies."""
    whole = hashlib.sha256(os.fsencode(top))
    for name in files:
        path = top / name
        link = path.is_symlink()
        content = os.fsencode(path.readlink()) if link else path.read_bytes()
        whole.update(
            b"\0".join([os.fsencode(name), b"%o" % (path.lstat().st_mode & 0o111), hashlib.sha256(content).digest()])
        )
    return whole.hexdigest()[:24]


def _copy(top: Path, files: Sequence[str], folder: Path) -> None:
    part = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.part")
    try:
        (part / "users").mkdir(mode=0o700, parents=True)
        for name in files:
            target = part / "tree" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(top / name, target, follow_symlinks=False)
        (part / "tree").mkdir(exist_ok=True)
        part.rename(folder)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        if not folder.exists():  # else another launch was faster
            raise ConfigError(f"the snapshot of {top} cannot be written to {folder.parent}: {error}") from error


def _remove_unused(home: Path) -> None:
    for folder in home.iterdir():
        age_s = time.time() - folder.stat().st_mtime
        with contextlib.suppress(OSError):
            if age_s > UNFINISHED_S and not _users(folder):
                # Out of the way at once: a launch that finds the name must find it whole.
                gone = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.gone")
                folder.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)


def _users(folder: Path) -> list[Path]:
    """The run directories that need a copy and still exist."""
    try:
        return [run for each in (folder / "users").iterdir() if (run := Path(each.read_text())).exists()]
    except FileNotFoundError:
        return []


def _git(folder: Path, *words: str) -> bytes | None:
    """What git said, or None if it failed or is not there."""
    try:
        return subprocess.run(["git", "-C", folder, *words], capture_output=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return None
