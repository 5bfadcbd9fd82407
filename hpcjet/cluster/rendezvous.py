"""How the nodes of one allocation meet: small files in a folder of the run directory, fresh after each requeue.

On NFS a name that was looked for in vain can stay invisible for half a minute, while listing its folder shows it at
once: so everything here is found by listing.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcjet.atomic import atomic_write
from hpcjet.cluster.place import Place
from hpcjet.errors import BootstrapError
from hpcjet.rundir import RunDir

HEAD = "head.json"
"""Where the head's node agent listens; facts: addresses, port."""


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """Where the head of a run is now, for the nodes of other allocations: head.json in the run directory."""

    allocation: str
    restart: int
    addresses: list[str]
    port: int
    secret: str
    """The name of the secret by which it knows its workers."""
    started: float
    """Unix seconds."""

    @property
    def place_name(self) -> str:
        return f"{self.allocation}-{self.restart}"


def leave_pointer(run: RunDir, place: Place, addresses: list[str], port: int, *, secret: str) -> None:
    """Tell where this head is, instead of any before it."""
    pointer = Pointer(
        allocation=place.allocation,
        restart=place.restart,
        addresses=addresses,
        port=port,
        secret=secret,
        started=time.time(),
    )
    atomic_write(run.head, json.dumps(asdict(pointer)))


def take_pointer_away(run: RunDir, place: Place) -> None:
    """Unless another head has left its own."""
    pointer = read_pointer(run)
    if pointer and pointer.place_name == place.name:
        run.head.unlink(missing_ok=True)


def read_pointer(run: RunDir) -> Pointer | None:
    """Where the head is, or None. Anything but a pointer there counts as none."""
    try:
        if run.head not in run.path.iterdir():
            return None
        pointer = Pointer(**json.loads(run.head.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    kinds = isinstance(pointer.port, int) and isinstance(pointer.addresses, list) and isinstance(pointer.secret, str)
    return pointer if kinds else None


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
