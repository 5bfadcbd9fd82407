"""Keeps the groups of a run at the size that its work needs: looks, asks the policy, carries out what it decides.

On the head the node agent starts it, and again when it ends. Where a compute node has no sbatch, whoever follows the
run on a login node submits and cancels for it (hpcjet.elastic.login); draining stays the head's.
"""

import logging
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from hpcjet.cluster.events import Event
from hpcjet.cluster.outbox import DRAIN, NOTE, Outbox
from hpcjet.cluster.rendezvous import read_pointer
from hpcjet.elastic.jobs import Jobs, SlurmJobs
from hpcjet.elastic.memory import MemoryFile
from hpcjet.elastic.policy import decide
from hpcjet.elastic.sight import Idleness, Known, Sight, read_backlog, read_members
from hpcjet.elastic.views import Action, Backlog, Cancel, Drain, Pause, Standing, Submit
from hpcjet.elastic.wish import wishes
from hpcjet.errors import HpcjetError, SubmitError
from hpcjet.plan import Plan, read_plan
from hpcjet.slurm.allocations import Allocation
from hpcjet.slurm.query import JobState
from hpcjet.slurm.states import Stage

TICK_S = 2.0
"""Between two looks at the run's files."""
SOON_S, SLOW_S = 10.0, 30.0
"""Between two questions to Slurm: while something waits in its queue, and else."""
AGAIN_S = 60.0
"""Before a job that should have ended is cancelled again."""
UNTOLD_S = 60.0
"""Until a node that drains is ended where neither the workload nor Ray can tell when nothing is at work there."""
NOT_A_FAILURE = {"CANCELLED", "PREEMPTED", "NEVER_SUBMITTED"}
"""Ends before the first node that say nothing about whether the group can start."""

_log = logging.getLogger(__name__)


class Says(Protocol):
    """Where words to the head go."""

    def say(self, word: str, **facts: Any) -> None: ...


class Keeper:
    """One run's. `tick` does all there is to do now; state is in the run's files and in Slurm."""

    def __init__(self, plan: Plan, jobs: Jobs, says: Says, memory: MemoryFile, *, drains: bool = True) -> None:
        self._plan, self._jobs, self._says, self._drains = plan, jobs, says, drains
        self._file, self._memory = memory, memory.memory
        self._idle = Idleness()
        self._living: list[tuple[Allocation, JobState]] = []
        self._look_at = 0.0
        self._was_told = False
        self._cancelled: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        """Members that were asked to drain, and when."""
        self._most = getattr(plan.typed_config().exp, "in_flight", None)

    def tick(self, now: float) -> list[Action]:
        """Look, decide, do. Returns what was decided."""
        members = read_members(self._plan.run.members)
        self._check_sbatch()
        self._see_who_joined(members)
        if now >= self._look_at:
            self._look(now)
        actions = self._decide(members, now)
        for action in actions:
            self._do(action, now)
        self._file.keep()
        return actions

    def _check_sbatch(self) -> None:
        submits = self._jobs.can_submit()
        if not submits and self._memory.submits:
            _log.warning(NO_SBATCH)
            self._note(Event.allocation_failed, reason=NO_SBATCH, group="")
        self._memory.submits = submits

    def _see_who_joined(self, members: Iterable[Known]) -> None:
        submitted = {each.job_id: each.submitted for each, _ in self._living if each.job_id}
        known = set(self._memory.joined)
        for each in sorted(members, key=lambda member: member.since):
            worked = each.standing in (Standing.joined, Standing.draining)
            if worked and each.job not in known and each.group in self._elastic:
                known.add(each.job)
                waited_s = each.since - submitted[each.job] if each.job in submitted else None
                self._memory.has_joined(each.group, each.job, waited_s)

    @property
    def _elastic(self) -> set[str]:
        return {group.name for group in self._plan.worker_groups}

    def _look(self, now: float) -> None:
        """Ask Slurm, and see to what has ended since."""
        before = {each.name for each, _ in self._living}
        try:
            self._living = self._jobs.look()
        except OSError as error:
            _log.warning("the records of allocations cannot be kept (%s); going on with what was known", error)
            self._look_at = now + SLOW_S
            return
        waits = any(state.stage is not Stage.running for _, state in self._living)
        self._look_at = now + (SOON_S if waits else SLOW_S)
        for each in self._jobs.ended(before - {each.name for each, _ in self._living}):
            self._see_to_the_end(each, now)

    def _see_to_the_end(self, ended: Allocation, now: float) -> None:
        """An end before the first node is a failed start, unless somebody wanted it."""
        if ended.job_id in self._memory.joined or ended.ended in NOT_A_FAILURE or ended.name in self._cancelled:
            return
        self._failed(ended.group, f"job {ended.job_id} ended ({ended.ended}) before a node of it joined", now, ended)

    def _failed(self, group: str, reason: str, now: float, allocation: Allocation | None = None) -> None:
        self._memory.failed(group, reason, now)
        name = {"name": allocation.name} if allocation else {}
        self._note(Event.allocation_failed, group=group, reason=reason, **name)

    def _decide(self, members: list[Known], now: float) -> list[Action]:
        backlog, busy = self._backlog()
        self._idle.look([each.member for each in members if each.standing is Standing.joined], busy, now)
        sight = Sight(
            plan=self._plan, members=members, jobs=self._still_wanted(now), busy=busy or {}, idle=self._idle,
            memory=self._memory, wishes=self._wishes(),
            draining=frozenset(member for member, at in self._asked.items() if now - at < AGAIN_S),
        )  # fmt: skip
        return decide(sight.groups(), backlog, now)

    def _backlog(self) -> tuple[Backlog | None, dict[str, int] | None]:
        """What the driver of this head says. One that said something and is silent now has no more work."""
        pointer = read_pointer(self._plan.run)
        since = pointer.started if pointer else 0.0
        told = read_backlog(self._plan.run.backlog, since=since, most=self._most or None)
        self._was_told = self._was_told or told is not None
        if told is None and self._was_told:
            return Backlog(waiting=0, in_flight=0), None
        return told or (None, None)

    def _still_wanted(self, now: float) -> list[tuple[Allocation, JobState]]:
        """Without those that were cancelled a moment ago."""
        return [
            (each, state) for each, state in self._living if now - self._cancelled.get(each.name, -AGAIN_S) >= AGAIN_S
        ]

    def _wishes(self) -> dict[str, int]:
        found = wishes(self._plan.run, self._plan)
        for group, wish in found.items():
            mine = self._memory.of(group)
            if wish.at > mine.wish_at:
                mine.wish_at = wish.at
                self._note(Event.scaled, group=group, nodes=wish.nodes)
        return {group: wish.nodes for group, wish in found.items()}

    def _do(self, action: Action, now: float) -> None:
        if isinstance(action, Drain):
            self._drain(action, now)
        elif isinstance(action, Pause):
            self._pause(action)
        elif not self._memory.submits or self._slurm_is_away():
            return
        elif isinstance(action, Submit):
            self._submit(action, now)
        else:
            self._cancel(action, now)

    def _slurm_is_away(self) -> bool:
        """Whether its controller did not answer: then nothing is asked of it, and what it had counts as being there."""
        return bool(self._living) and all(state.stage is Stage.unknown for _, state in self._living)

    def _drain(self, action: Drain, now: float) -> None:
        if self._drains:
            self._asked = {member: at for member, at in self._asked.items() if now - at < AGAIN_S}
            self._asked[action.member] = now
            _log.info("%s drains: %s", action.member, action.reason)
            by = {} if self._was_told or self._plan.ray else {"by": now + UNTOLD_S}
            self._says.say(DRAIN, member=action.member, reason=action.reason, **by)

    def _pause(self, action: Pause) -> None:
        mine = self._memory.of(action.group)
        if action.until != mine.paused_until:
            mine.paused_until = action.until
            _log.warning("group %s rests: %s (%s)", action.group, action.why, mine.reason)
            self._note(Event.paused, group=action.group, until=action.until, reason=f"{action.why}: {mine.reason}")

    def _submit(self, action: Submit, now: float) -> None:
        if self._memory.of(action.group).failed_at == now:
            return  # the one before it was refused a moment ago
        try:
            allocation = self._jobs.submit(action.group, action.nodes)
        except (HpcjetError, OSError) as error:
            _log.warning("%d nodes of group %s: %s", action.nodes, action.group, error)
            self._failed(action.group, str(error), now)
            return
        _log.info("%s: %d nodes, job %s", allocation.name, action.nodes, allocation.job_id)
        self._living.append((allocation, JobState(Stage.pending)))
        self._look_at = min(self._look_at, now + SOON_S)
        facts = {"name": allocation.name, "group": action.group, "nodes": action.nodes, "job": allocation.job_id}
        self._note(Event.allocation_submitted, **facts)

    def _cancel(self, action: Cancel, now: float) -> None:
        found = next((each for each, _ in self._living if each.name == action.allocation), None)
        if found is None:
            return
        try:
            self._jobs.cancel(found)
        except SubmitError as error:
            _log.warning("%s", error)
            return
        _log.info("%s is cancelled: %s", found.name, action.reason)
        self._cancelled[found.name] = now
        if action.hopeless:
            self._failed(found.group, action.reason, now, found)

    def _note(self, event: Event, **facts: Any) -> None:
        self._says.say(NOTE, event=event.value, facts=facts)


NO_SBATCH = "sbatch is not on PATH on the head: nodes are asked for while hpcjet status --follow runs on a login node"


def keeper_of(plan: Plan, says: Says, *, drains: bool = True, jobs: Jobs | None = None) -> Keeper:
    """The keeper of a run on real Slurm; the one on the head drains, one on a login node has a memory of its own."""
    memory = plan.run.elastic if drains else plan.run.elastic_login
    return Keeper(plan, jobs or SlurmJobs(plan, plan.typed_config()), says, MemoryFile(memory), drains=drains)


def main() -> None:
    """`python -m hpcjet.elastic.keeper RUN/plan.json`"""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    plan = read_plan(Path(sys.argv[1]).read_text())
    keeper = keeper_of(plan, Outbox.from_env(os.environ))
    while True:
        keeper.tick(time.time())
        time.sleep(TICK_S)


if __name__ == "__main__":
    main()
