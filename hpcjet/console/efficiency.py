"""How much of an allocation was used: Slurm's accounting beside the run's own events."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcjet.cluster.events import Entry, Event
from hpcjet.slurm.call import ask
from hpcjet.slurm.times import elapsed_s

FIELDS = ("JobIDRaw", "State", "ElapsedRaw", "NNodes", "NCPUS", "TotalCPU", "MaxRSS", "AllocTRES", "TRESUsageInTot")
UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Of the last start of a job. None: Slurm does not say."""

    nodes: int
    elapsed_s: int
    cpu: float | None
    """Used CPU time as a share of what was held."""
    memory: float | None
    """Most memory of a node's part of the step, as a share of a node's."""
    gpus: int
    gpu: float | None
    """Use of the GPUs, where the site gathers it."""
    before_s: float | None
    """Seconds that the allocation was held before the work began."""
    after_s: float | None
    """Seconds from the end of the work until all nodes were free."""

    @property
    def idle_node_s(self) -> float | None:
        """Node-seconds before and after the work."""
        known = [each for each in (self.before_s, self.after_s) if each is not None]
        return sum(known) * self.nodes if known else None


def ask_sacct(job_id: str) -> str | None:
    """What accounting has of a job and its steps; None without accounting."""
    answer = ask("sacct", "-n", "-P", "-j", job_id, "-o", ",".join(FIELDS))
    return answer.out if answer.ok else None


def efficiency(sacct: str, events: Sequence[Entry]) -> Efficiency | None:
    """From sacct's lines and the run's events; None if the job is not in accounting yet.

    A heterogeneous job has a record for each component; they are taken together.
    """
    records = [dict(zip(FIELDS, line.split("|"), strict=False)) for line in sacct.splitlines() if line.strip()]
    jobs = {record["JobIDRaw"]: record for record in records if "." not in record["JobIDRaw"]}
    if not jobs:
        return None
    parts = [
        _part(job, [each for each in records if each["JobIDRaw"].startswith(f"{raw}.")]) for raw, job in jobs.items()
    ]
    held_s = sum(part.cpu_s for part in parts)
    used = [part.used_s for part in parts]
    gpus = sum(part.gpus for part in parts)
    shares = [part.memory for part in parts if part.memory is not None]
    busy = [part.gpu * part.gpus for part in parts if part.gpu is not None]
    before_s, after_s = _around(events)
    return Efficiency(
        nodes=sum(part.nodes for part in parts),
        elapsed_s=max(part.elapsed_s for part in parts),
        cpu=sum(each for each in used if each) / held_s if all(used) and held_s else None,
        memory=max(shares, default=None),
        gpus=gpus,
        gpu=sum(busy) / gpus if busy and gpus else None,
        before_s=before_s,
        after_s=after_s,
    )


@dataclass(frozen=True)
class _Part:
    """One job, or one component of a heterogeneous job."""

    nodes: int
    elapsed_s: int
    cpu_s: int
    """CPU time that it held."""
    used_s: float | None
    memory: float | None
    gpus: int
    gpu: float | None


def _part(job: dict[str, str], steps: Sequence[dict[str, str]]) -> _Part:
    elapsed, cpus, nodes = int(job["ElapsedRaw"] or 0), int(job["NCPUS"] or 0), int(job["NNodes"] or 1)
    tres = _tres(job["AllocTRES"])
    peaks = [size(record["MaxRSS"]) for record in steps if record["MaxRSS"]]
    per_node = size(tres["mem"]) / nodes if "mem" in tres else None
    gpus = int(tres.get("gres/gpu", 0))
    return _Part(
        nodes=nodes,
        elapsed_s=elapsed,
        cpu_s=cpus * elapsed,
        used_s=elapsed_s(job["TotalCPU"]),
        memory=max(peaks) / per_node if peaks and per_node else None,
        gpus=gpus,
        gpu=_gpu_use(steps, gpus),
    )


def lines(found: Efficiency) -> list[str]:
    """For a person, one fact a line."""
    said = [f"{found.nodes} node{'s' * (found.nodes != 1)} for {found.elapsed_s} s"]
    if found.cpu is not None:
        said.append(f"CPU: {found.cpu:.0%} of what was held")
    if found.memory is not None:
        said.append(f"memory: {found.memory:.0%} of a node's at the most")
    if found.gpus:
        use = "use not gathered by the site" if found.gpu is None else f"{found.gpu:.0%} used"
        said.append(f"GPUs: {found.gpus}, {use}")
    if found.idle_node_s is not None:
        before, after = found.before_s or 0.0, found.after_s or 0.0
        said.append(
            f"idle: {before:.1f} s before the work, {after:.1f} s after it, {found.idle_node_s:.0f} node-seconds"
        )
    return said


def size(text: str) -> float:
    """Bytes in `123K`, `1.5G`, `500` (KiB is what sacct means without a unit)."""
    text = text.strip().rstrip("Bcn")
    return float(text[:-1] or 0) * UNITS[text[-1]] if text and text[-1] in UNITS else float(text or 0) * 1024


def _tres(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)


def _gpu_use(steps: Sequence[dict[str, str]], gpus: int) -> float | None:
    """gres/gpuutil is the sum of the per cents of all GPUs."""
    values = [_tres(step["TRESUsageInTot"]).get("gres/gpuutil") for step in steps]
    known: list[Any] = [float(value) for value in values if value]
    return max(known) / 100 / gpus if known and gpus else None


def _around(events: Sequence[Entry]) -> tuple[float | None, float | None]:
    """(allocated until the work began, work's end until released), of the last start."""
    at: dict[str, float] = {}
    for entry in events:
        if entry.event == Event.allocated:
            at = {}
        at[entry.event] = entry.t
    begin, start = at.get(Event.allocated.value), at.get(Event.workload_start.value)
    end, free = at.get(Event.workload_end.value), at.get(Event.released.value)
    before = max(0.0, start - begin) if begin is not None and start is not None else None
    after = max(0.0, free - end) if end is not None and free is not None else None
    return before, after
