"""How the nodes of one allocation meet: small files in a folder of the run directory, fresh after each requeue.

On NFS a name that was looked for in vain can stay invisible for half a minute, while listing its folder shows it at
once: so everything here is found by listing.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcjet.errors import BootstrapError
from hpcjet.rundir import RunDir, atomic_write

HEAD = "head.json"
"""Where the head's node agent listens; facts: addresses, port."""


def exit_file(run: RunDir, env: Mapping[str, str]) -> Path:
    """Where the head leaves the exit code of an allocation's part of the run: the batch script ends with it.

    Named without Slurm's array ids, so that a shell can.
    """
    job = env.get("SLURM_JOB_ID") or f"local-{os.getpid()}"
    return run.path / "rendezvous" / f"exit-{job}-{env.get('SLURM_RESTART_COUNT') or 0}"


def lost_file(run: RunDir, env: Mapping[str, str]) -> Path:
    """Where the head names the nodes that it lost, one a line; the batch script cleans up there."""
    ended = exit_file(run, env)
    return ended.with_name(f"{ended.name}-lost")


@dataclass(frozen=True)
class Rendezvous:
    """The folder where the nodes of an allocation leave word for each other."""

    folder: Path

    def open(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def leave(self, name: str, word: dict[str, Any]) -> None:
        """Leave word under a name; a second word under the same name replaces the first."""
        atomic_write(self.folder / name, json.dumps(word))

    def names(self) -> set[str]:
        return {entry.name for entry in os.scandir(self.folder)}

    def read(self, name: str) -> dict[str, Any] | None:
        """What was left under a name, or None."""
        if name not in self.names():
            return None
        word = json.loads((self.folder / name).read_text())
        assert isinstance(word, dict)
        return word

    def await_word(self, name: str, *, timeout_s: float, check: Callable[[], None], what: str) -> dict[str, Any]:
        """Wait for a word; `check` is called between looks and may raise. Raises BootstrapError at the time limit."""
        deadline = time.monotonic() + timeout_s
        while (word := self.read(name)) is None:
            check()
            if time.monotonic() > deadline:
                raise BootstrapError(f"waited {timeout_s:.0f} s for {what} ({self.folder / name} did not appear)")
            time.sleep(0.05)
        return word
