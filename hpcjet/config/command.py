"""The experiments that run a program of the user's own, in the config group `exp`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from omegaconf import MISSING

from hpcjet.config.check import at_least, bad
from hpcjet.config.exp import ExpConfig


@dataclass
class CommandConfig(ExpConfig):
    """A program of your own."""

    command: str = MISSING
    """The program, as a line for bash; or write it behind --, word by word, at the end of the launch."""
    workdir: Path | None = None
    """The folder in which it runs; by default the one of the launch."""
    python: str | None = None
    """The Python that `python` means in the command, such as /path/venv/bin/python; by default the one of
    your shell, or the one that runs hpcjet if its folder is not on PATH."""

    def __post_init__(self) -> None:
        if not self.command.strip() or "\0" in self.command:
            raise bad("exp.command", repr(self.command), "it must be a line for bash", "add -- python my_program.py")


@dataclass
class RayConfig(CommandConfig):
    """A program of your own on the first node, with Ray on all nodes: `ray.init()` finds it."""


@dataclass
class MpiConfig(CommandConfig):
    """An MPI program of your own, such as one with mpi4py, on all nodes."""

    one_step: ClassVar[bool] = True

    ranks_per_node: int | None = None
    """Ranks on each node, at least 1; by default its CPUs divided by exp.cpus_per_rank."""
    cpus_per_rank: int = 1
    """CPUs of each rank, at least 1."""
    mpi: str | None = None
    """How Slurm connects the ranks: pmix, pmi2 or what else `srun --mpi=list` names; by default as the site has it."""
    ray: bool = False
    """Start Ray as well."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("exp.ranks_per_node", self.ranks_per_node, 1)
        at_least("exp.cpus_per_rank", self.cpus_per_rank, 1)

    @property
    def wants_ray(self) -> bool:
        return self.ray


@dataclass
class TorchrunConfig(CommandConfig):
    """A torch.distributed program of your own on all nodes, started by torch's launcher."""

    one_step: ClassVar[bool] = True

    procs_per_node: int | None = None
    """Processes on each node, at least 1; by default one per GPU of the node, else one."""
    ray: bool = False
    """Start Ray as well."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("exp.procs_per_node", self.procs_per_node, 1)

    @property
    def wants_ray(self) -> bool:
        return self.ray
