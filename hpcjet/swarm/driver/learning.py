"""The learners of a training, as the driver sees them: started, watched, and started again from a checkpoint."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.config.swarm.pool import Order
from hpcjet.errors import WorkloadError
from hpcjet.swarm.checkpoints import newest_checkpoint, versions
from hpcjet.swarm.checkpoints.checkpoint import Checkpoint
from hpcjet.swarm.driver.answers import no_answer
from hpcjet.swarm.driver.losses import Losses
from hpcjet.swarm.form import Form
from hpcjet.swarm.learners import LearnerSpec, LearnerStatus, RankError
from hpcjet.swarm.learners.chief import form_of
from hpcjet.swarm.learners.group import LearnerGroup
from hpcjet.swarm.placement import Learners, Needs, Node, place_learners
from hpcjet.swarm.row import Row
from hpcjet.swarm.watch import SwarmFiles

_log = logging.getLogger(__name__)
MAX_FAILURES = 3
"""Generations that may end one after the other without an update, on nodes that are still there."""
BACK_OFF_S = (0.0, 5.0, 20.0)
"""After each of them. Ray by itself takes up to half a minute to see that a node is gone; until then learners are
started there, in vain."""
START_S = 600.0
"""So long they may take to start and to meet: torch may come over a network. If one dies it ends at once."""
LEAVE_S = 60.0
"""So long learners may take to stop where one is on a node that drains."""


class Learning:
    """One generation of learners after the other."""

    def __init__(
        self, exp: SwarmConfig, form: Form, files: SwarmFiles, losses: Losses, *, seed: int, servers: tuple[str, ...]
    ) -> None:
        self._exp, self._losses = exp, losses
        self.spec = LearnerSpec(
            policies=form.policies, fragments={}, checkpoints=files.checkpoints, policy=exp.policy,
            learner=exp.learner, backend=exp.backend, seed=seed, servers=servers, compression=exp.pool.compression,
            checkpoint_every=exp.checkpoint_every, updates=exp.updates, agent_steps=exp.agent_steps,
            prioritised=exp.pool.order is Order.prioritised,
            held=0 if exp.pool.max_times == 1 else exp.pool.capacity,
        )  # fmt: skip
        self._group: LearnerGroup | None = None
        self._placed: Learners | None = None
        self._gpus = False
        self._generation = 0
        self._failures, self._why = 0, ""
        self._not_before = 0.0
        self._runs = self._starting = False
        self._started: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._rows: list[Row] = []
        self._made = 0
        """Updates so far, those that are made again too."""
        self.version = 0
        self.done = False
        self.doing = self.trouble = ""

    @property
    def placed(self) -> Learners:
        assert self._placed is not None, "placed at the start"
        return self._placed

    @property
    def places(self) -> list[str]:
        """Ray's ids of the nodes that learners are on."""
        return [] if self._placed is None else list(dict.fromkeys(self._placed.ranks))

    def newest(self) -> Checkpoint | None:
        """What there is to go on from. Raises WorkloadError for a checkpoint that does not fit."""
        try:
            return newest_checkpoint(self.spec.checkpoints, form_of(self.spec))
        except ValueError as error:  # a ConfigError; but nothing is wrong with the request
            raise WorkloadError(str(error)) from error

    def place(self, nodes: Sequence[Node], needs: Needs) -> Learners:
        """Where the next generation will be. Raises BootstrapError without nodes."""
        self._placed = place_learners(nodes, needs)
        ranks = set(self._placed.ranks)
        self._gpus = all(node.gpus for node in nodes if node.node_id in ranks)
        return self._placed

    def start(self, spec: LearnerSpec, told: int) -> None:
        """The first generation of this start; `look` sees whether it came up. There are rows up to version `told`."""
        self.spec, self._group = spec, LearnerGroup(spec, told)
        self._begin()

    def look(self, nodes: Sequence[Node], needs: Needs) -> None:
        """See how they do; start again those that died, once there is a node.

        Raises WorkloadError for what starting again does not mend.
        """
        assert self._group is not None
        if self._starting:
            self._see_start()
            return
        if not self._runs:
            if nodes:
                self._go_on(nodes, needs)
            return
        try:
            status = self._group.status()
        except RankError as error:  # one that is to be ended does not answer; the next start ends it
            self._failed(str(error), fatal=False, lost=self._group.lost_ranks())
            return
        self._take(status)
        self.version, self.done = status.version, status.done
        self.doing = status.doing[0] if status.doing else ""
        if status.trouble and not self.trouble:
            _log.warning("%s; the training goes on", status.trouble)
        self.trouble = status.trouble
        if status.error:
            self._failed(status.error, fatal=status.fatal, lost=self._group.lost_ranks())

    def _go_on(self, nodes: Sequence[Node], needs: Needs) -> None:
        """The next generation, after a pause. Those before did not fail by themselves if a node of theirs is gone."""
        if not {node.node_id for node in nodes}.issuperset(self.places):
            self._failures, self._not_before = 0, 0.0
        if time.monotonic() < self._not_before:
            return
        if self._failures >= MAX_FAILURES:
            raise WorkloadError(f"learners ended {self._failures} times without an update, the last time: {self._why}")
        self.place(nodes, needs)
        self._begin()

    def leave(self, nodes: Sequence[Node], needs: Needs) -> None:
        """Go on elsewhere, from a checkpoint made now."""
        self.stop(LEAVE_S)
        if not self._starting:
            self.place(nodes, needs)
            self._begin()

    def stop(self, timeout_s: float) -> None:
        """At a safe point, with a checkpoint."""
        if self._group is None or not self._runs:
            return
        self._runs = False
        try:
            status = self._group.stop(timeout_s)
        except RankError as error:
            _log.warning("%s", error)
            return
        self._take(status)
        if status.error:
            _log.warning("%s; the run goes on from the checkpoint before", status.error)

    def take_rows(self) -> list[Row]:
        rows, self._rows = self._rows, []
        return rows

    def _begin(self) -> None:
        """Beside the loop, which has others to look after: processes take seconds to start."""
        assert self._group is not None
        group, placed, generation = self._group, self.placed, self._generation
        self._generation += 1

        def start() -> None:
            began = time.monotonic()
            try:
                group.start(placed.ranks, generation, threads=placed.threads, gpus=self._gpus, timeout_s=START_S)
                _log.info("learners, generation %d, in %.1f s", generation, time.monotonic() - began)
                self._started.put(None)
            except Exception as error:  # the loop raises what is none of the ranks'
                self._started.put(error)

        self._starting = True
        threading.Thread(target=start, name=f"learners-{generation}", daemon=True).start()

    def _see_start(self) -> None:
        """Whether they have started meanwhile."""
        try:
            error = self._started.get_nowait()
        except queue.Empty:
            return
        self._starting, self._runs = False, error is None
        if isinstance(error, (RankError, *no_answer())):
            self._failed(str(error).strip().partition("\n")[0], fatal=False, lost=[])
        elif error is not None:
            raise error

    def _failed(self, why: str, *, fatal: bool, lost: Sequence[int]) -> None:
        self._runs = False
        if fatal:
            raise WorkloadError(why)
        self._failures, self._why = self._failures + 1, why
        self._not_before = time.monotonic() + BACK_OFF_S[min(self._failures, MAX_FAILURES) - 1]
        saved = max(versions(self.spec.checkpoints), default=0)
        again = max(0, self.version - saved) * sum(self.spec.fragments.values())
        _log.warning("learners ended: %s; they go on from version %d", why, saved)
        what = " and ".join(f"learner rank {rank}" for rank in lost) or f"the learners ({why})"
        self._losses.lost(what, self._more_rows(), fragments=again)

    def _more_rows(self) -> Callable[[], bool]:
        before = self._made
        return lambda: self._made > before

    def _take(self, status: LearnerStatus) -> None:
        made = sum(int(row["version"]) > status.begun for row in status.rows)
        if made:
            self._failures = 0
        self._made += made
        self._rows += [dict(row) for row in status.rows]
