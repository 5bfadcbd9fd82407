"""Where the base trees of a node lie: on a local disk with room, else in its memory."""

import os
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcjet.cluster.memory import SHM, folder_in_memory, make_in_memory
from hpcjet.cluster.place import available_memory
from hpcjet.cluster.site import TEMP_VARIABLE
from hpcjet.cluster.temp import bases, is_remote
from hpcjet.config.sandbox import SandboxConfig
from hpcjet.paths import cache_dir
from hpcjet.sandbox.detect import is_noexec
from hpcjet.tasks.room import GIB, Keep, NoRoom, lack
from hpcjet.tasks.shelf import Shelf

DISKS = ("/tmp", "/var/tmp")
MEMORY_SHARE = 0.5
"""Of the memory that is left to the job: what base trees in memory may need."""


class Unfit(Exception):
    """Why base trees cannot lie somewhere."""


def choose_trees(
    named: Path | None, sandbox: SandboxConfig, *, keep: Keep, env: Mapping[str, str] = os.environ
) -> Path:
    """The folder for base trees on this node; it is made.

    `named` if that is given. Else the first that is on a local disk, lets programs run and has room: `trees` in the
    cache folder; a folder in sandbox.scratch, SLURM_TMPDIR, TMPDIR, /tmp or /var/tmp; one in /dev/shm, if half of the
    memory that is left to the job is enough, which goes when the job ends. Raises NoRoom with the reason for each.
    """
    if named is not None:
        return named
    reasons = []
    for folder in candidates(sandbox, env):
        try:
            _check(folder, keep, temp=env.get(TEMP_VARIABLE, ""))
            return folder
        except Unfit as unfit:
            reasons.append(f"{folder}: {unfit}")
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
    raise NoRoom(
        f"no place for base trees on {socket.gethostname()} ({'; '.join(reasons)}); free space on a local disk, lower "
        f"exp.trees_free_gb={keep.free_bytes / GIB:g}, or set exp.trees to a folder on another local disk"
    )


def candidates(sandbox: SandboxConfig, env: Mapping[str, str]) -> Iterator[Path]:
    """Where base trees may lie, the best first."""
    yield cache_dir() / "trees"
    name = f"hpcjet-trees-{os.geteuid()}"
    named = [str(sandbox.scratch)] if sandbox.scratch else []
    for base in dict.fromkeys([*named, *bases(env, fallbacks=DISKS)]):
        yield Path(base) / name
    if temp := env.get(TEMP_VARIABLE):
        yield folder_in_memory(Path(temp)) / "trees"


def _check(folder: Path, keep: Keep, *, temp: str) -> None:
    """Make the folder. Raises Unfit or OSError if base trees cannot lie there."""
    parent = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if is_remote(parent):
        raise Unfit("on a file system of the network")
    in_memory = folder.is_relative_to(SHM)
    if in_memory and (share := int(available_memory() * MEMORY_SHARE)) < keep.free_bytes:
        raise Unfit(f"half of the memory that is left is {share / GIB:.1f} GiB, {keep.free_bytes / GIB:g} needed")
    if is_noexec(parent):
        raise Unfit("programs cannot run there (noexec)")
    if missing := lack(parent, keep):
        raise Unfit(missing)
    if in_memory:
        make_in_memory(Path(temp))
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    about = folder.lstat()
    # Others could have made a folder of this name in a common one, and put their own trees there.
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise Unfit("not a folder that only this user may write")


def choose_shelf(named: Path | None, *, keep: Keep) -> Shelf | None:
    """Where nodes share what they have built: `named`, else the cache folder if that is on a network file system."""
    if named is not None:
        return Shelf(named, keep)
    folder = cache_dir() / "packs"
    parent = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return Shelf(folder, keep) if is_remote(parent) else None


def fit_to(folder: Path, keep: Keep) -> Keep:
    """`keep`, with a size that memory allows where the folder is in memory."""
    if not folder.is_relative_to(SHM):
        return keep
    share = int(available_memory() * MEMORY_SHARE)
    size = share if keep.size_bytes is None else min(keep.size_bytes, share)
    return Keep(size_bytes=size, age_s=keep.age_s, free_bytes=keep.free_bytes)
