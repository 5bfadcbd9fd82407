"""The worker processes on the nodes of a run: started where nodes come, ended where they drain, lost where they go."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from hpcjet.cluster.roster import UsableNode
from hpcjet.config.exp import SweConfig
from hpcjet.engine import Serving
from hpcjet.errors import BootstrapError
from hpcjet.swe.attempt import AttemptSettings
from hpcjet.swe.prospects import Prospects
from hpcjet.swe.sizes import host_sizes
from hpcjet.swe.usage import Usage
from hpcjet.swe.worker import Worker, start_worker
from hpcjet.workload import Cluster

_log = logging.getLogger(__name__)
LOOK_FOR_NODES_S = 2.0
MAX_LOSSES = 5
"""Worker processes that may die on one node, until it gets no more."""


class Workers:
    """Those on the nodes that attempts are made on."""

    def __init__(
        self,
        cluster: Cluster,
        exp: SweConfig,
        settings: AttemptSettings,
        *,
        serving: Serving | None = None,
        prospects: Prospects | None = None,
        usage: Usage | None = None,
        keeps: Callable[[UsableNode], bool] = lambda node: False,
        clock: Any = time,
    ) -> None:
        """`keeps`: whether something else of the run is still on a node, which is not given back then."""
        self._ray, self._cluster, self._exp, self._settings = cluster.ray, cluster, exp, settings
        self._serving, self._keeps, self._clock = serving, keeps, clock
        self._prospects, self._usage = prospects or Prospects(), usage or Usage()
        self._began = clock.monotonic()
        self._nodes: dict[str, UsableNode] = {}
        """Those that attempts are made on, by Ray's id."""
        self._seen: set[str] = set()
        """Members that were there once."""
        self._too_small: dict[str, BootstrapError] = {}
        """Group -> why one of its nodes has no attempts."""
        self._head_ends: float | None = None
        self._given_back: set[str] = set()
        self._told: Any = None
        self._look_again = 0.0
        self._losses: Counter[str] = Counter()
        self._lost_on: Counter[str] = Counter()
        self._last_loss = ""
        self.all: list[Worker] = []

    def look(self, *, now: bool = False) -> None:
        """See which nodes came, drain or went: every two seconds, whenever the node agent told of one, or `now`.

        Raises BootstrapError if all nodes that there are, and will be, are too small for an attempt.
        """
        told = self._cluster.inbox.nodes()
        if not now and told == self._told and self._clock.monotonic() < self._look_again:
            return
        self._told, self._look_again = told, self._clock.monotonic() + LOOK_FOR_NODES_S
        members = self._cluster.members()
        known, self._nodes = self._nodes, {node.node_id: node for node in members if self._prospects.works(node)}
        self._head_ends = self._prospects.head_ends(members)
        self._seen |= told.keys() | {node.member for node in self._nodes.values()}
        for gone in known.keys() - self._nodes.keys():
            _log.warning("%s (%s) is gone", known[gone].host, known[gone].member)
        for worker in self.all:
            worker.node = self._nodes.get(worker.node.node_id, worker.node)
        for node_id in self._nodes.keys() - known.keys():
            if not self._nodes[node_id].drains:
                self._start_on(self._nodes[node_id])
        self._give_back(node for node in members if node.drains)
        if self._too_small and not self.all and not self.may_come():
            raise next(iter(self._too_small.values()))

    def has(self, worker: Worker) -> bool:
        """Whether its node was there at the last look."""
        return worker.node.node_id in self._nodes

    def left_s(self, worker: Worker) -> float:
        """Seconds that work there has."""
        return self._prospects.left_s(worker.node, now=self._clock.time(), head_ends=self._head_ends)

    def may_come(self) -> bool:
        """Whether there may be other nodes than those that were there; of a group whose nodes are too small none is."""
        grows = self._prospects.grows - self._too_small.keys()
        waited_s = self._clock.monotonic() - self._began
        return replace(self._prospects, grows=grows).may_come(self._seen, waited_s=waited_s)

    def lose(self, worker: Worker, detail: str, *, with_node: bool = False, given_up: bool = False) -> None:
        """A process is gone, or is to be; another takes its place unless its node is gone, or is `given_up`."""
        self.all.remove(worker)
        self._ray.kill(worker.actor)
        node = worker.node
        self._lost_on[node.host] += 1
        self._last_loss = detail
        if with_node:
            return
        self._losses[node.node_id] += 1
        if self._losses[node.node_id] <= MAX_LOSSES and not node.drains and not given_up:
            self._start(node, worker.slots)

    def none_left(self) -> BootstrapError:
        """What is to be said when no process is there and none will be."""
        lost = ", ".join(f"{number} on {node}" for node, number in self._lost_on.items()) or "none was started"
        return BootstrapError(
            f"no worker process is left (lost: {lost}; the last: {self._last_loss}); go on with: hpcjet resume RUN"
        )

    def _start_on(self, node: UsableNode) -> None:
        """As many as the node has room for."""
        cpus = node.cpus
        if self._serving is not None:
            cpus = min(cpus, self._serving.agent_cores.get(node.member, cpus))
        try:
            sizes = host_sizes(cpus, node.memory_bytes, self._exp)
        except BootstrapError as error:
            _log.warning("%s has no attempts: %s", node.host, error)
            self._too_small[node.group] = error
            return
        self._usage.add_slots(node, sum(sizes))
        for slots in sizes:
            self._start(node, slots)

    def _start(self, node: UsableNode, slots: int) -> None:
        life_s = self._prospects.whole_life_s(node, now=self._clock.time(), head_ends=self._head_ends)
        worker = start_worker(
            self._ray, node, slots, exp=self._exp, settings=self._settings, now=self._clock.monotonic(), life_s=life_s
        )
        self.all.append(worker)

    def _give_back(self, draining: Iterable[UsableNode]) -> None:
        """End the processes on nodes that drain where no attempt is under way any more, and say so, once."""
        for node in draining:
            here = [worker for worker in self.all if worker.node.node_id == node.node_id]
            if node.member in self._given_back or any(worker.jobs for worker in here) or self._keeps(node):
                continue
            for worker in here:
                self.all.remove(worker)
                self._ray.kill(worker.actor)
            self._given_back.add(node.member)
            self._cluster.give_back(node.member)
