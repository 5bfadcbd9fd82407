"""Nodes come, drain and go: what stands on them moves."""

import logging
import time
from collections.abc import Callable

from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.errors import BootstrapError
from hpcjet.plan import Plan
from hpcjet.swarm.driver.parts import Parts
from hpcjet.swarm.driver.seat import Seat
from hpcjet.swarm.placement import Needs, Node, deal, moves, room, shares

_log = logging.getLogger(__name__)
EMPTY_S = 30.0
"""So long fragments of a node that drains may take to be learned from."""
BEFORE_THE_END_S = 5.0
"""A node that drains is given back so long before it is taken away."""
WAIT_S = 60.0
"""So long a run may be without a node to work on where no worker allocation can bring one."""


class Turnover:
    """Gives seats, learners and data plane their nodes, again and again."""

    def __init__(self, plan: Plan, exp: SwarmConfig, parts: Parts) -> None:
        self._plan, self._exp, self._nodes = plan, exp, parts.nodes
        self._plane, self._seats, self._learning, self._losses = parts.plane, parts.seats, parts.learning, parts.losses
        self.needs = Needs(
            learners=exp.learners, learner_cpus=exp.learner_cpus, waits=exp.waits, worlds=exp.worlds,
            parts=exp.staleness.fragments or exp.seats or exp.worlds, world_bytes=exp.world_memory_gb * 2**30,
        )  # fmt: skip
        self._came: list[Node] = []
        self._lost: list[tuple[Node, list[Seat]]] = []
        self._drains: list[Node] = []
        """About these nothing was done yet: there was no other node."""
        self._emptied: dict[str, float] = {}
        """Nodes that drain, without seats -> until when their fragments may stay."""
        self._alone_since: float | None = None

    def await_nodes(self) -> bool:
        """Whether there is a node to work on. Raises BootstrapError if none was there for long and none comes."""
        if self._nodes.usable:
            self._alone_since = None
            return True
        now = time.monotonic()
        self._alone_since = now if self._alone_since is None else self._alone_since
        if not self._plan.worker_groups and now > self._alone_since + WAIT_S:
            where = f"of exp.group={self._exp.group} " if self._exp.group else ""
            raise BootstrapError(f"there is no node {where}any more; go on with: hpcjet resume {self._plan.run}")
        return False

    def look(self) -> bool:
        """See which nodes changed, and do what follows; whether there is one that may get work.

        While there is none, one that drains works on, and what was on lost ones waits. Raises what `await_nodes` does.
        """
        change = self._nodes.look()
        self._came += change.came
        self._drains += change.drains
        for node in change.lost:
            self._lost.append((node, self._seats.node_lost(node.node_id)))
        if self.await_nodes():
            self._follow()
            return True
        return False

    def _follow(self) -> None:
        """Do what is to be done for nodes that changed."""
        came, self._came = self._came, []
        lost, self._lost = self._lost, []
        drains, self._drains = self._drains, []
        self._plane.add(came)
        for node, seats in lost:
            fragments = self._remove(node)
            again = self._seats.again(seats) if seats else self.any_seat()
            self._losses.lost(f"node {node.name}", again, fragments=fragments)
        if came:
            self._spread(came)
        for node in drains:
            if node.node_id in self._nodes:
                self._drain(node)
        self._give_back()

    def rooms(self) -> dict[str, int]:
        """How many seats each node has room for."""
        each = max(seat.worlds for seat in self._seats.all.values())
        return room(self._nodes.usable, self._learning.placed, self.needs, worlds_each=each)

    def fill(self) -> None:
        """Hosts for seats that have none."""
        if waiting := self._seats.waiting:
            self._seats.start(deal([seat.name for seat in waiting], self.rooms(), self._seats.standing))

    def any_seat(self) -> Callable[[], bool]:
        """The sign that new experience comes from anywhere."""
        return self._seats.again(list(self._seats.all.values()))

    def _remove(self, node: Node) -> int:
        """Its part of the data plane goes; how many fragments are lost."""
        pool, usable = self._plane.pool_at, self._nodes.usable
        beside = next((each for each in usable if each.node_id in self._learning.places), usable[0])
        lost = self._plane.remove(node, usable, beside)
        if self._plane.pool_at != pool:
            self._move(list(self._seats.all.values()))  # they know the pool by its name
        return lost

    def _spread(self, came: list[Node]) -> None:
        """Nodes that came later get seats of crowded ones, and new seats besides."""
        _log.info("new nodes: %s", ", ".join(node.name for node in came))
        rooms = self.rooms()
        self._move([self._seats.all[name] for name in moves(self._seats.standing, rooms)])
        free = sum(rooms.values()) - len(self._seats.all)
        if self._exp.grow and not self._exp.waits and free > 0:
            self._grow(free)
        self.fill()

    def _grow(self, number: int) -> None:
        seats = self._seats.all.values()
        first = max(seat.first_world + seat.worlds for seat in seats)
        each = max(1, self._exp.worlds // len(seats))
        names = self._seats.add(shares(number * each, number, first=first))
        self._plane.expect(list(self._seats.all))
        _log.info("%d new seats with %d worlds", len(names), number * each)

    def _move(self, seats: list[Seat]) -> None:
        self._seats.stop(seats)
        self._seats.take_off(seats)

    def _drain(self, node: Node) -> None:
        _log.info("%s drains: what is there goes elsewhere", node.name)
        self._move(self._seats.on(node.node_id))
        self.fill()
        if node.node_id in self._learning.places:
            self._learning.leave(self._nodes.usable, self.needs)
        until, by = time.time() + EMPTY_S, self._nodes.drains_by(node)
        self._emptied[node.node_id] = until if by is None else min(until, by - BEFORE_THE_END_S)

    def _give_back(self) -> None:
        """Those that drain, once what was made there was learned from."""
        for node in self._nodes.draining:
            if time.time() < self._emptied.get(node.node_id, 0.0) and self._plane.holds(node):
                continue
            self._losses.fragments += self._remove(node)
            self._emptied.pop(node.node_id, None)
            self._nodes.give_back(node)
