"""What the policy sees, made of the run's files and of Slurm's answer. Pure but for the readers of two files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcjet.elastic.memory import Memory
from hpcjet.elastic.views import Allocation, Backlog, Group, Member, Standing
from hpcjet.plan import NodeGroup, Plan
from hpcjet.slurm.allocations import Allocation as Submitted
from hpcjet.slurm.query import JobState
from hpcjet.slurm.states import HOPELESS, Stage, explain

STANDINGS = {
    "hello": Standing.coming,
    "joined": Standing.joined,
    "draining": Standing.draining,
    "left": Standing.gone,
    "lost": Standing.gone,
}
HELD = {"JobHeldUser", "JobHeldAdmin", "DependencyNeverSatisfied"}
"""Reasons that somebody may lift."""


@dataclass(frozen=True)
class Known:
    """One member as members.json has it."""

    member: str
    group: str
    job: str
    standing: Standing
    since: float
    ends: float | None
    cpus: float | None

    @property
    def place(self) -> str:
        """`<allocation>-<restart>`"""
        return self.member.rpartition(":")[0]


def read_members(path: Path) -> list[Known]:
    """The members as the head knows them; what is no member is left out."""
    found = []
    for each in _list(path):
        try:
            ends, cpus = each.get("ends"), each.get("cpus")
            found.append(
                Known(
                    member=str(each["member"]), group=str(each["group"]), job=str(each["job"]),
                    standing=STANDINGS[each["state"]], since=float(each["since"]),
                    ends=None if ends is None else float(ends), cpus=float(cpus) if cpus else None,
                )
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return found


def read_backlog(path: Path, *, since: float, most: int | None) -> tuple[Backlog, dict[str, int]] | None:
    """(what waits, tasks at work by member); None if nobody says, or only a driver before `since` did."""
    try:
        data = json.loads(path.read_text())
        if float(data["updated"]) < since:
            return None
        longest, group = data.get("longest_s"), data.get("group")
        told = Backlog(
            waiting=max(int(data["waiting"]), 0), in_flight=max(int(data["in_flight"]), 0),
            cpus=float(data.get("cpus") or 1.0), memory_gb=float(data.get("memory_gb") or 0.0),
            longest_s=float(longest) if longest else None, group=str(group) if group else None, most=most,
        )  # fmt: skip
        return told, {str(member): int(number) for member, number in dict(data.get("busy") or {}).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


@dataclass
class Idleness:
    """Since when each member has nothing at work; only what was seen in this process counts."""

    _since: dict[str, float] = field(default_factory=dict)

    def look(self, joined: Sequence[str], busy: Mapping[str, int] | None, now: float) -> None:
        """`busy` None: nobody says what is at work."""
        idle = [member for member in joined if busy is not None and not busy.get(member)]
        self._since = {member: self._since.get(member, now) for member in idle}

    def since(self, member: str) -> float | None:
        return self._since.get(member)


@dataclass(frozen=True)
class Sight:
    """All that is known at one moment."""

    plan: Plan
    members: Sequence[Known]
    jobs: Sequence[tuple[Submitted, JobState]]
    """Allocations that have not ended, as far as is known."""
    busy: Mapping[str, int]
    idle: Idleness
    memory: Memory
    wishes: Mapping[str, int]
    draining: frozenset[str] = frozenset()
    """Members that were asked to drain a moment ago."""

    def groups(self) -> list[Group]:
        """In the order of the config."""
        return [self._group(group) for group in self.plan.groups]

    def _group(self, group: NodeGroup) -> Group:
        mine = self.memory.of(group.name)
        return Group(
            name=group.name, start_nodes=group.nodes, min_nodes=group.min_nodes, max_nodes=group.max_nodes,
            nodes_per_job=group.nodes_per_job, idle_s=group.idle_s, max_failures=group.max_failures, cpus=group.cpus,
            memory_gb=group.memory_gb, elastic=group in self.plan.worker_groups, steady=self._is_steady(group.name),
            wish=self.wishes.get(group.name), lead_s=mine.lead_s, failures=mine.failures, failed_at=mine.failed_at,
            allocations=tuple(self._allocations(group.name)),
        )  # fmt: skip

    def _is_steady(self, group: str) -> bool:
        """Whether it is there for an engine; where every group has replicas, tasks tell how many nodes are needed."""
        with_replicas = self.plan.sidecar_groups
        return group in with_replicas and len(with_replicas) < len(self.plan.groups)

    def _allocations(self, group: str) -> list[Allocation]:
        by_job: dict[str, list[Known]] = {}
        for each in self.members:
            if each.group == group:
                by_job.setdefault(each.job, []).append(each)
        found = []
        for submitted, state in self.jobs:
            if submitted.group == group:
                mine = _of_the_last_start(by_job.pop(submitted.job_id, []) if submitted.job_id else [])
                found.append(self._allocation(submitted, state, mine))
        for job, others in by_job.items():
            # The head's own, or one whose record cannot be read.
            alive = [each for each in _of_the_last_start(others) if each.standing is not Standing.gone]
            if alive:
                members = tuple(self._member(each) for each in alive)
                begun = min(each.since for each in alive)
                found.append(Allocation(name=job, nodes=len(alive), queued=False, submitted=begun, members=members))
        return found

    def _allocation(self, submitted: Submitted, state: JobState, members: list[Known]) -> Allocation:
        there = any(each.standing is not Standing.gone for each in members)
        queued = state.stage is Stage.pending and not there
        return Allocation(
            name=submitted.name, nodes=submitted.nodes, submitted=submitted.submitted,
            queued=queued or (state.stage is Stage.unknown and not members),
            members=() if queued else tuple(self._member(each) for each in members),
            hopeless=_hopeless(state) if queued else "",
        )  # fmt: skip

    def _member(self, known: Known) -> Member:
        drains = known.standing is Standing.joined and known.member in self.draining
        return Member(
            name=known.member, standing=Standing.draining if drains else known.standing, since=known.since,
            cpus=known.cpus, ends=known.ends, busy=self.busy.get(known.member, 0),
            idle_since=self.idle.since(known.member),
        )  # fmt: skip


def _of_the_last_start(members: list[Known]) -> list[Known]:
    """Without those of the times before Slurm queued the job again."""
    last = max((_restart(each) for each in members), default=0)
    return [each for each in members if _restart(each) == last]


def _restart(known: Known) -> int:
    number = known.place.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def _hopeless(state: JobState) -> str:
    """Why a job that waits will never start."""
    name = state.reason.strip("()").split(",")[0].split("(")[0].strip()
    return explain(state.reason) if name in HOPELESS and name not in HELD else ""


def _list(path: Path) -> list[Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return data if isinstance(data, list) else []
