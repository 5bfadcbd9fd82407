"""Built layers, packed, on a file system that all nodes see: one node makes a layer, the others unpack it."""

import contextlib
import hashlib
import json
import logging
import os
import platform
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from hpcjet.errors import BusyError, StoreError, TaskError
from hpcjet.runlock import RunLock
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.tasks.clean import Layer, is_due
from hpcjet.tasks.room import DAY_S, Keep

log = logging.getLogger(__name__)
POLL_S = 1.0
PARTS = ("tree", "git", "layer.json")
SUFFIX = ".tar.gz"
DRAFT_S = DAY_S
"""Age at which the draft of a pack belongs to nobody any more."""
# posix: times to the nanosecond, so that make has nothing to do. Of the marks that the kernel leaves in an overlay's
# upper layer only "opaque" says something elsewhere.
_TAR = ("tar", "--format=posix", "--numeric-owner", "--xattrs", "--xattrs-include=user.overlay.opaque", "-I", "gzip -1")
_ENVIRONMENT = {"LC_ALL": "C", "PATH": os.defpath}


class Shelf:
    """The packs below a folder of this user's. Nodes and processes may share it, on NFS too."""

    def __init__(self, folder: Path, keep: Keep) -> None:
        self._folder = folder.absolute()
        self._keep = keep

    def marker(self, pack: str) -> Path:
        """Where the failure of a build is told."""
        return self._folder / f"{pack}.failed.json"

    @contextlib.contextmanager
    def turn(self, pack: str, draft: Path, *, timeout_s: float) -> Iterator[bool]:
        """Whether a pack was unpacked into `draft`; if not, it is this process alone that makes it inside the block.

        Waits while another node makes it. A node that died is missed after a minute. Raises TaskError after timeout_s.
        """
        deadline = time.monotonic() + timeout_s
        with ExitStack() as held:
            while not (found := self._fetch(pack, draft)):
                try:
                    held.enter_context(self._lock(pack))
                except BusyError as busy:
                    if time.monotonic() > deadline:
                        raise TaskError(f"waited {timeout_s:.0f} s for another node to build {pack}: {busy}") from None
                    time.sleep(POLL_S)
                except (OSError, StoreError) as error:
                    log.warning(
                        "exp.trees_shared=%s cannot be written, each node builds for itself: %s", self._folder, error
                    )
                    break
                else:
                    found = self._fetch(pack, draft)
                    break
            yield found

    def _lock(self, pack: str) -> RunLock:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = self._folder / f"{pack}.turn"
        place.mkdir(mode=0o700, exist_ok=True)
        return RunLock(place)

    def _fetch(self, pack: str, draft: Path) -> bool:
        """Unpack into a folder, if the pack is there and whole."""
        try:
            # Listed, not looked up: on NFS a name that was missing may be so for a minute.
            if pack + SUFFIX not in os.listdir(self._folder):  # noqa: PTH208
                return False
        except OSError:
            return False
        path = self._folder / (pack + SUFFIX)
        if why := _unpack(path, draft):
            log.warning("%s could not be unpacked, so the layer is built: %s", path, why)
            for part in PARTS:
                remove_tree(draft / part)
            return False
        with contextlib.suppress(OSError):
            os.utime(path)
        log.info("unpacked %s", path)
        return True

    def put(self, pack: str, layer: Path, *, git_below: Path | None = None) -> None:
        """Pack a layer for others, without the git objects of the one below. What goes wrong is logged."""
        part = self._folder / f".{pack}.{socket.gethostname()}.{os.getpid()}.part"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._clean()
            without = [f"--exclude={path}" for path in _objects(git_below)]
            plain = ["--anchored", "--no-wildcards"]
            why = _run([*_TAR, "-C", str(layer), *plain, *without, "-cf", str(part), *PARTS])
            if not why:
                _sync(part)
                part.rename(self._folder / (pack + SUFFIX))
        except OSError as error:
            why = str(error)
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        if why:
            log.warning("%s could not be packed for other nodes: %s", layer, why)

    def _clean(self) -> None:
        """By age and size. Who is unpacking a pack that goes meanwhile builds the layer if that fails."""
        now = time.time()
        packs, turns = [], []
        for path in self._folder.iterdir():
            about = path.stat()
            if path.name.endswith(SUFFIX):
                packs.append(Layer(folder=path, below="", used=about.st_mtime, size_bytes=about.st_size))
            elif path.suffix == ".turn" and now - (path / "lock").stat().st_mtime > DRAFT_S:
                turns.append(path)
            elif path.suffix == ".part" and now - about.st_mtime > DRAFT_S:
                path.unlink(missing_ok=True)
        total = sum(pack.size_bytes for pack in packs)
        for pack in sorted(packs, key=lambda pack: pack.used):
            if not is_due(pack, self._keep, now=now, total_bytes=total, free_bytes=self._keep.free_bytes):
                break
            pack.folder.unlink(missing_ok=True)
            total -= pack.size_bytes
        for turn in turns:
            remove_tree(turn)


def _objects(git_below: Path | None) -> Iterator[Path]:
    """The git objects that a layer has from the one below, as paths in its pack."""
    if git_below is not None:
        for path in (git_below / "objects").rglob("*"):
            if path.is_file():
                yield "git" / path.relative_to(git_below)


def pack_name(layer: str, *, below_mark: str) -> str:
    """Layers fit one layer below only, and machines with the same system only."""
    system = b""
    with contextlib.suppress(OSError):
        system = Path("/etc/os-release").read_bytes()
    content = json.dumps([platform.machine(), os.confstr("CS_GNU_LIBC_VERSION"), system.decode("latin-1"), below_mark])
    return f"{layer}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def _unpack(path: Path, folder: Path) -> str:
    """What went wrong; empty if nothing did. A layer holds a git directory, which git on the host trusts."""
    try:
        if path.lstat().st_uid != os.geteuid():
            return "it belongs to another user"
    except OSError as error:
        return str(error)
    return _run([*_TAR, "-C", str(folder), "-xpf", str(path)])


def _run(words: list[str]) -> str:
    """What went wrong; empty if nothing did."""
    try:
        done = subprocess.run(words, capture_output=True, check=False, cwd="/", env=_ENVIRONMENT)
    except OSError as error:
        return str(error)
    said = done.stderr.decode("utf-8", "replace").strip()[-500:]
    return f"tar ended with {done.returncode}: {said}" if done.returncode else ""


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
