"""What learner ranks are told, and what they tell."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcjet.config.swarm.compression import Compression
from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.errors import EXIT_WORKLOAD, HpcjetError
from hpcjet.swarm.policy.interface import PolicySpec
from hpcjet.swarm.row import Row


class RankError(HpcjetError):
    """The ranks cannot go on together: one died, is late, or a part of the data plane does not answer."""

    exit_code = EXIT_WORKLOAD


@dataclass(frozen=True)
class LearnerSpec:
    """A training, as its learners see it; the same in each generation."""

    policies: Mapping[str, PolicySpec]
    fragments: Mapping[str, int]
    """How many of its fragments each policy learns from in an update."""
    checkpoints: Path
    """Their folder; rank 0 writes to it."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    backend: str = "torch"
    seed: int = 0
    """The run's."""
    servers: tuple[str, ...] = ("swarm-ps-0", "swarm-ps-1")
    """Names of the parameter servers."""
    caches: tuple[str, ...] = ()
    """Names of caches that are told of each new version."""
    compression: Compression = Compression.none
    """Of what is fetched."""
    prioritised: bool = False
    """Tell the index after each update how much there is still to learn from what was learned from."""
    held: int = 0
    """Fragments that pools may hold after they were learned from, where they are used again."""
    seats: tuple[str, ...] = ()
    """Those whose states go into checkpoints; none where a resume need not be exact."""
    checkpoint_every: int = 10
    """Updates."""
    keep: int = 3
    """Checkpoints; older ones are removed."""
    updates: int = 0
    """Stop after so many; 0: no such limit."""
    agent_steps: int = 0
    """Stop once so many were learned from; 0: no such limit."""
    patience_s: float = 300.0
    """So long index, parameter server or another rank may be away."""
    snapshot_s: float = 60.0
    """So long a checkpoint waits for the states of the seats."""


@dataclass(frozen=True)
class RankStatus:
    """How one rank does."""

    rank: int
    pid: int
    version: int
    agent_steps: int
    doing: str
    """start, sample, fetch, update, publish, checkpoint or end; and since when."""
    since_s: float
    done: bool
    """The goal was reached, or it was stopped, and the last checkpoint is made."""
    rows: list[Row]
    """Of rank 0: one for each update that was not seen yet."""
    begun: int = 0
    """Of rank 0: the version that its generation began with."""
    trouble: str = ""
    """Of rank 0: why the newest checkpoint could not be written."""


@dataclass(frozen=True)
class LearnerStatus:
    """How the group does."""

    version: int
    """Updates so far."""
    agent_steps: int
    """Learned from so far."""
    done: bool
    """The goal was reached, or the group was stopped; nothing more comes."""
    error: str
    """What ended it; empty while all is well. Start the next generation, unless it is `fatal`."""
    fatal: bool
    """Another generation would end the same way: a setting, a checkpoint or an environment does not fit."""
    rows: list[Row]
    """One for each update since the group was asked last."""
    begun: int = 0
    """The version that this generation began with; rows up to there are of those before."""
    doing: tuple[str, ...] = ()
    """Of each rank."""
    trouble: str = ""
    """Why the newest checkpoint could not be written; the training goes on."""
