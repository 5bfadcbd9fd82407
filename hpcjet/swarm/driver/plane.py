"""The data plane on the nodes: index, servers, and on each node a cache and a pool."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.config.swarm.pool import Mode
from hpcjet.config.swarm.staleness import StalenessConfig
from hpcjet.swarm.actors import Ending, get_actor, lost_errors, start_actor
from hpcjet.swarm.driver.answers import no_answer
from hpcjet.swarm.driver.losses import Losses
from hpcjet.swarm.driver.processes import Processes
from hpcjet.swarm.placement import Learners, Node, place_standby
from hpcjet.swarm.pool.actors import INDEX, start_index, start_pool
from hpcjet.swarm.weights.actors import BOOK, ServerActor, start_cache, start_servers

_log = logging.getLogger(__name__)
ANSWER_S = 20.0
"""So long one part may take to answer; it is on the way to be started again otherwise."""
AT_ONCE = 32
"""Nodes on which actors are started at a time."""
SERVERS = ("swarm-ps-0", "swarm-ps-1")


class Plane:
    """Started once; nodes come and go."""

    def __init__(self, exp: SwarmConfig, head: str, losses: Losses) -> None:
        """`head`: Ray's id of the head's node."""
        self._exp, self._head, self._losses = exp, head, losses
        self._on: dict[str, Node] = {}
        self._servers: dict[str, str] = {}
        """Name -> Ray's id of the node; empty while it is on its way to another one."""
        self._replaced: dict[str, tuple[Ending, Sequence[Node], Node]] = {}
        """Servers whose node is gone, with the nodes that there are and the one that they should be far from."""
        self.pool_at: str | None = None
        """Ray's id of the node of the only pool, where that is central."""
        self._processes = Processes()
        self._statuses: dict[str, Any] = {}
        self._held: dict[str, dict[str, Any]] = {}
        """What each pool said last."""
        self._expected: list[str] = []
        self.index: Any = None

    @property
    def servers(self) -> tuple[str, str]:
        return SERVERS

    def place(self, nodes: Sequence[Node], learners: Learners) -> None:
        """Where all of it will be."""
        if self._exp.pool.mode is Mode.central:
            self.pool_at = learners.ranks[0]
        self._servers = dict(zip(SERVERS, (learners.primary, learners.standby), strict=True))
        self._on = {node.node_id: node for node in nodes}

    def start(self, staleness: StalenessConfig, *, seed: int, seats: Sequence[str]) -> None:
        """All of it, where it was placed. Raises what Ray raises of a node that is lost meanwhile."""
        primary, standby = self._servers.values()
        self._expected = list(seats)
        self.index = start_index(self._head, self._exp.pool, staleness, seed=seed, seats=seats)
        with ThreadPoolExecutor(1) as beside:
            servers = beside.submit(start_servers, self._exp.weights, head=self._head, primary=primary, standby=standby)
            self.add(list(self._on.values()))
            servers.result()

    def add(self, nodes: Sequence[Node]) -> None:
        """Pools and caches of nodes that came; one that is lost at once is found to be so by who looks at nodes."""
        with ThreadPoolExecutor(max_workers=max(1, min(AT_ONCE, len(nodes)))) as threads:
            list(threads.map(self._add, nodes))

    def cache(self, node_id: str) -> str:
        return cache_name(self._on[node_id])

    def pool(self, node_id: str) -> str:
        """Where who acts on this node puts what it did."""
        return pool_name(self._on[self.pool_at or node_id])

    @property
    def caches(self) -> list[str]:
        return [cache_name(node) for node in self._on.values()]

    @property
    def pools(self) -> list[str]:
        return [pool_name(node) for node in self._on.values() if self.pool_at in (None, node.node_id)]

    def remove(self, node: Node, nodes: Sequence[Node], primary: Node) -> int:
        """A node is gone, or is to be given back: what is left moves. How many fragments are lost.

        `primary` is the node that the other server should be far from. Nobody waits here for Ray to see that the node
        is gone: a server that stood there begins elsewhere once its name is free, which `look` sees.
        """
        self._on.pop(node.node_id, None)
        for name in (cache_name(node), pool_name(node)):
            self._processes.forget(name)
            Ending(name).over()
        lost = self.ask(lambda: self.index.node_lost.remote(node.name)) or 0
        for name in [name for name, at in self._servers.items() if at == node.node_id]:
            self._processes.forget(name)
            self._servers[name] = ""
            self._replaced[name] = Ending(name), nodes, primary
        self._replace()
        if self.pool_at == node.node_id:
            self.pool_at = primary.node_id
            self._add(primary)
        return int(lost)

    def holds(self, node: Node) -> bool:
        """Whether its pool has fragments that may still be learned from."""
        status = self.ask(lambda: get_actor(pool_name(node)).status.remote(), wait_s=5.0)
        return bool(status and status["fragments"])

    def pool_statuses(self) -> list[dict[str, Any]]:
        """Of the pools that answered since they were asked last, which this does again."""
        import ray

        for name in self.pools:
            call = self._statuses.pop(name, None)
            if call is not None and ray.wait([call], timeout=0)[0]:
                try:
                    self._held[name] = ray.get(call)
                    call = None
                except no_answer():
                    call = None
            try:
                self._statuses[name] = call or get_actor(name).status.remote()
            except lost_errors():
                continue
        self._held = {name: self._held[name] for name in self.pools if name in self._held}
        return list(self._held.values())

    def expect(self, seats: Sequence[str]) -> None:
        """The index keeps these in step from now on, also once Ray has started it again."""
        self._expected = list(seats)
        self.ask(lambda: self.index.expect.remote(self._expected))

    def source_lost(self, seat: str, attempt: int) -> int:
        """How many fragments the host of this attempt had begun."""
        return int(self.ask(lambda: self.index.source_lost.remote(seat, attempt)) or 0)

    def ask(self, call: Callable[[], Any], *, wait_s: float = ANSWER_S) -> Any:
        """The answer of an actor; None if it is away just now."""
        import ray

        try:
            return ray.get(call(), timeout=wait_s)
        except no_answer() as error:
            _log.warning("no answer: %s", str(error).partition("\n")[0])
            return None

    def look(self, again: Callable[[], Callable[[], bool]]) -> None:
        """See which processes Ray started again, each second; `again()` makes the sign that experience flows again."""
        self._replace()
        for name, down in self._processes.look((INDEX, BOOK, *SERVERS, *self.caches, *self.pools)):
            self._losses.lost(f"the process of {name}", again(), at=down)
            if name == INDEX:
                self.index.expect.remote(self._expected)  # it has those that it was made with

    def _add(self, node: Node) -> None:
        self._on[node.node_id] = node
        try:
            start_cache(node.node_id, cache_name(node), SERVERS, self._exp.cache)
            if self.pool_at in (None, node.node_id):
                start_pool(node.node_id, pool_name(node), node.name, self._exp.pool)
        except no_answer() as error:
            _log.warning("%s: cache or pool did not start: %s", node.name, str(error).partition("\n")[0])

    def _replace(self) -> None:
        """Servers whose node is gone begin empty elsewhere, and follow the other one."""
        for name, (ending, nodes, primary) in list(self._replaced.items()):
            # Those of then may all be gone by now too.
            there = [node for node in nodes if node.node_id in self._on] or list(self._on.values())
            if not there or not ending.over():
                continue
            del self._replaced[name]
            other = primary if primary in there else there[0]
            partner = next(each for each in SERVERS if each != name)
            at = next((node for node in there if node.node_id == self._servers[partner]), other)
            node = place_standby(there, at)
            made = start_actor(ServerActor, name, node.node_id, name, partner, self._exp.weights)
            made.start.remote()
            self._processes.forget(name)
            self._servers[name] = node.node_id
            _log.info("parameter server %s is now on %s", name, node.name)


def cache_name(node: Node) -> str:
    return f"swarm-cache-{node.name}"


def pool_name(node: Node) -> str:
    return f"swarm-pool-{node.name}"
