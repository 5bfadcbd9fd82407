"""Folders of processes that were killed: nobody else removes them, so the next process of the kind on the node does."""

import contextlib
import logging
import os
import signal
from pathlib import Path

from hpcjet.sandbox.held import OWNER as OWNER
from hpcjet.sandbox.held import held as held
from hpcjet.sandbox.held import hold as hold
from hpcjet.sandbox.held import left_behind
from hpcjet.sandbox.scratch import remove_tree

TEMP_VARIABLE = "HPCJET_TEMP"
"""Names the private temp folder of the node to everything that runs there."""
PREFIX = "hj-"

_log = logging.getLogger(__name__)


def sweep(base: Path, *, prefix: str = PREFIX) -> None:
    """Remove the folders in `base` that are ours and whose process is gone."""
    for folder in left_behind(base, prefix=prefix):
        with contextlib.suppress(OSError):
            _log.info("removing %s, which a process that was killed left behind", folder)
            end_users(folder)
            remove_tree(folder)


def end_users(folder: Path) -> None:
    """SIGKILL what was started for a temp folder, by its environment, and outlived whoever held the folder.

    A worker process that Ray was just starting looks for its Ray for minutes.
    """
    mark = os.fsencode(f"{TEMP_VARIABLE}={folder}")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
