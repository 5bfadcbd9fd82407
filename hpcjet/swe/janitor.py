"""Removes the scratch folders of attempts that are over, while others are being made."""

import contextlib
import logging
import queue
import threading
from pathlib import Path

from hpcjet.sandbox.scratch import remove_tree

_log = logging.getLogger(__name__)
WAITING = 32
"""Folders that may wait; then who brings another one waits too, so that no disk fills up unseen."""


class Janitor:
    """One thread that removes folders in the order in which they come.

    Removing the folders of an attempt takes longer than making them on some disks, and nobody needs to wait for it.
    """

    def __init__(self) -> None:
        self._folders: queue.Queue[Path] = queue.Queue(WAITING)
        threading.Thread(target=self._work, name="janitor", daemon=True).start()

    def remove(self, folder: Path) -> None:
        """Have a folder removed soon, that nothing uses any more."""
        self._folders.put(folder)

    def finish(self) -> None:
        """Wait until all are gone."""
        self._folders.join()

    def _work(self) -> None:
        while True:
            folder = self._folders.get()
            with contextlib.suppress(OSError):
                remove_tree(folder)
            if folder.exists():
                _log.warning("%s could not be removed", folder)
            self._folders.task_done()
