"""A folder in the node's memory that goes with a node agent's temp folder, for what finds no room on a disk."""

import contextlib
import os
from pathlib import Path

from hpcjet.sandbox.scratch import remove_tree

SHM = Path("/dev/shm")
PREFIX = "hpcjet-"
OWNER = "owner"
"""A link in the folder to the temp folder that it goes with."""


def folder_in_memory(temp: Path, *, shm: Path = SHM) -> Path:
    """Where the folder is, or would be; the temp folder's name is random, so nobody has taken it beforehand."""
    return shm / f"{PREFIX}{temp.name}"


def make_in_memory(temp: Path, *, shm: Path = SHM) -> Path:
    """Make the folder unless it is there; it is removed when the agent ends, or by a later agent if that is killed."""
    folder = folder_in_memory(temp, shm=shm)
    draft = shm / f"{folder.name}.{os.getpid()}"
    draft.mkdir(mode=0o711)
    draft.chmod(0o711)
    (draft / OWNER).symlink_to(temp)
    try:
        draft.rename(folder)
    except OSError:  # another process of the run was quicker
        remove_tree(draft)
    return folder


def sweep_memory(*, shm: Path = SHM) -> None:
    """Remove the folders of this user whose temp folder is gone."""
    for folder in shm.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            if not (folder / OWNER).readlink().exists():
                remove_tree(folder)
