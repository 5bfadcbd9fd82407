"""A worker process of the run: an actor that makes many attempts at a time, in threads."""

import logging
import os
import socket
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

from hpcjet.cluster.leftovers import hold, sweep
from hpcjet.cluster.site import TEMP_VARIABLE
from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import SandboxError
from hpcjet.sandbox import probe
from hpcjet.sandbox.detect import scratch_base
from hpcjet.swe.attempt import Attempter, AttemptSettings, Job
from hpcjet.swe.record import Record

PREFIX = "attempts-"


class AttemptHost:
    """Made once per process by Ray; `make` is called from as many threads as it has slots."""

    def __init__(self, settings: AttemptSettings) -> None:
        logging.basicConfig(level=logging.WARNING)
        self._sandbox = settings.sandbox
        self._attempter = Attempter(
            replace(settings, scratch=_scratch_folder(settings.sandbox)), num_ready=settings.sandbox.ready
        )

    def ready(self) -> tuple[str, str]:
        """(host name, how agents are isolated here). Raises SandboxError if they cannot be."""
        found = probe(self._sandbox)
        if found.runtime is None or not found.fixed_paths:
            raise SandboxError(f"{socket.gethostname()} has no sandbox that shows a tree at its path: {found.reason}")
        return socket.gethostname(), f"{found.kind} {found.version}, {'overlays' if found.overlay else 'copies'}"

    def make(self, job: Job) -> Record:
        """Make one attempt."""
        return self._attempter.make(job)


def _scratch_folder(sandbox: SandboxConfig) -> Path:
    """Where the attempts of this process work: in the node agent's temp folder, which it removes whatever happens.

    What worker processes that were killed left there is removed first: a node that loses many must not fill its disk.
    """
    base = Path(os.environ[TEMP_VARIABLE]) if sandbox.scratch is None else scratch_base(sandbox)
    sweep(base, prefix=PREFIX)
    folder = base / f"{PREFIX}{token_hex(4)}"
    # The sandboxes' user may pass through it, and not look into it.
    folder.mkdir(mode=0o711, parents=True)
    folder.chmod(0o711)
    hold(folder)  # as long as this process lives
    return folder
