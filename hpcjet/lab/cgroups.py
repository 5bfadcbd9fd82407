"""The control groups of the lab: job tracking and memory limits for Slurm, and the list of all that the lab started."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hpcjet.errors import LabError
from hpcjet.lab.process import holds, identify, send

MOUNT = Path("/sys/fs/cgroup")
# The ones that Slurm's cgroup/v1 plugin wants to see.
CONTROLLERS = ("freezer", "memory", "cpuset", "devices")


def cgroup_version() -> int:
    """1 if this machine has Slurm's controllers as version 1, 2 if it has the unified hierarchy."""
    if (MOUNT / "cgroup.controllers").exists():
        return 2
    missing = [name for name in CONTROLLERS if not (MOUNT / name / "cgroup.procs").exists()]
    if missing:
        raise LabError(
            f"{MOUNT} has no {', '.join(missing)} controller; the lab needs {', '.join(CONTROLLERS)} (version 1) or "
            f"version 2; mount them, or add cgroup_enable=memory to the kernel's command line"
        )
    return 1


@dataclass(frozen=True)
class CgroupTree:
    """The lab's groups: one of its own per node, and `host` and `login` for the daemons and the user's commands."""

    name: str
    version: int

    @property
    def bases(self) -> list[Path]:
        parents = [MOUNT / controller for controller in CONTROLLERS] if self.version == 1 else [MOUNT]
        return [parent / self.name for parent in parents]

    def procs_files(self, group: str) -> list[Path]:
        """The files that a process writes its id to in order to join the group."""
        return [base / group / "cgroup.procs" for base in self.bases]

    def create(self, group: str) -> list[Path]:
        """Make the group anew and return its procs files; what is left of an earlier one is removed."""
        self.remove(group)
        for base in self.bases:
            for path in (base, base / group):
                path.mkdir(exist_ok=True)
                _fill_cpuset(path)
        return self.procs_files(group)

    def pids(self, group: str = "") -> set[int]:
        """Everything alive in the group and below it."""
        found = (int(line) for base in self.bases for file in _procs_below(base / group) for line in _lines(file))
        return {pid for pid in found if identify(pid)}

    def kill(self, group: str = "") -> None:
        """SIGKILL everything in the group, until nothing comes after."""
        if not holds(lambda: not self._kill_once(group), within_s=10):
            raise LabError(f"processes {sorted(self.pids(group))} of the lab outlive SIGKILL; see /proc/PID/stack")

    def remove(self, group: str = "") -> None:
        """Remove the group and all below it; the kernel takes a moment to let go of one whose last process died."""
        for base in self.bases:
            if not holds(partial(_remove_tree, base / group), within_s=10):
                raise LabError(f"{base / group} cannot be removed: something still runs in it; see its cgroup.procs")

    def _kill_once(self, group: str) -> set[int]:
        pids = self.pids(group)
        for process in filter(None, map(identify, pids)):
            send(process, signal.SIGKILL)
        return pids


def _fill_cpuset(path: Path) -> None:
    """A version 1 cpuset takes no process before it has CPUs and memory nodes."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        file = path / name
        if file.exists() and not file.read_text().strip():
            file.write_text((path.parent / name).read_text())
    if (clone := path / "cgroup.clone_children").exists() and (path / "cpuset.cpus").exists():
        clone.write_text("1")


def _procs_below(path: Path) -> Iterator[Path]:
    return path.rglob("cgroup.procs") if path.is_dir() else iter(())


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:  # the group was removed while we walked
        return []


def _remove_tree(path: Path) -> bool:
    """Whether the tree is gone."""
    below = sorted((entry for entry in path.rglob("*") if entry.is_dir()), reverse=True) if path.is_dir() else []
    for directory in [*below, path]:
        try:
            directory.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True
