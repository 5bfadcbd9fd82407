"""The nodes of a training: which came, which drain, which are gone."""

import logging
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcjet.cluster.roster import UsableNode
from hpcjet.swarm.driver.answers import no_answer
from hpcjet.swarm.placement import Node, switches_of
from hpcjet.workload import Cluster

_log = logging.getLogger(__name__)
LOOK_S = 1.0
ASK_S = 20.0
"""So long a node may take to say under which switches it is."""
TOPOLOGY = ("SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN")


@dataclass(frozen=True)
class Change:
    """Since the last look; each node is named once for each of these."""

    came: list[Node] = field(default_factory=list)
    drains: list[Node] = field(default_factory=list)
    lost: list[Node] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.came or self.drains or self.lost)


class Nodes:
    """Those that the work may use, of `group` if that is given."""

    def __init__(self, cluster: Cluster, group: str | None) -> None:
        self._cluster, self._group = cluster, group
        self._known: dict[str, Node] = {}
        self._members: dict[str, UsableNode] = {}
        self._draining: set[str] = set()
        self._given_back: set[str] = set()
        self._told: Any = None
        self._again = 0.0

    @property
    def usable(self) -> list[Node]:
        """Those that get work, by name."""
        there = [node for node_id, node in self._known.items() if node_id not in self._draining]
        return sorted(there, key=lambda node: node.name)

    @property
    def draining(self) -> list[Node]:
        return [self._known[node_id] for node_id in self._draining]

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._known

    def name(self, node_id: str) -> str:
        node = self._known.get(node_id)
        return node.name if node else node_id[:8]

    def drains_by(self, node: Node) -> float | None:
        """When it is taken away, in Unix seconds."""
        return self._members[node.node_id].drains_by

    def look(self, *, now: bool = False) -> Change:
        """What changed: each second, and whenever the node agent told of a node."""
        told = self._cluster.inbox.nodes()
        if not now and told == self._told and time.monotonic() < self._again:
            return Change()
        self._told, self._again = told, time.monotonic() + LOOK_S
        members = {each.node_id: each for each in self._cluster.members() if self._group in (None, each.group)}
        lost = [self._known.pop(node_id) for node_id in list(self._known) if node_id not in members]
        self._draining &= self._known.keys()
        new = [each for node_id, each in members.items() if node_id not in self._known]
        self._members = members
        came = self._nodes(each for each in new if not each.drains)
        self._known |= {node.node_id: node for node in came}
        drains = [
            node for node_id, node in self._known.items() if members[node_id].drains and node_id not in self._draining
        ]
        self._draining |= {node.node_id for node in drains}
        for each in new:
            if each.drains:  # nothing was ever put there
                self._give_back(each)
        return Change(came, drains, lost)

    def give_back(self, node: Node) -> None:
        """Nothing of the training is there any more."""
        self._give_back(self._members[node.node_id])
        self._known.pop(node.node_id, None)
        self._draining.discard(node.node_id)

    def _give_back(self, member: UsableNode) -> None:
        if member.member not in self._given_back:
            self._given_back.add(member.member)
            self._cluster.give_back(member.member)

    def _nodes(self, members: Iterable[UsableNode]) -> list[Node]:
        there = [each for each in members if each.member not in self._given_back]
        gpus = {each["NodeID"]: int(each["Resources"].get("GPU", 0)) for each in self._cluster.ray.nodes()}
        switches = self._switches([each.node_id for each in there])
        return [
            Node(
                node_id=each.node_id, name=f"{each.host.split('.')[0]}-{each.node_id[:6]}", cpus=max(1, int(each.cpus)),
                memory_bytes=each.memory_bytes, gpus=gpus.get(each.node_id, 0),
                switches=switches.get(each.node_id, ()),
            )
            for each in there
        ]  # fmt: skip

    def _switches(self, node_ids: list[str]) -> Mapping[str, tuple[str, ...]]:
        """What Slurm told each node's job step of where it is; nothing where it has no topology."""
        if not os.environ.get(TOPOLOGY[0]):
            return {}
        ray = self._cluster.ray
        pin = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        ask = ray.remote(num_cpus=0, max_retries=0)(_topology)
        calls = {ask.options(scheduling_strategy=pin(node_id, soft=False)).remote(): node_id for node_id in node_ids}
        done, _ = ray.wait(list(calls), num_returns=len(calls), timeout=ASK_S) if calls else ([], [])
        found = {}
        for call in done:
            try:
                found[calls[call]] = switches_of(*ray.get(call))
            except no_answer() as error:
                _log.warning("a node did not say where it is: %s", error)
        return found


def _topology() -> tuple[str, str]:
    first, second = (os.environ.get(name, "") for name in TOPOLOGY)
    return first, second
