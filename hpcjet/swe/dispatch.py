"""Spreads attempts over the nodes: Ray counts CPUs and memory, hosts make many attempts per process."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from hpcjet.config.exp import SweConfig
from hpcjet.engine import Serving
from hpcjet.errors import BootstrapError, SandboxError
from hpcjet.sandbox.spec import GIB
from hpcjet.swe.attempt import AttemptSettings, Job
from hpcjet.swe.host import AttemptHost
from hpcjet.swe.record import Record
from hpcjet.tasks.verdict import Verdict
from hpcjet.workload import Cluster

_log = logging.getLogger(__name__)
LOOK_FOR_NODES_S = 2.0
START_S = 300.0
"""For a worker process to start."""
MAX_LOSSES = 5
"""Worker processes that may die on one node, until it gets no more."""
GRACE_S = 180.0
"""Beyond the limits of an attempt's stages, until its process counts as stuck."""


@dataclass
class _Host:
    """One worker process as the driver sees it."""

    node_id: str
    node: str
    actor: Any
    slots: int
    start_deadline: float
    jobs: dict[Any, Job] = field(default_factory=dict)
    """What is under way: the reference of the answer -> the job."""
    ready: Any = None
    """The reference of its first word; None once it came."""

    @property
    def free(self) -> int:
        return 0 if self.ready is not None else self.slots - len(self.jobs)


def host_sizes(cpus: float, memory_bytes: float, exp: SweConfig) -> tuple[int, ...]:
    """How many attempts each worker process of a node may make at a time: what fits, in equal processes.

    Raises BootstrapError if not one attempt fits.
    """
    fits = int(min(cpus / exp.cpus + 1e-9, memory_bytes / (exp.memory_gb * GIB)))
    if fits < 1:
        raise BootstrapError(
            f"a node with {cpus:g} CPUs and {memory_bytes / GIB:.1f} GiB has no room for an attempt of "
            f"exp.cpus={exp.cpus:g} and exp.memory_gb={exp.memory_gb:g}; lower them or ask for larger nodes"
        )
    processes = -(-fits // exp.attempts_per_process)
    return tuple(fits // processes + (number < fits % processes) for number in range(processes))


class Dispatcher:
    """Makes jobs on all nodes of a cluster, also on those that join later, until each has a record."""

    def __init__(
        self, cluster: Cluster, exp: SweConfig, settings: AttemptSettings, *, serving: Serving | None = None
    ) -> None:
        """`serving`: what answers the agents; None for a scaffold that asks no model."""
        self._serving = serving
        self._ray, self._cluster, self._exp, self._settings = cluster.ray, cluster, exp, settings
        self._hosts: list[_Host] = []
        self._known_nodes: set[str] = set()
        self._look_again = 0.0
        self._deadlines: dict[Any, float] = {}
        self._losses: Counter[str] = Counter()
        self._lost_on: Counter[str] = Counter()
        self._last_loss = ""
        self.isolation: dict[str, str] = {}
        """Node -> how agents are isolated there."""

    @property
    def in_flight(self) -> int:
        return sum(len(host.jobs) for host in self._hosts)

    def run(self, jobs: Iterable[Job], *, check: Callable[[], None]) -> Iterator[Record]:
        """Records in the order in which attempts end. A try that the infrastructure spoiled is made again elsewhere.

        `check` is called now and then, and may raise to stop.
        """
        waiting = deque(jobs)
        while waiting or self.in_flight:
            check()
            self._take_new_nodes()
            self._hand_out(waiting)
            for job, record in self._collect():
                if record.verdict is Verdict.infrastructure and job.tries < self._exp.max_tries:
                    _log.warning("%s again: %s %s", job.key, record.failure, record.detail)
                    waiting.append(replace(job, tries=job.tries + 1))
                else:
                    yield record

    def _take_new_nodes(self) -> None:
        if time.monotonic() < self._look_again:
            return
        self._look_again = time.monotonic() + LOOK_FOR_NODES_S
        alive = {node["NodeID"]: node for node in self._cluster.alive()}
        for gone in self._known_nodes - alive.keys():
            _log.warning("node %s is gone", gone)
        self._known_nodes &= alive.keys()
        too_small: BootstrapError | None = None
        for node_id, node in alive.items():
            if node_id not in self._known_nodes:
                self._known_nodes.add(node_id)
                too_small = self._start_hosts(node_id, node) or too_small
        if too_small and not self._hosts:
            raise too_small

    def _start_hosts(self, node_id: str, node: dict[str, Any]) -> BootstrapError | None:
        """As many as the node has room for; the error if it has none, which counts if no other node has any."""
        resources = node["Resources"]
        cpus = resources.get("CPU", 0)
        if self._serving is not None:
            cpus = min(cpus, self._serving.agent_cores.get(node["NodeManagerHostname"], cpus))
        try:
            sizes = host_sizes(cpus, resources.get("memory", 0), self._exp)
        except BootstrapError as error:
            _log.warning("%s has no attempts: %s", node["NodeManagerHostname"], error)
            return error
        for slots in sizes:
            self._start_host(node_id, node["NodeManagerHostname"], slots)
        return None

    def _start_host(self, node_id: str, name: str, slots: int) -> None:
        pin = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
        actor = (
            self._ray.remote(AttemptHost)
            .options(
                num_cpus=slots * self._exp.cpus,
                memory=int(slots * self._exp.memory_gb * GIB),
                scheduling_strategy=pin,
                max_concurrency=slots,
            )
            .remote(self._settings)
        )
        deadline = time.monotonic() + START_S
        self._hosts.append(_Host(node_id, name, actor, slots, deadline, ready=actor.ready.remote()))

    def _hand_out(self, waiting: "deque[Job]") -> None:
        limit = self._exp.in_flight or 1 << 30
        while waiting and self.in_flight < limit:
            host = max(self._hosts, key=lambda each: each.free, default=None)
            if host is None or host.free < 1:
                return
            job = self._with_endpoint(waiting.popleft())
            answer = host.actor.make.remote(job)
            host.jobs[answer] = job
            self._deadlines[answer] = time.monotonic() + self._limit_s()

    def _with_endpoint(self, job: Job) -> Job:
        if self._serving is None:
            return job
        return replace(job, endpoint=self._serving.endpoint(job.session, valid_s=self._limit_s()))

    def _finish(self, job: Job) -> None:
        if self._serving is not None:
            self._serving.finish(job.session)

    def _limit_s(self) -> float:
        exp = self._exp
        return exp.build_timeout_s + exp.agent_timeout_s + 2 * exp.test_timeout_s + GRACE_S

    def _collect(self) -> Iterator[tuple[Job, Record]]:
        """What ended within the next moment, with the jobs of processes that were lost."""
        references = [host.ready for host in self._hosts if host.ready is not None]
        references += [answer for host in self._hosts for answer in host.jobs]
        if not references:
            lost = ", ".join(f"{number} on {node}" for node, number in self._lost_on.items()) or "none was started"
            raise BootstrapError(
                f"no worker process is left (lost: {lost}; the last: {self._last_loss}); go on with: hpcjet resume RUN"
            )
        done, _ = self._ray.wait(references, num_returns=1, timeout=0.5)
        for host in list(self._hosts):
            yield from self._collect_from(host, set(done))

    def _collect_from(self, host: _Host, done: set[Any]) -> Iterator[tuple[Job, Record]]:
        try:
            if host.ready in done:
                name, isolation = self._ray.get(host.ready)
                self.isolation[name] = isolation
                host.ready = None
            for answer in [each for each in host.jobs if each in done]:
                record = self._ray.get(answer)
                self._deadlines.pop(answer)
                job = host.jobs.pop(answer)
                self._finish(job)
                yield job, record
            if host.ready is not None and time.monotonic() > host.start_deadline:
                raise BootstrapError(f"no worker process started on {host.node} within {START_S:.0f} s")
            if any(time.monotonic() > self._deadlines[answer] for answer in host.jobs):
                yield from self._lose(host, "stuck", "its process did not end an attempt in time and was killed")
        except self._ray.exceptions.RayTaskError as error:
            raise _cause(error) from None
        except self._ray.exceptions.RayError as error:
            yield from self._lose(host, "node_lost", str(error).strip().partition("\n")[0])

    def _lose(self, host: _Host, failure: str, detail: str) -> Iterator[tuple[Job, Record]]:
        """A worker process is gone: its attempts are infrastructure losses; another process takes its place."""
        self._hosts.remove(host)
        self._ray.kill(host.actor)
        self._losses[host.node_id] += 1
        self._lost_on[host.node] += 1
        self._last_loss = detail
        if self._losses[host.node_id] <= MAX_LOSSES and any(n["NodeID"] == host.node_id for n in self._cluster.alive()):
            self._start_host(host.node_id, host.node, host.slots)
        for answer, job in host.jobs.items():
            self._deadlines.pop(answer, None)
            self._finish(job)
            yield job, lost_record(job, self._settings, node=host.node, failure=failure, detail=detail)
        host.jobs.clear()


def lost_record(job: Job, settings: AttemptSettings, *, node: str, failure: str, detail: str) -> Record:
    """The record of an attempt that left no word."""
    return Record(
        instance_id=job.task.instance_id,
        attempt=job.attempt,
        verdict=Verdict.infrastructure,
        failure=failure,
        detail=detail,
        tries=job.tries,
        scaffold=settings.scaffold,
        node=node,
    )


def _cause(error: Any) -> Exception:
    """What a worker process raised while it started: a sandbox that cannot be opened will not open next time either."""
    cause = getattr(error, "cause", error)
    return cause if isinstance(cause, SandboxError) else BootstrapError(f"a worker process failed: {cause}")
