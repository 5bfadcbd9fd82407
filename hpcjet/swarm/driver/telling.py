"""What a training tells: a row for each update, the seats, and greedy episodes between."""

import logging
import time

from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.plan import Plan
from hpcjet.swarm.driver import rows
from hpcjet.swarm.driver.parts import Parts
from hpcjet.swarm.driver.playing import Played
from hpcjet.swarm.row import Row
from hpcjet.swarm.vector import Episode
from hpcjet.swarm.watch import MetricsLog, SwarmFiles, SwarmProgress, write_seats

_log = logging.getLogger(__name__)
SEATS_S = 5.0
"""Between two writes of seats.json."""
PLAY_S = 300.0
"""So long the last episodes may take."""
MOST_FAULTS, FAULTS_S = 100, 600.0
"""Of worlds: so many are in the log of so many seconds."""


class Telling:
    """Joins what learners, hosts and pools say, and writes it."""

    def __init__(self, plan: Plan, exp: SwarmConfig, parts: Parts) -> None:
        self._exp, self._nodes, self._plane, self._seats = exp, parts.nodes, parts.plane, parts.seats
        self._learning, self._losses, self._playing = parts.learning, parts.losses, parts.playing
        self._files = SwarmFiles.of(plan.run)
        self._metrics = MetricsLog(self._files.path)
        self._progress = SwarmProgress(plan.run.progress, updates=exp.updates, agent_steps=exp.agent_steps)
        self._row: Row = {}
        self._fault, self._fault_is_new = "", False
        """Of a world, and whether it came after the last row."""
        self._faults_told, self._faults_until = 0, 0.0
        self._evaluation: Row = {}
        self._next_seats = 0.0
        self._played = 0
        self._produced = 0.0
        self._episodes: list[Episode] = []
        """Told with the last row."""

    def begin(self, version: int) -> int:
        """Rows after this version are of an earlier start, and will be made again; the last one that there is."""
        return self._metrics.rewind(version)

    def progress(self, note: str = "") -> None:
        """`note` is what is out of the ordinary."""
        waits = "" if self._nodes.usable else "waits for nodes"
        self._progress.write(
            self._row, note=note or waits or self._losses.note or self._learning.trouble or self._fault
        )

    def look(self) -> None:
        """What is new, and greedy episodes when it is time for them."""
        self._tell_faults()
        self.take_rows()
        self._evaluate()
        self._tell_seats()
        self.progress()

    def take_rows(self) -> None:
        """A row for each update since the last time."""
        new = self._learning.take_rows()
        if not new:
            return
        self._episodes = self._seats.take_episodes()
        self._fault, self._fault_is_new = self._fault if self._fault_is_new else "", False
        pools = self._plane.pool_statuses()
        beside = {
            **rows.of_episodes(self._episodes), **rows.of_pools(pools),
            "produced_bytes": self._produced_since(sum(float(each["produced_bytes"]) for each in pools)),
            "hosts": float(len(self._seats.standing)), "nodes": float(len(self._nodes.usable)),
            "lost_fragments": float(self._losses.fragments), **self._evaluation,
        }  # fmt: skip
        self._evaluation = {}
        for row in new[:-1]:
            self._metrics.write(row)
        # What came of many updates at once is told with the last of them.
        self._row = {**new[-1], **beside}
        self._metrics.write(self._row)

    def take_late(self) -> None:
        """Episodes that were told after the last update belong to it; faults are told."""
        self._tell_faults()
        if self._row and (late := self._seats.take_episodes()):
            self._row |= rows.of_episodes([*self._episodes, *late])
            self._metrics.write(self._row)

    def play_last(self) -> None:
        """With the last weights: the row of the last update tells of it, and the report shows it."""
        self._playing.give_up()
        self.progress("plays the last episodes")
        if cache := self._a_cache():
            self._playing.begin(cache, self._version, film=True)
        if played := self._playing.take(wait_s=PLAY_S):
            _log.info("%d greedy episodes with version %d were played", len(played.episodes), played.version)
            self._keep(played)

    def end(self) -> None:
        self._tell_seats(now=True)
        self._metrics.close()

    @property
    def _version(self) -> int:
        """Of the last row."""
        return int(float(self._row.get("version", 0)))

    def _tell_faults(self) -> None:
        """Also where no update is made, since all worlds fail."""
        faults = self._seats.take_faults()
        if (now := time.monotonic()) > self._faults_until:
            self._faults_until, self._faults_told = now + FAULTS_S, 0
        for fault in faults[: MOST_FAULTS - self._faults_told]:
            _log.warning("%s", fault)
        self._faults_told = min(self._faults_told + len(faults), MOST_FAULTS)
        if faults:
            self._fault, self._fault_is_new = faults[-1], True

    def _produced_since(self, total: float) -> float:
        """Since the last row; a pool that began anew counts from 0."""
        before, self._produced = self._produced, total
        return max(0.0, total - before)

    def _evaluate(self) -> None:
        if played := self._playing.take():
            self._evaluation = rows.of_evaluation(played.episodes)
        every = self._exp.evaluate_every if self._exp.evaluate_episodes else 0
        due = every and self._version >= self._played + every and not self._playing.goes_on
        if due and (cache := self._a_cache()):
            self._played = self._version
            self._playing.begin(cache, self._version)

    def _keep(self, played: Played) -> None:
        if self._row:
            self._row |= rows.of_evaluation(played.episodes)
            self._metrics.write(self._row)
        if played.trajectory is not None:
            try:
                played.trajectory.save(self._files.trajectory)
            except OSError as error:
                _log.warning("the trajectory could not be written: %s", error)

    def _a_cache(self) -> str | None:
        """Of the head's node if that works, since who plays is there; None while there is no node."""
        there = sorted([*self._nodes.usable, *self._nodes.draining], key=lambda node: node.node_id != self._playing.at)
        return self._plane.cache(there[0].node_id) if there else None

    def _tell_seats(self, *, now: bool = False) -> None:
        if now or time.monotonic() > self._next_seats:
            self._next_seats = time.monotonic() + SEATS_S
            write_seats(self._files.seats, self._seats.facts(self._nodes.name))
