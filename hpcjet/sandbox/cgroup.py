"""A cgroup for each sandbox, where the job's own is delegated to the user (version 2, and version 1 as it is found)."""

import contextlib
import itertools
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcjet.sandbox.spec import Limits

CONTROLLERS = ("memory", "pids", "cpu")
PERIOD_US = 100_000
MEMORY_SLACK = 1.25
REMOVE_S = 1.0
NAME = "hpcjet-sandbox-"
_count = itertools.count()


@dataclass(frozen=True)
class Delegation:
    """Folders in which this user may make cgroups, by controller; version 2 has one for all."""

    version: int
    folders: tuple[tuple[str, Path], ...]

    def __str__(self) -> str:
        return f"cgroup v{self.version} ({', '.join(name for name, _ in self.folders)})"


def find_delegation(wanted: Path | None, *, proc: Path = Path("/proc/self")) -> Delegation | None:
    """The folder that was named, else the cgroups of this process, as far as others can be made in them."""
    if wanted is not None:
        return _unified(wanted) or _first_version(
            {name: wanted for name in CONTROLLERS if (wanted / f"{name}.stat").exists()}
        )
    own = own_folders((proc / "cgroup").read_text(), (proc / "mountinfo").read_text())
    unified = _unified(own.pop("")) if "" in own else None
    return unified or _first_version(own)


def own_folders(cgroups: str, mounts: str) -> dict[str, Path]:
    """Controller: folder of a process's cgroup. "" stands for version 2. From the texts of /proc/PID."""
    places: dict[str, tuple[str, Path]] = {}
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        root, point = left.split()[3:5]
        kind, _, options = right.split()[:3]
        if kind == "cgroup2":
            places[""] = (root, Path(point))
        elif kind == "cgroup":
            places |= {name: (root, Path(point)) for name in options.split(",") if name in CONTROLLERS}
    found = {}
    for line in cgroups.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            if name in places:
                top, folder = places[name]
                found[name] = folder / path.removeprefix(top.rstrip("/")).lstrip("/")
    return found


def _unified(folder: Path) -> Delegation | None:
    """Version 2. Controllers must be on for children, which the kernel refuses while processes are in the folder."""
    control = folder / "cgroup.subtree_control"
    if not (_writable(folder) and control.exists()):
        return None
    there = (folder / "cgroup.controllers").read_text().split()
    for name in CONTROLLERS:
        if name in there:
            with contextlib.suppress(OSError):
                control.write_text(f"+{name}")
    on = [name for name in control.read_text().split() if name in CONTROLLERS]
    return Delegation(2, tuple((name, folder) for name in on)) if on else None


def _first_version(folders: Mapping[str, Path]) -> Delegation | None:
    usable = tuple((name, folders[name]) for name in CONTROLLERS if name in folders and _writable(folders[name]))
    return Delegation(1, usable) if usable else None


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)


def settings(version: int, limits: Limits) -> dict[str, dict[str, str]]:
    """Controller: file and content.

    More than the limits, because the supervisor is who ends a command that is over one, and this only holds what is
    faster than it: the kernel alone would let a command go on that cannot fork, which few programs take well, and at
    the end of memory it picks one process, of the command or not.
    """
    memory, pids, cpus = int(MEMORY_SLACK * (limits.memory_bytes or 0)), limits.processes, limits.cpus
    quota = (cpus or 0) * PERIOD_US
    if version == 2:
        return {
            "memory": {"memory.max": str(memory), "memory.swap.max": "0"} if memory else {},
            "pids": {"pids.max": str(2 * pids)} if pids else {},
            "cpu": {"cpu.max": f"{quota} {PERIOD_US}"} if cpus else {},
        }
    return {
        "memory": {"memory.limit_in_bytes": str(memory)} if memory else {},
        "pids": {"pids.max": str(2 * pids)} if pids else {},
        "cpu": {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota)} if cpus else {},
    }


class Group:
    """The cgroups of one sandbox."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders
        self._seen = self._events()

    def hit(self) -> str:
        """The limit that the kernel has held since the last call; empty if none."""
        now = self._events()
        new = [name for name, num in now.items() if num > self._seen.get(name, 0)]
        self._seen = now
        return new[0] if new else ""

    def _events(self) -> dict[str, int]:
        found = {}
        for limit, controller, names, key in (
            ("memory", "memory", ("memory.events", "memory.oom_control"), "oom_kill"),
            ("processes", "pids", ("pids.events",), "max"),
        ):
            for name in names:
                with contextlib.suppress(OSError, KeyError):
                    lines = (self._folders[controller] / name).read_text().splitlines()
                    found[limit] = next((int(line.split()[1]) for line in lines if line.split()[0] == key), 0)
                    break
        return found

    def remove(self) -> None:
        """Remove the folders, which the kernel refuses for a moment after the last process has ended."""
        deadline = time.monotonic() + REMOVE_S
        for folder in set(self._folders.values()):
            while folder.exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                if time.monotonic() > deadline:
                    return  # the sweep of a later probe finds it
                time.sleep(0.002)


def new_group(delegation: Delegation | None, limits: Limits, pids: Iterable[int]) -> Group | None:
    """A cgroup with these limits and processes; None where there is none to be had."""
    if delegation is None:
        return None
    name = f"{NAME}{os.getpid()}-{next(_count)}"
    folders: dict[str, Path] = {}
    try:
        wanted = settings(delegation.version, limits)
        for controller, parent in delegation.folders:
            if not wanted[controller]:
                continue
            folder = parent / name
            folder.mkdir(exist_ok=True)
            folders[controller] = folder
            for file, content in wanted[controller].items():
                with contextlib.suppress(FileNotFoundError):  # a kernel without swap accounting
                    (folder / file).write_text(content)
        for folder in set(folders.values()):
            for pid in pids:
                (folder / "cgroup.procs").write_text(str(pid))
    except BaseException:
        Group(folders).remove()
        raise
    return Group(folders) if folders else None


def sweep(delegation: Delegation | None) -> None:
    """Remove what processes that are gone have left: empty cgroups with their process id in the name."""
    for folder in {folder for _, folder in delegation.folders} if delegation else ():
        for left in folder.glob(f"{NAME}*"):
            pid = left.name.removeprefix(NAME).partition("-")[0]
            if not Path(f"/proc/{pid}").exists():
                with contextlib.suppress(OSError):
                    left.rmdir()
