"""The keeper's hands: Slurm, through a seam that tests can stand in for."""

import shutil
from collections.abc import Collection
from typing import Protocol

from hpcjet.config.root import LaunchConfig
from hpcjet.errors import SubmitError
from hpcjet.plan import Plan
from hpcjet.slurm.allocations import Allocation, allocations, living, submit_allocation
from hpcjet.slurm.query import JobState, cancel_job


class Jobs(Protocol):
    """Worker allocations of one run."""

    def can_submit(self) -> bool:
        """Whether Slurm can be asked for more from here."""

    def look(self) -> list[tuple[Allocation, JobState]]:
        """Those that have not ended, or of which nobody says so. One question, however many there are."""

    def ended(self, names: Collection[str]) -> list[Allocation]:
        """Those of these names that have ended, with Slurm's word for how; nobody is asked."""

    def submit(self, group: str, nodes: int) -> Allocation:
        """Raises ConfigError if Slurm does not take it, SubmitError or OSError for the rest."""

    def cancel(self, allocation: Allocation) -> None:
        """Raises SubmitError."""


class SlurmJobs:
    """The real ones."""

    def __init__(self, plan: Plan, config: LaunchConfig) -> None:
        self._plan, self._config = plan, config

    def can_submit(self) -> bool:
        return shutil.which("sbatch") is not None

    def look(self) -> list[tuple[Allocation, JobState]]:
        return living(self._plan.run)

    def ended(self, names: Collection[str]) -> list[Allocation]:
        return [each for each in allocations(self._plan.run) if each.ended and each.name in names] if names else []

    def submit(self, group: str, nodes: int) -> Allocation:
        return submit_allocation(self._plan, self._config, group, nodes)

    def cancel(self, allocation: Allocation) -> None:
        if not allocation.key:
            raise SubmitError(f"{allocation.name} is being submitted; it can be cancelled once it has a job")
        cancel_job(allocation.key)
