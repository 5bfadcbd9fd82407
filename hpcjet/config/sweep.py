"""How a sweep (`python -m hpcjet.launch -m`) is submitted, run and shown; the key `sweep`."""

import re
from dataclasses import dataclass, field

from hpcjet.config.check import at_least, bad

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass
class SweepConfig:
    """A sweep: many points, each a run of its own, in few job arrays."""

    name: str | None = None
    """The name of the sweep's folder, <run.root>/sweeps/<name>; by default its time and a short id."""
    parallelism: int | None = None
    """Most allocations at a time, at least 1; by default 64 on Slurm, 1 on this machine."""
    pack: int = 1
    """Points per allocation, at least 1: one after the other, or as many at a time as sweep.side_by_side says. The time
    limit is for all of them together."""
    side_by_side: int = 1
    """Points of one allocation that run at the same time, at least 1; each gets an equal share of the node's CPUs, GPUs
    and memory. Only for allocations of one node."""
    max_array_size: int | None = None
    """Most elements of one job array, at least 1; by default the controller's MaxArraySize."""
    columns: list[str] = field(default_factory=list)
    """Results to show beside each point, from its summary.json or result.json; by default what the experiment names."""
    rerun: bool = False
    """Run all points, those too that are done."""
    objective: str | None = None
    """The result that a sweeper such as Optuna's is told for each point, a number in summary.json or result.json."""

    def __post_init__(self) -> None:
        for key in ("parallelism", "pack", "side_by_side", "max_array_size"):
            at_least(f"sweep.{key}", getattr(self, key), 1)
        if self.name is not None and not NAME.fullmatch(self.name):
            allowed = "letters, digits, '.', '_' and '-'"
            raise bad("sweep.name", repr(self.name), f"it must be of {allowed}", "choose another")
        if self.side_by_side > self.pack:
            allowed = f"sweep.pack={self.pack} is the most there can be"
            raise bad("sweep.side_by_side", self.side_by_side, allowed, "raise sweep.pack")
