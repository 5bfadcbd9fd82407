"""One seat of a training, and what the driver knows of the host that runs it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpcjet.swarm.actors import Ending
from hpcjet.swarm.hosts import HostState, HostStatus
from hpcjet.swarm.hosts.tally import LONG_LIFE
from hpcjet.swarm.watch import SeatFacts


@dataclass
class Seat:
    """One seat, and what there is of it."""

    name: str
    first_world: int
    worlds: int
    attempt: int = 0
    """Of the host that runs, or of the next one."""
    node_id: str = ""
    """Empty where no host runs."""
    actor: Any = None
    run: Any = None
    """Ends when the host does."""
    asked: Any = None
    status: HostStatus | None = None
    fragments_before: int = 0
    """Of earlier attempts."""
    agent_steps_before: int = 0
    failures: int = 0
    """Attempts that ended without a fragment, one after the other."""
    failed_on: str = ""
    """Ray's id of the node of the last host that ended by itself."""
    failure: str = ""
    """What it ended with."""
    not_before: float = 0.0
    ending: Ending | None = None
    """Of the host before, whose node may be gone."""
    state: HostState | None = None
    """Where the next attempt goes on from."""
    faults: int = 0
    fault: str = ""
    """The last one, or what the last host ended with."""
    vain_before: int = 0
    """Of earlier attempts; see `in_vain`."""

    @property
    def fragments(self) -> int:
        return self.fragments_before + (self.status.fragments if self.status else 0)

    @property
    def agent_steps(self) -> int:
        return self.agent_steps_before + (self.status.agent_steps if self.status else 0)

    @property
    def in_vain(self) -> int:
        """How often all of its worlds failed in a row, at least, without an episode that ended in between."""
        return self.vain_before + (self.status.in_vain if self.status else 0)

    def hear(self, status: HostStatus) -> None:
        """What its host says of itself."""
        self.status = status
        if status.fragments:
            self.failures = 0
        if status.episodes or status.world_steps >= LONG_LIFE * self.worlds:
            self.vain_before = 0
        self.faults += len(status.faults)
        self.fault = status.faults[-1] if status.faults else self.fault

    @property
    def numbers(self) -> str:
        """Of its worlds."""
        return f"worlds {self.first_world} to {self.first_world + self.worlds - 1}"

    def take_off(self) -> None:
        """It has no host any more, and waits for another with the next attempt."""
        self.fragments_before, self.agent_steps_before = self.fragments, self.agent_steps
        self.vain_before = self.in_vain
        self.node_id, self.actor, self.run, self.asked, self.status = "", None, None, None, None
        self.attempt += 1
        self.state = None

    def facts(self, name_of: Callable[[str], str]) -> SeatFacts:
        """`name_of`: a node's name, by Ray's id of it."""
        return SeatFacts(
            seat=self.name, node=name_of(self.node_id) if self.node_id else "", worlds=self.worlds,
            attempts=self.attempt + 1, fragments=self.fragments, agent_steps=self.agent_steps,
            agent_steps_per_s=self.status.agent_steps_per_s if self.status else 0.0,
            shares=_shares(self.status), faults=self.faults, fault=self.fault,
        )  # fmt: skip


def _shares(status: HostStatus | None) -> dict[str, float] | None:
    total = sum(status.seconds.values()) if status else 0.0
    return {name: seconds / total for name, seconds in status.seconds.items()} if status and total else None
