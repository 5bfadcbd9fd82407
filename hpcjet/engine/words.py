"""What the pool on the head and the nodes with replicas tell each other, on a lifeline of their own."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcjet.engine.placement import EngineNode
from hpcjet.engine.topology import Topology
from hpcjet.rundir import path_name

PLACE = "place"
"""From the pool: the shares of replicas that run on this node, and its StageParent; facts: shares, parent."""
REPLICA = "replica"
"""From a node: the state of a share; facts: number, rank, state, reason, restarts."""
RESTART = "restart"
"""From the pool: end the part of a replica here, which is then started again; facts: those of a RestartOrder."""


def replica_log(folder: Path, host: str, name: str) -> Path:
    """The log of a part of a replica."""
    return folder / f"{path_name(host)}.{name}.log"


MOST_REPLICAS = 16
"""On one node; each has a block of ports."""


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """What a node says of itself when it joins the pool."""

    host: str
    address: str
    gpus: tuple[str, ...]
    cores: tuple[int, ...]
    cpus: int
    """CPUs that the job was given here; more than there are cores where a cluster counts so."""
    links: tuple[tuple[int, ...], ...] = ()
    near: tuple[tuple[int, ...], ...] = ()
    """With `links` its Topology; empty: not known."""
    blocks: tuple[int, ...] = ()
    """First ports of free blocks, one for each replica that may come."""
    ends: float | None = None
    """When its allocation ends, in Unix seconds; None: not known."""
    stage_port: int = 0
    """Where it passes on the weights that it has copied; 0: it does not."""

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "NodeFacts":
        """From the JSON of a hello."""
        rows = {name: tuple(tuple(row) for row in facts[name]) for name in ("links", "near")}
        lists = {name: tuple(facts[name]) for name in ("gpus", "cores", "blocks")}
        return cls(**{**facts, **rows, **lists})

    @property
    def engine_node(self) -> EngineNode:
        topology = Topology(self.links, self.near) if self.links else None
        return EngineNode(host=self.host, gpus=self.gpus, cores=self.cores, topology=topology)


@dataclass(frozen=True, kw_only=True)
class StageParent:
    """The node from which another one fetches the weights."""

    address: str
    port: int
    hops: int
    """How many times the weights have gone from node to node once they are here from there."""


@dataclass(frozen=True, kw_only=True)
class RestartOrder:
    """End a node's part of a replica, and start it again."""

    number: int
    reason: str
    restarts: int
    """How often it had been started again when this was ordered: one that has begun anew since then is left alone."""


@dataclass(frozen=True, kw_only=True)
class ShareOrder:
    """One node's part of a replica, with addresses and ports."""

    number: int
    """Of the replica in the run."""
    rank: int
    num_nodes: int
    port: int
    gpus: tuple[str, ...]
    cores: tuple[int, ...]
    leader: str
    leader_port: int

    @property
    def name(self) -> str:
        part = f"-{self.rank}" if self.num_nodes > 1 else ""
        return f"replica-{self.number}{part}"

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "ShareOrder":
        return cls(**{**facts, "gpus": tuple(facts["gpus"]), "cores": tuple(facts["cores"])})


def to_json(items: Sequence[ShareOrder]) -> list[dict[str, Any]]:
    return [asdict(each) for each in items]
