"""The nodes and replicas of a pool, as the pool knows them. Pure: fed with words, asked for facts."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcjet.cluster.lifeline import GONE, Word
from hpcjet.cluster.members import HELLO, place_of
from hpcjet.config.engine import Device, ServedConfig
from hpcjet.engine.placement import EngineNode, Placement, ReplicaPlace, place, place_alone
from hpcjet.engine.pooled import PooledReplica
from hpcjet.engine.replica import FINAL, ReplicaState
from hpcjet.engine.words import REPLICA, NodeFacts, RestartOrder, ShareOrder, StageParent, replica_log
from hpcjet.errors import ConfigError

LOST = "its node is gone"


@dataclass(frozen=True)
class Leave:
    """A node drains."""

    reason: str
    by: float | None
    """Unix seconds: when it is taken away; None: not known."""


@dataclass
class PoolMembers:
    """Nodes by key, which is the member's name, or its rank where it has none; replicas by number."""

    config: ServedConfig
    hosts: Mapping[int, str]
    """Rank -> host, of the nodes of the head allocation that are to have replicas."""
    head: str = ""
    """<allocation>-<restart> of the head allocation; empty: there is no other."""
    grows: bool = False
    """Whether nodes of other allocations are to have replicas as well."""
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    leaving: dict[str, Leave] = field(default_factory=dict)
    replicas: dict[int, PooledReplica] = field(default_factory=dict)
    agents: dict[str, int] = field(default_factory=dict)
    """Key of a node -> CPUs of the job there that no replica has."""
    without: dict[str, str] = field(default_factory=dict)
    """Key of a node that holds no replica -> why."""
    is_laid_out: bool = False
    """Whether the nodes of the head allocation that were in have their replicas."""
    _ranks: dict[str, int] = field(default_factory=dict)
    _tree: list[str] = field(default_factory=list)
    """The nodes with replicas, in the order in which they got them."""

    def take(self, word: Word) -> None:
        """Learn from one word of a node."""
        key = key_of(word)
        if word.word == HELLO:
            self.nodes[key], self._ranks[key] = NodeFacts.of(word.facts), word.rank
            self.gone.discard(key)
            self._begin_anew(key)
        elif word.word == GONE:
            self._lose(key, for_good=key in self.leaving)
        elif word.word == REPLICA and word.facts["number"] in self.replicas:
            replica = self.replicas[word.facts["number"]]
            rank = word.facts["rank"]
            if word.facts["restarts"] > replica.told.get(rank, 0):
                replica.lives[rank] = replica.lives.get(rank, 0) + 1
            replica.states[rank], replica.told[rank] = ReplicaState(word.facts["state"]), word.facts["restarts"]
            replica.reason, replica.since = word.facts["reason"], time.time()

    def lose(self, key: str) -> None:
        """The head's word that a node is lost: what an allocation of its own had does not come back."""
        self._lose(key, for_good=True)

    @property
    def missing(self) -> list[str]:
        """Hosts of the head allocation of which no word has come, in Slurm's order."""
        ranks = {self._ranks[key] for key in self._own()}
        return [host for rank, host in self.hosts.items() if rank not in ranks]

    @property
    def all_in(self) -> bool:
        """Whether all nodes of the head allocation are."""
        return not self.missing

    @property
    def any_in(self) -> bool:
        """Whether one of them is; true if there are none to come."""
        return bool(self._own()) or not self.hosts

    def place(self) -> None:
        """Lay out the replicas over the nodes of the head allocation that are in.

        Raises ConfigError if there is no room, and none is to come.
        """
        self.is_laid_out, own = True, self._own()
        if not own or self.wanted == 0:
            return
        config = replace(self.config, replicas="auto" if self.wanted is None else str(self.wanted))
        try:
            found = place(config, [self._engine_node(key) for key in own], grows=self.grows or bool(self.missing))
        except ConfigError as error:
            if not self.grows:
                raise
            self.without |= dict.fromkeys(own, str(error))
            return
        self._seat(found, own)

    def seat_late(self) -> list[str]:
        """Give replicas to the nodes that are in and have none, each by itself. Returns their keys."""
        seated = []
        for key in self._free():
            if self.wanted == 0:
                break
            node, config = self._engine_node(key), self.config
            if any(share.gpus for each in self.replicas.values() for share in each.place.shares):
                config = replace(config, device=Device.gpu)  # one without GPUs does not get another kind of replica
            try:
                self._seat(place_alone(config, node, most=self.wanted), [key])
                seated.append(key)
            except ConfigError as error:
                self.without[key] = str(error)
        return seated

    @property
    def wanted(self) -> int | None:
        """How many replicas more are asked for; None: as many as there is room for."""
        if self.config.num_replicas is None:
            return None
        lasting = [
            each
            for each in self.replicas.values()
            if not (each.retired or each.failed or self.leave_of(each) is not None)
        ]
        return max(0, self.config.num_replicas - len(lasting))

    def on_node(self, key: str) -> list[tuple[int, PooledReplica]]:
        """(Number, replica) of those with a part there."""
        return [(number, each) for number, each in self.replicas.items() if key in each.nodes and not each.retired]

    def leave_of(self, replica: PooledReplica) -> Leave | None:
        """The first of its nodes to be taken away; None: all of them stay."""
        known = [self.leaving[key] for key in replica.nodes if key in self.leaving]
        return min(known, key=lambda each: each.by or 0.0, default=None)

    def orders(self, key: str) -> list[ShareOrder]:
        """What the node is to run."""
        found = []
        for _, replica in self.on_node(key):
            port = int(replica.url.rpartition(":")[2])
            for share in replica.place.shares:
                if share.node == key:
                    order = ShareOrder(
                        number=replica.place.number, rank=share.rank, num_nodes=len(replica.place.shares), port=port,
                        gpus=share.gpus, cores=share.cores, leader=self.nodes[replica.place.leader.node].address,
                        leader_port=port + 1,
                    )  # fmt: skip
                    found.append(order)
        return found

    def behind(self) -> list[tuple[str, RestartOrder]]:
        """(Key of the node, order) for each part of a spread replica that has seen less than the others: an engine
        does not go on with a part that began anew, so all of them begin anew together."""
        found = []
        for replica in self.replicas.values():
            newest = max(replica.lives.values(), default=0)
            for share in replica.place.shares:
                if replica.lives.get(share.rank, 0) == newest or replica.states[share.rank] in FINAL:
                    continue
                if share.node not in self.gone:
                    reason = f"another part of {replica.place.name} began anew"
                    found.append((share.node, self._order(replica, share.rank, reason)))
        return found

    def restart_orders(self, number: int, reason: str) -> list[tuple[str, RestartOrder]]:
        """(Key of the node, order) for all parts of a replica."""
        replica = self.replicas[number]
        return [(share.node, self._order(replica, share.rank, reason)) for share in replica.place.shares]

    def _order(self, replica: PooledReplica, rank: int, reason: str) -> RestartOrder:
        return RestartOrder(number=replica.place.number, reason=reason, restarts=replica.told.get(rank, 0))

    def stage_parent(self, key: str) -> StageParent | None:
        """From which node this one fetches the weights; None: it reads the source, as all do without
        engine.stage_broadcast.

        The nodes with replicas are a tree with two children each, in the order in which they got them: that of their
        ranks, then those that joined late. A node that is gone or leaves keeps its place, so that none ever waits for
        one below it; its children turn to the one above.
        """
        if not self.config.stage_broadcast:
            return None
        at = self._tree.index(key) if key in self._tree else 0
        while at:
            at = (at - 1) // 2
            above = self._tree[at]
            node = self.nodes[above]
            if node.stage_port and above not in self.gone and above not in self.leaving:
                return StageParent(address=node.address, port=node.stage_port, hops=(at + 1).bit_length())
        return None

    def first_log(self, folder: Path) -> Path | None:
        """Of the leader of the first replica; None before there is one."""
        for key in self._tree:
            for order in self.orders(key):
                if order.rank == 0:
                    return replica_log(folder, self.nodes[key].host, order.name)
        return None

    def why_none(self) -> str:
        """Why no replica can serve any more; empty if one still may."""
        living = [each for each in self.replicas.values() if not each.retired]
        if living:
            return living[0].reason if all(each.failed for each in living) else ""
        too_small = self.without and all(key in self.without or key in self.gone for key in self.nodes)
        return next(iter(self.without.values())) if too_small else ""

    def ends(self, replica: PooledReplica) -> float | None:
        """When the first of its allocations ends, in Unix seconds; None: not known."""
        known = [end for key in replica.nodes if (end := self.nodes[key].ends) is not None]
        return min(known, default=None)

    def _is_own(self, key: str) -> bool:
        """Whether it is a node of the head allocation."""
        return not self.head or place_of(key) in ("", self.head)

    def _own(self) -> list[str]:
        """Those of the head allocation that are in, or were, in Slurm's order."""
        return sorted(filter(self._is_own, self.nodes), key=self._ranks.__getitem__)

    def _free(self) -> list[str]:
        """The nodes that may have replicas and have none, in the order in which they came."""
        busy = {key for each in self.replicas.values() if not each.retired for key in each.nodes}
        off = busy | self.gone | self.leaving.keys() | self.without.keys()
        return [key for key in self.nodes if key not in off and (self.is_laid_out or not self._is_own(key))]

    def _engine_node(self, key: str) -> EngineNode:
        return replace(self.nodes[key].engine_node, name=key)

    def _seat(self, found: Placement, keys: Iterable[str]) -> None:
        for key in keys:
            taken = len(self.nodes[key].cores) - len(found.agents[key])
            self.agents[key] = max(0, self.nodes[key].cpus - taken)
        first = len(self.replicas)
        for each in found.replicas:
            spot = replace(each, number=first + each.number)
            leader, port = self.nodes[spot.leader.node], self._port(spot)
            states = dict.fromkeys(range(len(spot.shares)), ReplicaState.starting)
            host = f"[{leader.address}]" if ":" in leader.address else leader.address
            self.replicas[spot.number] = PooledReplica(spot, f"http://{host}:{port}", states)
        used = {share.node for each in found.replicas for share in each.shares}
        self._tree += [key for key in keys if key in used and key not in self._tree]

    def _begin_anew(self, key: str) -> None:
        """A node that joins again has a new sidecar, which starts its parts from the beginning."""
        for _, replica in self.on_node(key):
            for share in replica.place.shares:
                if share.node == key:
                    replica.lives[share.rank] = replica.lives.get(share.rank, 0) + 1
                    replica.told[share.rank] = 0
                    replica.states[share.rank] = ReplicaState.starting

    def _lose(self, key: str, *, for_good: bool) -> None:
        if key in self.nodes:
            self.gone.add(key)
        for _, replica in self.on_node(key):
            replica.retired = for_good and not self._is_own(key)
            for share in replica.place.shares:
                if share.node == key and not replica.failed:
                    replica.states[share.rank] = ReplicaState.stopped
                    replica.reason, replica.since = LOST, time.time()

    def _port(self, replica: ReplicaPlace) -> int:
        """The first port of a block of the leader's that no other replica has."""
        key = replica.leader.node
        used = sum(each.place.leader.node == key for _, each in self.on_node(key))
        blocks = self.nodes[key].blocks
        return blocks[used % len(blocks)] + 2 * (used // len(blocks))


def key_of(word: Word) -> str:
    """Of the node that said it."""
    return word.member or str(word.rank)
