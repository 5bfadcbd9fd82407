"""What the kernel lets this process use of its node: control groups of version 1 and 2, and the CPU affinity."""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

UNLIMITED = 1 << 60
"""Version 1 writes a number of this size where there is no limit."""


@dataclass(frozen=True)
class Limits:
    """None: no limit."""

    cpus: int | None = None
    memory_bytes: int | None = None


def kernel_limits(
    *,
    proc: Path = Path("/proc"),
    root: Path = Path("/sys/fs/cgroup"),
    affinity: Collection[int] | None = None,
) -> Limits:
    """The lowest of what applies to this process; `affinity` is the set of CPUs it may run on, by default its own."""
    groups = list(_groups(proc, root))
    cpus = [len(os.sched_getaffinity(0) if affinity is None else affinity), *_cpusets(groups), *_quotas(groups)]
    total = _number(meminfo(proc).get("MemTotal"))
    return Limits(cpus=max(1, min(cpus)), memory_bytes=min([*memory_limits(proc, root), *total], default=None))


def memory_limits(proc: Path, root: Path) -> list[int]:
    """Bytes: the limits of this process's group and of every group above it."""
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    values = [int(text) for _, folders in _groups(proc, root) for text in _texts(folders, names) if text.isdigit()]
    return [value for value in values if value < UNLIMITED]


def meminfo(proc: Path) -> dict[str, int]:
    """Bytes by name, of /proc/meminfo."""
    lines = (line.split() for line in _text(proc / "meminfo").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1 and words[1].isdigit()}


def num_cpus(ranges: str) -> int:
    """How many CPUs a text such as `0-3,8,10-11` names."""
    ends = [each.partition("-") for each in ranges.split(",") if each.strip()]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def _groups(proc: Path, root: Path) -> Iterator[tuple[set[str], list[Path]]]:
    """(controllers, the folder of this process's group and those above it); version 2 has no name for its controllers.

    In a container the path may be the host's and lead nowhere: then the top folder is the container's own group.
    """
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        tops = [root, root / "unified"] if not controllers else [root / controllers, *_each(root, controllers)]
        for top in dict.fromkeys(tops):
            if top.is_dir():
                yield set(filter(None, controllers.split(","))), _upwards(top, path)
                if controllers:
                    break


def _each(root: Path, controllers: str) -> list[Path]:
    return [root / controller for controller in controllers.split(",")]


def _upwards(top: Path, path: str) -> list[Path]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _cpusets(groups: list[tuple[set[str], list[Path]]]) -> list[int]:
    """The nearest group that tells its CPUs: those above it have no fewer."""
    names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
    found = []
    for controllers, folders in groups:
        if not controllers or "cpuset" in controllers:
            found.extend([num_cpus(text) for text in _texts(folders, names) if text][:1])
    return [count for count in found if count]


def _quotas(groups: list[tuple[set[str], list[Path]]]) -> list[int]:
    """Whole CPUs' worth of time, of each group that has such a limit."""
    pairs = [
        (*_text(folder / "cpu.max").split(), "", "")[:2]
        if not controllers
        else (_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))
        for controllers, folders in groups
        for folder in folders
    ]
    return [max(1, int(quota) // int(period)) for quota, period in pairs if quota.isdigit() and period.isdigit()]


def _texts(folders: list[Path], names: tuple[str, ...]) -> list[str]:
    return [_text(folder / name) for folder in folders for name in names]


def _number(value: int | None) -> list[int]:
    return [] if value is None else [value]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
