"""What a world host is told, and what it tells."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcjet.config.swarm.environment import EnvironmentConfig
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.errors import EXIT_WORKLOAD, HpcjetError
from hpcjet.swarm.vector import Episode


class HostError(HpcjetError):
    """A world host cannot go on: its worlds hang, or a part of the data plane does not answer."""

    exit_code = EXIT_WORKLOAD


class PlaneError(HostError):
    """The data plane is the reason, and not the worlds."""


@dataclass(frozen=True)
class HostSpec:
    """A seat: everything of it that does not depend on where it runs, and the names of what it uses there."""

    seat: str
    """Its name, such as seat-0003: the source of its fragments."""
    env: EnvironmentConfig
    worlds: int
    first_world: int
    """Number in the run."""
    seed: int
    """The run's."""
    steps: int
    """T of a fragment."""
    node: str
    """The node's name, by which the index counts quotas and losses."""
    cache: str
    """Name of the node's cache."""
    pool: str
    """Name of the pool that takes the fragments."""
    policy_map: Mapping[str, str] = field(default_factory=dict)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    backend: str = "torch"
    stagger: bool = False
    """Formations begin at different points of their first episode."""
    with_values: bool = True
    """Note values when acting."""
    keep_snapshots: bool = False
    """Keep what is needed to go on from the begin of a fragment (`host_snapshots`)."""
    patience_s: float = 300.0
    """So long index, cache or pool may be away."""


def attempt_over(spec: HostSpec, attempt: int) -> PlaneError:
    """What ends a host that the index wants nothing from any more."""
    return PlaneError(
        f"{spec.seat}: attempt {attempt} is over: the index has given up this attempt or its pool {spec.pool}; "
        "the seat is started again with the next attempt"
    )


@dataclass(frozen=True)
class HostState:
    """A seat as it was at the begin of a fragment."""

    version: int
    """Of the policies that made the fragment."""
    first_step: int
    """Of the fragment, counted from the begin of the run."""
    life: int
    """How often the worlds began anew without a state of theirs."""
    rng: Mapping[str, Any]
    """Of acting."""
    worlds: Mapping[str, Any] | None
    """None if the worlds cannot be resumed."""


@dataclass(frozen=True)
class HostStatus:
    """How a host does. Numbers are totals since it began, unless they say otherwise."""

    seat: str
    attempt: int
    node: str
    pid: int
    state: str
    """What it does now."""
    version: int = -1
    """Of the policies that act; -1 before the first."""
    fragments: int = 0
    """Fragments that the pool admitted."""
    refused: int = 0
    """Fragments that came too late, or were too old when they came."""
    world_steps: int = 0
    agent_steps: int = 0
    agent_steps_per_s: float = 0.0
    """Since the host was asked last."""
    episodes: list[Episode] = field(default_factory=list)
    """That ended since the host was asked last; the newest 1,000."""
    faults: list[str] = field(default_factory=list)
    """Of worlds, since the host was asked last; the newest 100."""
    episodes_ended: int = 0
    faults_seen: int = 0
    in_vain: int = 0
    """How often each of its worlds failed in a row, at least, without an episode that ended in between."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Where its time went: wait (for leave to begin), weights, act, step, record, insert (for an insert to end)."""
    seeds: tuple[int, int] = (0, 0)
    """Of acting, which no two seats of a run share, and of the worlds, by their numbers, which are the seat's alone."""
    error: str = ""
    """What ended it."""
