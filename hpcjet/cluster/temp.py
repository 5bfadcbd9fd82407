"""The private temp folder of a node agent: on a local disk with room, under a path that is short enough for sockets."""

import contextlib
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hpcjet.cluster.leftovers import PREFIX
from hpcjet.errors import BootstrapError

LONGEST = 43
"""Bytes: Ray adds 57 and the digits of a process id to it, and the path of a socket has at most 107."""
LEAST_FREE = 64 * 1024**2
"""Bytes that must be free: Ray's logs and session files."""
PROBE = 64 * 1024
"""Bytes that are written to see whether one can."""
MODE = 0o711
"""Sandboxes of root's runs belong to another user, who must be able to pass through."""
NETWORK = re.compile(
    r"nfs|lustre|gpfs|beegfs|ceph|gluster|pvfs2|panfs|weka|cifs|smb|afs|9p|fuse\.(sshfs|ceph|gluster|juicefs|s3fs|gcsfuse)"
)
"""File systems that are not on this node: slow for Ray's session, and shared by nodes. The last to be tried."""
FALLBACKS = ("/tmp", "/var/tmp", "/dev/shm")


class Unfit(Exception):
    """Why a folder cannot be the base."""


def private_temp(env: Mapping[str, str], *, fallbacks: tuple[str, ...] = FALLBACKS) -> Path:
    """A new folder for us alone in the first base that will do: SLURM_TMPDIR, TMPDIR, /tmp, /var/tmp, /dev/shm.

    Raises BootstrapError with the reason for each base if none will.
    """
    reasons = []
    for base in sorted(bases(env, fallbacks=fallbacks), key=lambda base: is_remote(Path(base))):
        try:
            return _made_in(Path(base))
        except Unfit as unfit:
            reasons.append(f"{base}: {unfit}")
        except OSError as error:
            reasons.append(f"{base}: {error.strerror}")
    raise BootstrapError(
        f"no folder for Ray's sockets and session files on {socket.gethostname()} ({'; '.join(reasons)}); "
        f"point TMPDIR to a local folder of your own of at most {_longest_base()} bytes with 64 MiB free"
    )


def bases(env: Mapping[str, str], *, fallbacks: tuple[str, ...] = FALLBACKS) -> list[str]:
    """The folders in which the temp folder may be."""
    named = [env.get("SLURM_TMPDIR"), env.get("TMPDIR"), *fallbacks]
    return list(dict.fromkeys(base for base in named if base))


def socket_path_fits(folder: Path) -> bool:
    """Whether Ray can make its sockets below."""
    return len(os.fsencode(folder)) <= LONGEST


def is_remote(path: Path, *, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether a path is on a file system of the network."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
        real = path.resolve()
    except (OSError, RuntimeError):
        return False
    # The last of the longest mount points that lead to the path: a later mount hides an earlier one.
    best: tuple[int, str] = (-1, "")
    for words in lines:
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), words[4])
        if real.is_relative_to(point) and len(point) >= best[0]:
            best = (len(point), words[words.index("-") + 1])
    return bool(NETWORK.match(best[1]))


def _made_in(base: Path) -> Path:
    _check_base(base)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    try:
        _check_room(base)
        folder.chmod(MODE)
        _check_private(folder)
        _write_probe(folder / "probe", sync=is_remote(base))
        _bind_probe(folder / "probe")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _check_base(base: Path) -> None:
    if not base.is_absolute():
        raise Unfit("not an absolute path")
    if len(os.fsencode(base)) > _longest_base():
        raise Unfit(
            f"{len(os.fsencode(base))} bytes long, at most {_longest_base()} leave room for the names of sockets"
        )
    mode = base.stat().st_mode
    if not stat.S_ISDIR(mode):
        raise Unfit("not a folder")
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise Unfit("everybody may replace what lies in it (no sticky bit)")


def _check_room(base: Path) -> None:
    disk = os.statvfs(base)
    free = disk.f_bavail * disk.f_frsize
    if free < LEAST_FREE:
        raise Unfit(f"only {free // 1024**2} MiB free, {LEAST_FREE // 1024**2} needed")
    # Some file systems do not count: they tell no inodes at all.
    if disk.f_files and not disk.f_favail:
        raise Unfit("no inodes free")


def _check_private(folder: Path) -> None:
    """Some network file systems give everything to one owner, or one mode to everything."""
    state = folder.stat()
    if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) != MODE:
        raise Unfit("a folder there does not stay private (owner and mode are not kept)")


def _write_probe(file: Path, *, sync: bool) -> None:
    """A quota is met only by writing, on the network only when the data leaves the node."""
    with file.open("wb") as probe:
        probe.write(b"\0" * PROBE)
        if sync:
            probe.flush()
            os.fsync(probe.fileno())
    file.unlink()


def _bind_probe(path: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        try:
            probe.bind(str(path))
        except OSError as error:
            raise Unfit(f"no socket can be made there ({error.strerror})") from None
    path.unlink()


def _longest_base() -> int:
    """Of a base, so that a folder made in it fits."""
    return LONGEST - len(f"/{PREFIX}") - 8  # mkdtemp adds 8 letters
