"""The nodes and replicas of a pool, as the pool knows them. Pure: fed with words, asked for facts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcjet.cluster.lifeline import GONE, Word
from hpcjet.cluster.members import HELLO
from hpcjet.config.engine import ServedConfig
from hpcjet.engine.placement import ReplicaPlace, place
from hpcjet.engine.replica import FINAL, ReplicaState
from hpcjet.engine.words import REPLICA, NodeFacts, RestartOrder, ShareOrder, StageParent, replica_log

LOST = "its node is gone"


@dataclass
class Member:
    """One replica."""

    place: ReplicaPlace
    url: str
    """http://host:port of its leader."""
    states: dict[int, ReplicaState]
    """By rank; a replica serves if all its parts are ready."""
    reason: str = ""
    lives: dict[int, int] = field(default_factory=dict)
    """By rank: how often a part has begun anew, itself or with its node."""
    told: dict[int, int] = field(default_factory=dict)
    """By rank: its restarts, as its node counts them."""
    since: float = field(default_factory=time.time)
    """Unix seconds of the last change."""

    @property
    def restarts(self) -> int:
        """Of the part that was restarted most."""
        return max(self.told.values(), default=0)

    @property
    def life(self) -> int:
        """Another number whenever a part has begun anew."""
        return sum(self.lives.values())

    @property
    def serves(self) -> bool:
        return all(state is ReplicaState.ready for state in self.states.values())

    @property
    def failed(self) -> bool:
        """For good."""
        return any(state is ReplicaState.failed for state in self.states.values())

    @property
    def state(self) -> ReplicaState:
        """The worst of its parts."""
        return max(self.states.values(), key=_WORST.index)


_WORST = [
    ReplicaState.ready,
    ReplicaState.unhealthy,
    ReplicaState.starting,
    ReplicaState.restarting,
    ReplicaState.stopped,
    ReplicaState.failed,
]


@dataclass
class PoolMembers:
    """Nodes by rank, replicas by number."""

    config: ServedConfig
    hosts: Sequence[str]
    """All nodes of the allocation, in Slurm's order."""
    nodes: dict[int, NodeFacts] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    replicas: dict[int, Member] = field(default_factory=dict)
    agents: dict[str, int] = field(default_factory=dict)
    """Host -> CPUs of the job that no replica has."""

    def take(self, word: Word) -> None:
        """Learn from one word of a node."""
        if word.word == HELLO:
            self.nodes[word.rank] = NodeFacts.of(word.facts)
            self.gone.discard(word.rank)
            self._begin_anew(word.rank)
        elif word.word == GONE:
            self.gone.add(word.rank)
            self._lose(word.rank)
        elif word.word == REPLICA and word.facts["number"] in self.replicas:
            member = self.replicas[word.facts["number"]]
            rank = word.facts["rank"]
            if word.facts["restarts"] > member.told.get(rank, 0):
                member.lives[rank] = member.lives.get(rank, 0) + 1
            member.states[rank], member.told[rank] = ReplicaState(word.facts["state"]), word.facts["restarts"]
            member.reason, member.since = word.facts["reason"], time.time()

    @property
    def all_in(self) -> bool:
        return len(self.nodes) == len(self.hosts)

    def place(self) -> None:
        """Lay out the replicas over the nodes that are in. Raises ConfigError if there is no room."""
        facts = [self.nodes[rank] for rank in sorted(self.nodes)]
        found = place(self.config, [each.engine_node for each in facts])
        by_host = {each.host: each for each in facts}
        for each in facts:
            taken = len(each.cores) - len(found.agents[each.host])
            self.agents[each.host] = max(0, each.cpus - taken)
        for replica in found.replicas:
            leader, port = by_host[replica.leader.host], self._port(replica, by_host)
            states = dict.fromkeys(range(len(replica.shares)), ReplicaState.starting)
            host = f"[{leader.address}]" if ":" in leader.address else leader.address
            self.replicas[replica.number] = Member(replica, f"http://{host}:{port}", states)

    def orders(self, rank: int) -> list[ShareOrder]:
        """What the node of this rank is to run."""
        host, found = self.nodes[rank].host, []
        for member in self.replicas.values():
            leader = next(each for each in self.nodes.values() if each.host == member.place.leader.host)
            port = int(member.url.rpartition(":")[2])
            for share in member.place.shares:
                if share.host == host:
                    order = ShareOrder(
                        number=member.place.number, rank=share.rank, num_nodes=len(member.place.shares), port=port,
                        gpus=share.gpus, cores=share.cores, leader=leader.address, leader_port=port + 1,
                    )  # fmt: skip
                    found.append(order)
        return found

    def behind(self) -> list[tuple[int, RestartOrder]]:
        """(Rank of the node, order) for each part of a spread replica that has seen less than the others: an engine
        does not go on with a part that began anew, so all of them begin anew together."""
        found = []
        for member in self.replicas.values():
            newest = max(member.lives.values(), default=0)
            for share in member.place.shares:
                if member.lives.get(share.rank, 0) == newest or member.states[share.rank] in FINAL:
                    continue
                if (node := self._node_of(share.host)) not in self.gone:
                    reason = f"another part of {member.place.name} began anew"
                    found.append((node, self._order(member, share.rank, reason)))
        return found

    def restart_orders(self, number: int, reason: str) -> list[tuple[int, RestartOrder]]:
        """(Rank of the node, order) for all parts of a replica."""
        member = self.replicas[number]
        return [(self._node_of(share.host), self._order(member, share.rank, reason)) for share in member.place.shares]

    def _order(self, member: Member, rank: int, reason: str) -> RestartOrder:
        return RestartOrder(number=member.place.number, reason=reason, restarts=member.told.get(rank, 0))

    def _node_of(self, host: str) -> int:
        return next(rank for rank, each in self.nodes.items() if each.host == host)

    def stage_parent(self, rank: int) -> StageParent | None:
        """From which node the one of this rank fetches the weights; None: it reads the source, as all do without
        engine.stage_broadcast.

        The nodes with replicas are a tree with two children each, in the order of their ranks. A node that is gone
        keeps its place, so that none ever waits for one below it; its children turn to the one above.
        """
        if not self.config.stage_broadcast:
            return None
        hosts = {share.host for member in self.replicas.values() for share in member.place.shares}
        tree = [each for each in sorted(self.nodes) if self.nodes[each].host in hosts]
        at = tree.index(rank) if rank in tree else 0
        while at:
            at = (at - 1) // 2
            node = self.nodes[tree[at]]
            if node.stage_port and tree[at] not in self.gone:
                return StageParent(address=node.address, port=node.stage_port, hops=(at + 1).bit_length())
        return None

    def first_log(self, folder: Path) -> Path | None:
        """Of the leader of the first replica; None before there is one."""
        for rank in sorted(self.nodes):
            for order in self.orders(rank):
                if order.rank == 0:
                    return replica_log(folder, self.nodes[rank].host, order.name)
        return None

    def why_none(self) -> str:
        """Why no replica can serve any more; empty if one still may."""
        if not self.replicas or any(not each.failed for each in self.replicas.values()):
            return ""
        return next(each.reason for each in self.replicas.values())

    def ends(self, member: Member) -> float | None:
        """When the first of its allocations ends, in Unix seconds; None: not known."""
        hosts = {share.host for share in member.place.shares}
        known = [each.ends for each in self.nodes.values() if each.host in hosts and each.ends is not None]
        return min(known, default=None)

    def _begin_anew(self, rank: int) -> None:
        """A node that joins again has a new sidecar, which starts its parts from the beginning."""
        host = self.nodes[rank].host
        for member in self.replicas.values():
            for share in member.place.shares:
                if share.host == host:
                    member.lives[share.rank] = member.lives.get(share.rank, 0) + 1
                    member.told[share.rank] = 0
                    member.states[share.rank] = ReplicaState.starting

    def _lose(self, rank: int) -> None:
        node = self.nodes.get(rank)
        for member in self.replicas.values():
            for share in member.place.shares:
                if node and share.host == node.host and not member.failed:
                    member.states[share.rank] = ReplicaState.stopped
                    member.reason, member.since = LOST, time.time()

    def _port(self, replica: ReplicaPlace, by_host: dict[str, NodeFacts]) -> int:
        """The first port of a block of the leader's that no other replica has."""
        host = replica.leader.host
        used = sum(member.place.leader.host == host for member in self.replicas.values())
        blocks = by_host[host].blocks
        return blocks[used % len(blocks)] + 2 * (used // len(blocks))
