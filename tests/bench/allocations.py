"""5,500 tasks on queues of big centres: one big job, many small ones, preemptible ones. Simulated in virtual time.

    .venv/bin/python tests/bench/allocations.py [--seeds 20] [--svg docs/allocations.svg]

Real is the policy: `hpcjet.elastic.policy.decide` is asked every 30 virtual seconds, as the keeper asks it. Made up are
queue, boot, tasks and preemption, from these published numbers:

- Tasks: about 5,500 of CPython at 0.48 core-hours each (1,024 CPUs took 2 h 31 min: Anyscale's blog of 2025-09-10).
  Assumed: 2 cores and a lognormal with sigma 0.6, so that the longest of them fits into that time.
- Mean waits by size and time limit: `data/waittimes.txt` of github.com/ferchault/mlscheduling, jobs of CSCS ("Machine
  learning the computational cost of quantum chemistry", 2020). Taken is the mean of its rows of 2, 6 and 12 h: 0.8 h
  for 1 node, 4.1 h for 32.
- Their spread: a lognormal with sigma 2.2, which is that of the 154 waits on NIH's Biowulf in "Analysis of Biowulf
  Waiting Times" (G. Pegoraro, 2021). Assumed: half of the variance is common to what is submitted in the same hour.
- Preemption: "typically run for approximately 1 hour", "minutes" to start (docs.icer.msu.edu/Scavenger_Queue). Assumed:
  both exponential, with means of 60 and 5 min, and nodes that are taken one by one.

Prints one JSON line for each way.
"""

import argparse
import functools
import heapq
import itertools
import json
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcjet.elastic.policy import decide
from hpcjet.elastic.views import Allocation, Backlog, Cancel, Drain, Group, Member, Standing, Submit

TASKS, CORE_HOURS, TASK_CPUS, TASK_SIGMA = 5500, 0.48, 2, 0.6
NODES, NODE_CPUS = 32, 32
BOOT_S, STEP_S = 20.0, 30.0
WAIT_SIGMA = 2.2
HOUR = 3600.0
MEAN_WAIT_S = {1: (1461.3 + 1054.0 + 6269.9) / 3, 32: (36407.4 + 3573.6 + 4105.6) / 3}
"""By the nodes of a job: means of the rows of 2, 6 and 12 h of the file named above."""

Wait = Callable[[random.Random, int, float], float]
"""(random, nodes, time of submission) -> seconds in the queue"""


@dataclass(frozen=True)
class Queue:
    """What a partition does with the jobs of one group."""

    wait: Wait
    time_limit_s: float | None = None
    preempted_after_s: float | None = None
    """Mean; None: never."""
    boot_s: float = BOOT_S


@dataclass
class Node:
    name: str
    slots: int
    ends: float | None
    begun: float
    """When Slurm gave it."""
    joined: float | None = None
    draining: bool = False
    gone: float | None = None
    work: dict[int, float] = field(default_factory=dict)
    """When each task at work began."""
    idle_since: float = 0.0
    done_s: float = 0.0
    """Seconds of slots that led to results."""
    lost_s: float = 0.0


@dataclass
class Job:
    name: str
    group: str
    size: int
    submitted: float
    starts: float
    nodes: list[Node] = field(default_factory=list)
    over: bool = False


@dataclass(frozen=True)
class Outcome:
    """Node-seconds of one run."""

    hours: float
    held: float
    booting: float
    idle: float
    lost: float
    jobs: int
    losses: int

    @property
    def waste(self) -> float:
        return (self.booting + self.idle + self.lost) / self.held if self.held else 0.0


class World:
    """A cluster with its queues, a driver, and the policy. One head does no work and is always there."""

    def __init__(self, groups: list[Group], queues: dict[str, Queue], durations: list[float], *, seed: int = 0) -> None:
        self.groups, self.queues, self.durations = groups, queues, durations
        self.random = random.Random(seed)
        self.waiting = list(range(len(durations)))[::-1]
        self.jobs: list[Job] = []
        self.now = 0.0
        self.done: set[int] = set()
        self.losses = 0
        self.failures = dict.fromkeys((group.name for group in groups), 0)
        self.refuses = False
        self.wishes: dict[str, int] = {}
        self.task_cpus = float(TASK_CPUS)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._count), what))

    def run(self, *, until: float = 60 * 24 * HOUR, each_step: Callable[["World"], None] | None = None) -> Outcome:
        """To the end of the work."""
        while len(self.done) < len(self.durations) and self.now < until:
            self.step()
            if each_step:
                each_step(self)
            self._go_to(self.now + STEP_S)
        return self.outcome()

    def step(self) -> None:
        """One look of the keeper."""
        for action in decide(self.views(), self.backlog(), self.now):
            if isinstance(action, Submit):
                self.submit(action.group, action.nodes)
            elif isinstance(action, Drain):
                self.drain(action.member)
            elif isinstance(action, Cancel):
                self._end_job(next(job for job in self.jobs if job.name == action.allocation))

    def _go_to(self, when: float) -> None:
        while self._events and self._events[0][0] <= when and len(self.done) < len(self.durations):
            self.now, _, what = heapq.heappop(self._events)
            what()
        if len(self.done) < len(self.durations):
            self.now = when

    def backlog(self) -> Backlog:
        at_work = sum(len(node.work) for node in self.nodes())
        return Backlog(waiting=len(self.waiting), in_flight=at_work, cpus=self.task_cpus)

    def nodes(self) -> list[Node]:
        return [node for job in self.jobs if not job.over for node in job.nodes if node.gone is None]

    def views(self) -> list[Group]:
        return [self._view(group) for group in self.groups]

    def _view(self, group: Group) -> Group:
        mine = [job for job in self.jobs if job.group == group.name and not job.over]
        allocations = tuple(
            Allocation(
                name=job.name, nodes=job.size, queued=job.starts > self.now, submitted=job.submitted,
                members=tuple(self._member(node) for node in job.nodes if node.joined is not None),
            )
            for job in mine
        )  # fmt: skip
        wish = self.wishes.get(group.name)
        return replace(group, allocations=allocations, failures=self.failures[group.name], wish=wish)

    def _member(self, node: Node) -> Member:
        standing = Standing.gone if node.gone else Standing.draining if node.draining else Standing.joined
        assert node.joined is not None
        return Member(
            name=node.name, standing=standing, since=node.joined, cpus=node.slots * self.task_cpus, ends=node.ends,
            busy=len(node.work), idle_since=None if node.work else node.idle_since,
        )  # fmt: skip

    def submit(self, group: str, nodes: int) -> None:
        queue = self.queues[group]
        starts = self.now + queue.wait(self.random, nodes, self.now)
        job = Job(f"{group}-{len(self.jobs) + 1}", group, nodes, self.now, starts)
        self.jobs.append(job)
        self.at(starts, lambda: self._begin(job, queue))

    def _begin(self, job: Job, queue: Queue) -> None:
        if job.over:
            return
        job.starts = self.now
        ends = None if queue.time_limit_s is None else self.now + queue.time_limit_s
        for rank in range(job.size):
            node = Node(f"{job.name}:{rank}", int(NODE_CPUS / self.task_cpus), ends, self.now)
            job.nodes.append(node)
            self.at(self.now + queue.boot_s, functools.partial(self._join, node))
        if ends is not None:
            self.at(ends, lambda: self._end_job(job))
        if queue.preempted_after_s is not None:
            after = self.random.expovariate(1 / queue.preempted_after_s)
            self.at(self.now + after, lambda: self._end_job(job))

    def _join(self, node: Node) -> None:
        if node.gone is None:
            node.joined = node.idle_since = self.now
            self._fill(node)

    def _fill(self, node: Node) -> None:
        while self.waiting and len(node.work) < node.slots and not node.draining and node.gone is None:
            index = next(
                (i for i in range(len(self.waiting) - 1, max(-1, len(self.waiting) - 50), -1) if self._fits(i, node)),
                None,
            )
            if index is None:
                return
            task = self.waiting.pop(index)
            node.work[task] = self.now
            self.at(self.now + self.durations[task], functools.partial(self._finish, node, task, self.now))

    def _fits(self, index: int, node: Node) -> bool:
        """As the driver does with a time limit per attempt: not where it would not end in time."""
        return node.ends is None or self.now + self.durations[self.waiting[index]] <= node.ends

    def _finish(self, node: Node, task: int, begun: float) -> None:
        if node.gone is not None or node.work.get(task) != begun:
            return
        del node.work[task]
        node.done_s += self.durations[task]
        self.done.add(task)
        self._fill(node)
        if not node.work:
            node.idle_since = self.now
            self._release(node)

    def drain(self, name: str) -> None:
        node = next(node for node in self.nodes() if node.name == name)
        node.draining = True
        self._release(node)

    def _release(self, node: Node) -> None:
        """A node without work that drains is given back, with its job once all of it is empty."""
        if node.draining and not node.work:
            job = next(job for job in self.jobs if node in job.nodes)
            if all(each.draining and not each.work for each in job.nodes):
                self._end_job(job)

    def _end_job(self, job: Job) -> None:
        if job.over:
            return
        job.over = True
        for node in job.nodes:
            node.gone = self.now
            for task, begun in node.work.items():
                node.lost_s += self.now - begun
                self.waiting.append(task)
                self.losses += 1
            node.work.clear()
        for node in self.nodes():
            if node.joined is not None:
                self._fill(node)

    def outcome(self) -> Outcome:
        for job in self.jobs:
            self._end_job(job)
        nodes = [node for job in self.jobs for node in job.nodes]
        held = sum((node.gone or self.now) - node.begun for node in nodes)
        booting = sum(((node.gone or self.now) if node.joined is None else node.joined) - node.begun for node in nodes)
        done = sum(node.done_s / node.slots for node in nodes)
        lost = sum(node.lost_s / node.slots for node in nodes)
        return Outcome(
            self.now / HOUR, held, booting, max(held - booting - done - lost, 0.0), lost, len(self.jobs), self.losses
        )


def tasks(seed: int, number: int = TASKS) -> list[float]:
    """Seconds that each task takes on TASK_CPUS cores."""
    chance = random.Random(seed)
    mean_s = CORE_HOURS / TASK_CPUS * HOUR
    return [chance.lognormvariate(math.log(mean_s) - TASK_SIGMA**2 / 2, TASK_SIGMA) for _ in range(number)]


class CentreQueue:
    """Waits of a big centre: lognormal, and alike for what is submitted in the same hour."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, chance: random.Random, nodes: int, now: float) -> float:
        common = random.Random(f"{self._seed} {nodes} {now // HOUR}").gauss(0, 1)
        spread = WAIT_SIGMA * (common + chance.gauss(0, 1)) / math.sqrt(2)
        size = min(MEAN_WAIT_S, key=lambda each: abs(each - nodes))
        return MEAN_WAIT_S[size] * math.exp(spread - WAIT_SIGMA**2 / 2)


def soon(chance: random.Random, nodes: int, now: float) -> float:
    """Waits of a preemptible partition."""
    return chance.expovariate(1 / 300)


def ways(seed: int) -> dict[str, tuple[list[Group], dict[str, Queue]]]:
    """The groups and their queues for each way to get the same number of nodes."""
    wait = CentreQueue(seed)

    def group(name: str, **more: float | int) -> Group:
        facts = {"min_nodes": 0, "max_nodes": NODES, "start_nodes": 0, "cpus": NODE_CPUS, **more}
        return Group(name=name, **facts)  # type: ignore[arg-type]

    small, spot = Queue(wait, 4 * HOUR), Queue(soon, 24 * HOUR, preempted_after_s=HOUR)
    half = NODES // 2
    return {
        "one job of 32 nodes, 6 h": (
            [group("big", nodes_per_job=NODES, min_nodes=NODES)], {"big": Queue(wait, 6 * HOUR)}
        ),
        "32 jobs of 1 node, 4 h": ([group("small")], {"small": small}),
        "32 preemptible nodes": ([group("spot")], {"spot": spot}),
        "16 such jobs, 16 preemptible": (
            [group("small", max_nodes=half), group("spot", max_nodes=half)], {"small": small, "spot": spot}
        ),
    }  # fmt: skip


def measure(seeds: int) -> dict[str, list[Outcome]]:
    outcomes: dict[str, list[Outcome]] = {}
    for seed in range(seeds):
        for name, (groups, queues) in ways(seed).items():
            outcomes.setdefault(name, []).append(World(groups, queues, tasks(seed), seed=seed).run())
    return outcomes


def row(name: str, outcomes: list[Outcome]) -> dict[str, object]:
    hours = sorted(each.hours for each in outcomes)
    parts = {
        part: round(statistics.fmean(getattr(each, part) / each.held for each in outcomes), 4)
        for part in ("booting", "idle", "lost")
    }
    return {
        "way": name, "seeds": len(hours), "hours_median": round(statistics.median(hours), 2),
        "hours_p10": round(hours[len(hours) // 10], 2), "hours_p90": round(hours[len(hours) * 9 // 10], 2), **parts,
        "node_hours": round(statistics.fmean(each.held for each in outcomes) / HOUR, 1),
        "jobs": round(statistics.fmean(each.jobs for each in outcomes), 1),
        "losses": round(statistics.fmean(each.losses for each in outcomes), 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--svg", type=Path, help="draw the figure into this file")
    arguments = parser.parse_args()
    rows = [row(name, outcomes) for name, outcomes in measure(arguments.seeds).items()]
    for each in rows:
        print(json.dumps(each))
    if arguments.svg:
        from allocations_figure import figure

        arguments.svg.write_text(figure(rows))


if __name__ == "__main__":
    main()
