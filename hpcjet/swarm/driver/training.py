"""The loop of a training: nodes, data plane, seats and learners, until the learners are done."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.config.swarm.learner import Algorithm
from hpcjet.errors import BootstrapError
from hpcjet.plan import Plan
from hpcjet.swarm.driver import rows
from hpcjet.swarm.driver.learning import Learning
from hpcjet.swarm.driver.losses import Losses
from hpcjet.swarm.driver.nodes import Nodes
from hpcjet.swarm.driver.plane import Plane
from hpcjet.swarm.driver.playing import Played, Playing
from hpcjet.swarm.driver.seats import Seat, Seats
from hpcjet.swarm.form import Form, environment_of
from hpcjet.swarm.hosts import HostSpec
from hpcjet.swarm.placement import Needs, Node, deal, moves, number_of_seats, room, shares
from hpcjet.swarm.row import Row
from hpcjet.swarm.vector import Episode
from hpcjet.swarm.watch import MetricsLog, SwarmFiles, SwarmProgress, write_seats
from hpcjet.workload import Cluster

_log = logging.getLogger(__name__)
PAUSE_S = 0.2
STOP_SHARE = 0.7
"""Of the time that there is to stop, what learners may take for their last update and the checkpoint."""
SEATS_S = 5.0
"""Between two writes of seats.json."""
EMPTY_S = 30.0
"""So long fragments of a node that drains may take to be learned from."""
LAST_WORDS_S = 5.0
"""So long hosts may take to tell of their last episodes."""
PLAY_S = 300.0
"""So long the last episodes may take."""
WAIT_FOR_NODES_S = 600.0


class Training:
    """One start of a run. `run` returns when the learners are done; `end` in any case."""

    def __init__(self, plan: Plan, exp: SwarmConfig, form: Form, cluster: Cluster, *, seed: int) -> None:
        self._plan, self._exp, self._form, self._seed = plan, exp, form, seed
        self._files = SwarmFiles.of(plan.run)
        self._head = str(cluster.ray.get_runtime_context().get_node_id())
        self._nodes = Nodes(cluster, exp.group)
        self.losses = Losses(self._files.losses)
        self._plane = Plane(exp, self._head, self.losses)
        self._seats = Seats(self._host_spec, self._plane, self.losses, self._files.path / "layout.json")
        self._metrics = MetricsLog(self._files.path)
        self._progress = SwarmProgress(plan.run.progress, updates=exp.updates, agent_steps=exp.agent_steps)
        self._learning = Learning(exp, form, self._files, self.losses, seed=seed, servers=self._plane.servers)
        self._playing = Playing(exp, self._head, seed)
        self._row: Row = {}
        self._evaluation: Row = {}
        self._emptied: dict[str, float] = {}
        """Nodes that drain, without seats -> until when their fragments may stay."""
        self._next_seats = 0.0
        self._played = 0
        self._produced = 0.0
        self._episodes: list[Episode] = []
        """Told with the last row."""

    def run(self) -> None:
        """Raises WorkloadError, WorldError or BootstrapError for what cannot go on."""
        self._start()
        while not self._learning.done:
            self._look()
            time.sleep(PAUSE_S)
        self._seats.ask(LAST_WORDS_S)
        self._take_rows()
        self._take_late()
        _log.info("learned: version %d", self._learning.version)
        self._seats.stop(self._seats.all.values())
        _log.info("the hosts have stopped")
        self._play_last()

    def stop(self) -> None:
        """At a safe point, with a checkpoint: hosts have to be there for it."""
        self._learning.stop(self._plan.stop_timeout_s(time_limit=True) * STOP_SHARE)
        self._take_rows()

    def end(self) -> None:
        """The last words; what runs on the nodes ends with the run's Ray."""
        self._playing.give_up()
        self.losses.end()
        self._tell_seats(now=True)
        self._metrics.close()

    # the start

    def _start(self) -> None:
        nodes = self._first_nodes()
        needs = self._needs()
        learners = self._learning.place(nodes, needs)
        resumed = self._learning.newest()
        if resumed is not None:
            self._seats.load(resumed.hosts)
            _log.info("goes on from version %d", resumed.version)
        else:
            rooms = room(nodes, learners, needs, worlds_each=self._worlds_each(nodes))
            self._seats.add(shares(self._exp.worlds, number_of_seats(rooms, self._exp.worlds, self._exp.seats)))
        self._metrics.rewind(-1 if resumed is None else resumed.version)
        fragments = self._form.fragments(self._exp, len(self._seats.all))
        staleness = self._exp.staleness.resolved(sum(fragments.values()), 1)
        self._plane.start(nodes, learners, staleness, seed=self._seed, seats=list(self._seats.all))
        self._fill()  # hosts wait for the learners, and both take seconds to start
        self._learning.start(
            replace(
                self._learning.spec, fragments=fragments,
                seats=tuple(self._seats.all) if self._exp.waits else (),
                caches=tuple(self._plane.caches) if self._exp.cache.push else (),
            )
        )  # fmt: skip
        _log.info(
            "%d seats with %d worlds on %d nodes; learners on %s", len(self._seats.all), self._exp.worlds, len(nodes),
            ", ".join(self._nodes.name(node_id) for node_id in learners.ranks),
        )  # fmt: skip

    def _first_nodes(self) -> list[Node]:
        deadline = time.monotonic() + WAIT_FOR_NODES_S
        while True:
            self._nodes.look(now=True)
            if self._nodes.usable:
                return self._nodes.usable
            if time.monotonic() > deadline:
                raise BootstrapError(f"no node of exp.group={self._exp.group} came; see hpcjet logs {self._plan.run}")
            self._progress.write({}, note="waits for nodes")
            time.sleep(PAUSE_S)

    def _needs(self) -> Needs:
        exp = self._exp
        return Needs(
            learners=exp.learners, learner_cpus=exp.learner_cpus, waits=exp.waits, worlds=exp.worlds,
            parts=exp.staleness.fragments or exp.seats or exp.worlds, world_bytes=exp.world_memory_gb * 2**30,
        )  # fmt: skip

    def _worlds_each(self, nodes: list[Node]) -> int:
        """Worlds of one seat, which decide what memory it needs."""
        seats = self._exp.seats or min(self._exp.worlds, sum(node.cpus for node in nodes))
        return -(-self._exp.worlds // seats)

    def _host_spec(self, seat: Seat) -> HostSpec:
        exp = self._exp
        return HostSpec(
            seat=seat.name, env=environment_of(exp), worlds=seat.worlds, first_world=seat.first_world, seed=self._seed,
            steps=exp.steps, node=self._nodes.name(seat.node_id), cache=self._plane.cache(seat.node_id),
            pool=self._plane.pool(seat.node_id), policy_map=exp.policy_map, policy=exp.policy, backend=exp.backend,
            keep_snapshots=exp.waits, with_values=exp.learner.algorithm is Algorithm.ppo,
        )  # fmt: skip

    # the loop

    def _look(self) -> None:
        change = self._nodes.look()
        for node in change.lost:
            self._lose(node)
        if change.came:
            self._take_in(change.came)
        for node in change.drains:
            self._drain(node)
        self._empty()
        self._seats.look()
        self._fill()
        if self._nodes.usable:
            self._learning.look(self._nodes.usable, self._needs())
        self._plane.look(self._any_seat)
        self.losses.look()
        self._take_rows()
        self._evaluate()
        self._tell_seats()
        self._progress.write(self._row, note=self.losses.note)

    def _any_seat(self) -> Callable[[], bool]:
        return self._seats.again(list(self._seats.all.values()))

    def _fill(self) -> None:
        """Hosts for seats that have none."""
        waiting = self._seats.waiting
        if not waiting:
            return
        rooms = self._rooms()
        if not rooms:
            raise BootstrapError(f"no node is left; go on with: hpcjet resume {self._plan.run}")
        self._seats.start(deal([seat.name for seat in waiting], rooms, self._seats.standing))

    def _rooms(self) -> dict[str, int]:
        return room(
            self._nodes.usable, self._learning.placed, self._needs(),
            worlds_each=max(seat.worlds for seat in self._seats.all.values()),
        ) if self._nodes.usable else {}  # fmt: skip

    def _lose(self, node: Node) -> None:
        seats = self._seats.on(node.node_id)
        self._seats.take_off(seats, tell=False)
        lost = self._remove(node)
        again = self._seats.again(seats) if seats else self._any_seat()
        self.losses.lost(f"node {node.name}", again, fragments=lost)

    def _remove(self, node: Node) -> int:
        """Its part of the data plane goes; how many fragments are lost."""
        pool = self._plane.pool_at
        lost = self._plane.remove(node, self._nodes.usable, self._beside_learners())
        if self._plane.pool_at != pool:
            self._move(list(self._seats.all.values()))  # they know the pool by its name
        return lost

    def _beside_learners(self) -> Node:
        usable = self._nodes.usable
        if not usable:
            raise BootstrapError(f"no node is left; go on with: hpcjet resume {self._plan.run}")
        return next((node for node in usable if node.node_id in self._learning.places), usable[0])

    def _take_in(self, nodes: list[Node]) -> None:
        """Nodes that came later: they get seats of crowded ones, and new seats besides."""
        _log.info("new nodes: %s", ", ".join(node.name for node in nodes))
        self._plane.add(nodes)
        rooms = self._rooms()
        for name in moves(self._seats.standing, rooms):
            self._move([self._seats.all[name]])
        free = sum(rooms.values()) - len(self._seats.all)
        if self._exp.grow and not self._exp.waits and free > 0:
            self._grow(free)
        self._fill()

    def _grow(self, number: int) -> None:
        seats = self._seats.all.values()
        first = max(seat.first_world + seat.worlds for seat in seats)
        each = max(1, self._exp.worlds // len(seats))
        names = self._seats.add(shares(number * each, number, first=first))
        index = self._plane.index
        self._plane.ask(lambda: index.expect.remote(list(self._seats.all)))
        _log.info("%d new seats with %d worlds", len(names), number * each)

    def _move(self, seats: list[Seat]) -> None:
        self._seats.stop(seats)
        self._seats.take_off(seats)

    def _drain(self, node: Node) -> None:
        _log.info("%s drains: its seats go elsewhere", node.name)
        self._move(self._seats.on(node.node_id))
        if node.node_id in self._learning.places:
            self._learning.leave(self._nodes.usable, self._needs())
        until = time.time() + EMPTY_S
        by = self._nodes.drains_by(node)
        self._emptied[node.node_id] = until if by is None else min(until, by - 5.0)

    def _empty(self) -> None:
        """Give back those that drain, once what was made there was learned from."""
        for node in self._nodes.draining:
            if time.time() < self._emptied.get(node.node_id, 0.0) and self._plane.holds(node):
                continue
            self.losses.fragments += self._remove(node)
            self._emptied.pop(node.node_id, None)
            self._nodes.give_back(node)

    # what is told

    def _take_rows(self) -> None:
        new = self._learning.take_rows()
        if not new:
            return
        told = self._seats.take_told()
        self._episodes = told.episodes
        for fault in told.faults[:10]:
            _log.warning("%s", fault)
        pools = self._plane.pool_statuses()
        beside = {
            **rows.of_episodes(told.episodes), **rows.of_pools(pools),
            "produced_bytes": self._produced_since(sum(float(each["produced_bytes"]) for each in pools)),
            "hosts": float(len(self._seats.standing)), "nodes": float(len(self._nodes.usable)),
            "lost_fragments": float(self.losses.fragments), **self._evaluation,
        }  # fmt: skip
        self._evaluation = {}
        for row in new[:-1]:
            self._metrics.write(row)
        # What came of many updates at once is told with the last of them.
        self._row = {**new[-1], **beside}
        self._metrics.write(self._row)

    def _take_late(self) -> None:
        """Episodes that were told after the last update belong to it."""
        if self._row and (late := self._seats.take_told().episodes):
            self._row |= rows.of_episodes([*self._episodes, *late])
            self._metrics.write(self._row)

    def _produced_since(self, total: float) -> float:
        """Since the last row; a pool that began anew counts from 0."""
        before, self._produced = self._produced, total
        return max(0.0, total - before)

    def _evaluate(self) -> None:
        every, version = self._exp.evaluate_every, int(float(self._row.get("version", 0)))
        if played := self._playing.take():
            self._evaluation = rows.of_evaluation(played.episodes)
        if every and version >= self._played + every and not self._playing.goes_on and self._exp.evaluate_episodes:
            self._played = version
            self._playing.begin(self._plane.cache(self._head_or_any()), version)

    def _play_last(self) -> None:
        """With the last weights: the row of the last update tells of it, and the report shows it."""
        self._playing.give_up()
        version = int(float(self._row.get("version", 0)))
        self._progress.write(self._row, note="plays the last episodes")
        self._playing.begin(self._plane.cache(self._head_or_any()), version, film=True)
        played = self._playing.take(wait_s=PLAY_S)
        if played is not None:
            _log.info("%d greedy episodes with version %d were played", len(played.episodes), played.version)
            self._keep_played(played)

    def _keep_played(self, played: Played) -> None:
        if self._row:
            self._row |= rows.of_evaluation(played.episodes)
            self._metrics.write(self._row)
        if played.trajectory is not None:
            try:
                played.trajectory.save(self._files.trajectory)
            except OSError as error:
                _log.warning("the trajectory could not be written: %s", error)

    def _head_or_any(self) -> str:
        return self._head if self._head in self._nodes else self._nodes.usable[0].node_id

    def _tell_seats(self, *, now: bool = False) -> None:
        if now or time.monotonic() > self._next_seats:
            self._next_seats = time.monotonic() + SEATS_S
            write_seats(self._files.seats, self._seats.facts(self._nodes.name))
