"""A training from its start to its end: nodes, data plane, seats and learners, until the learners are done."""

import logging
import time
from dataclasses import replace

from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.config.swarm.learner import Algorithm
from hpcjet.plan import Plan
from hpcjet.swarm.checkpoints.checkpoint import Checkpoint
from hpcjet.swarm.driver.hope import Hope
from hpcjet.swarm.driver.learning import Learning
from hpcjet.swarm.driver.losses import Losses
from hpcjet.swarm.driver.nodes import Nodes
from hpcjet.swarm.driver.parts import Parts
from hpcjet.swarm.driver.plane import Plane
from hpcjet.swarm.driver.playing import Playing
from hpcjet.swarm.driver.seat import Seat
from hpcjet.swarm.driver.seats import Seats
from hpcjet.swarm.driver.telling import Telling
from hpcjet.swarm.driver.turnover import Turnover
from hpcjet.swarm.form import Form, environment_of
from hpcjet.swarm.hosts import HostSpec
from hpcjet.swarm.placement import Learners, Node, number_of_seats, room, shares
from hpcjet.swarm.watch import SwarmFiles
from hpcjet.workload import Cluster

_log = logging.getLogger(__name__)
PAUSE_S = 0.2
STOP_SHARE = 0.7
"""Of the time that there is to stop, what learners may take for their last update and the checkpoint."""
LAST_WORDS_S = 5.0
"""So long hosts may take to tell of their last episodes."""


class Training:
    """One start of a run. `run` returns when the learners are done; `end` in any case."""

    def __init__(self, plan: Plan, exp: SwarmConfig, form: Form, cluster: Cluster, *, seed: int) -> None:
        self._plan, self._exp, self._form, self._seed = plan, exp, form, seed
        head = str(cluster.ray.get_runtime_context().get_node_id())
        files = SwarmFiles.of(plan.run)
        self._nodes = Nodes(cluster, exp.group)
        self._losses = Losses(files.losses)
        self._plane = Plane(exp, head, self._losses)
        self._seats = Seats(self._host_spec, self._plane, self._losses, files.path / "layout.json")
        self._hope = Hope()
        self._learning = Learning(exp, form, files, self._losses, seed=seed, servers=self._plane.servers)
        self._playing = Playing(exp, head, seed)
        parts = Parts(
            nodes=self._nodes, plane=self._plane, seats=self._seats, learning=self._learning, playing=self._playing,
            losses=self._losses,
        )  # fmt: skip
        self._turnover = Turnover(plan, exp, parts)
        self._telling = Telling(plan, exp, parts)

    def run(self) -> None:
        """Raises WorkloadError or BootstrapError for what cannot go on."""
        self._start()
        while not self._learning.done:
            self._look()
            time.sleep(PAUSE_S)
        self._seats.ask(LAST_WORDS_S)
        self._telling.take_rows()
        self._telling.take_late()
        self._hope.look(self._seats.all.values(), last=True)
        _log.info("learned: version %d", self._learning.version)
        self._seats.stop(self._seats.all.values())
        _log.info("the hosts have stopped")
        self._telling.play_last()

    def stop(self) -> None:
        """At a safe point, with a checkpoint: hosts have to be there for it."""
        self._learning.stop(self._plan.stop_timeout_s(time_limit=True) * STOP_SHARE)
        self._telling.take_rows()

    def end(self) -> None:
        """The last words; what runs on the nodes ends with the run's Ray."""
        self._playing.give_up()
        self._losses.end()
        self._telling.end()

    def _start(self) -> None:
        nodes = self._first_nodes()
        learners = self._learning.place(nodes, self._turnover.needs)
        resumed = self._learning.newest()
        told = self._telling.begin(-1 if resumed is None else resumed.version)
        self._make_seats(nodes, learners, resumed)
        fragments = self._form.fragments(self._exp, len(self._seats.all))
        self._plane.place(nodes, learners)
        # All at once, as processes take seconds to start; each finds the others by their names, and waits for them.
        self._learning.start(
            replace(
                self._learning.spec, fragments=fragments,
                seats=tuple(self._seats.all) if self._exp.waits else (),
                caches=tuple(self._plane.caches) if self._exp.cache.push else (),
            ),
            told=told,
        )  # fmt: skip
        self._turnover.fill()
        staleness = self._exp.staleness.resolved(sum(fragments.values()), 1)
        self._plane.start(staleness, seed=self._seed, seats=list(self._seats.all))
        _log.info(
            "%d seats with %d worlds on %d nodes; learners on %s", len(self._seats.all), self._exp.worlds, len(nodes),
            ", ".join(self._nodes.name(node_id) for node_id in learners.ranks),
        )  # fmt: skip

    def _first_nodes(self) -> list[Node]:
        self._nodes.look(now=True)
        while not self._turnover.await_nodes():
            self._telling.progress()
            time.sleep(PAUSE_S)
            self._nodes.look()
        return self._nodes.usable

    def _make_seats(self, nodes: list[Node], learners: Learners, resumed: Checkpoint | None) -> None:
        """As an earlier start had them, or new ones."""
        exp = self._exp
        if resumed is not None:
            self._seats.load(resumed.hosts)
            _log.info("goes on from version %d", resumed.version)
            return
        seats = exp.seats or min(exp.worlds, sum(node.cpus for node in nodes))
        rooms = room(nodes, learners, self._turnover.needs, worlds_each=-(-exp.worlds // seats))
        self._seats.add(shares(exp.worlds, number_of_seats(rooms, exp.worlds, exp.seats)))

    def _look(self) -> None:
        free = self._turnover.look()
        self._seats.look()
        self._hope.look(self._seats.all.values())
        if free:
            self._turnover.fill()
        self._learning.look(self._nodes.usable, self._turnover.needs)
        self._plane.look(self._turnover.any_seat)
        self._losses.look()
        self._telling.look()

    def _host_spec(self, seat: Seat) -> HostSpec:
        exp = self._exp
        return HostSpec(
            seat=seat.name, env=environment_of(exp), worlds=seat.worlds, first_world=seat.first_world, seed=self._seed,
            steps=exp.steps, node=self._nodes.name(seat.node_id), cache=self._plane.cache(seat.node_id),
            pool=self._plane.pool(seat.node_id), policy_map=exp.policy_map, policy=exp.policy, backend=exp.backend,
            keep_snapshots=exp.waits, with_values=exp.learner.algorithm is Algorithm.ppo,
        )  # fmt: skip
