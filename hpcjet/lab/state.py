"""What the lab has started, written down before anything depends on it."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hpcjet.errors import LabError
from hpcjet.lab.layout import Layout
from hpcjet.lab.process import Process, holds, is_alive

LOCK_WAIT_S = 120


@dataclass
class State:
    """The nodes asked for, whether the lab once came up with them, and the processes started, by name."""

    nodes: int
    ready: bool = False
    processes: dict[str, Process] = field(default_factory=dict)

    def alive(self, name: str) -> Process | None:
        """The process of that name, if it is still the one that the lab started."""
        process = self.processes.get(name)
        return process if process and is_alive(process) else None


def load_state(layout: Layout) -> State | None:
    """The state as last written; None if nothing was started since the machine booted."""
    try:
        raw = json.loads(layout.state_file.read_text())
    except FileNotFoundError:
        return None
    if raw["boot"] != _boot_id():
        return None
    processes = {name: Process(*pair) for name, pair in raw["processes"].items()}
    return State(nodes=raw["nodes"], ready=raw["ready"], processes=processes)


def save_state(layout: Layout, state: State) -> None:
    """Write and rename, so that a reader, or a kill in between, never meets half a file."""
    raw = {"boot": _boot_id(), "nodes": state.nodes, "ready": state.ready, "processes": state.processes}
    fresh = layout.state_file.with_suffix(".new")
    fresh.write_text(json.dumps(raw, indent=1) + "\n")
    fresh.rename(layout.state_file)


def locked(layout: Layout) -> AbstractContextManager[None]:
    """One change of the lab at a time."""
    return locked_file(layout.lock_file, wait_s=LOCK_WAIT_S)


@contextmanager
def locked_file(path: Path, *, wait_s: float) -> Iterator[None]:
    """Hold the lock of this file; the kernel drops it when its holder dies."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        if not holds(lambda: _try_lock(descriptor), within_s=wait_s):
            raise LabError(
                f"{path} is held by another `hpcjet lab` for more than {wait_s:.0f} s; let that one end first"
            )
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
