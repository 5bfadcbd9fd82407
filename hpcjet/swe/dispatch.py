"""Spreads attempts over the nodes: Ray counts CPUs and memory, worker processes make many attempts each."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from hpcjet.cluster.roster import UsableNode
from hpcjet.config.exp import SweConfig
from hpcjet.engine import Serving
from hpcjet.swe.again import again
from hpcjet.swe.attempt import AttemptSettings, Job
from hpcjet.swe.backlog import backlog
from hpcjet.swe.placement import Lengths, Offer, assign
from hpcjet.swe.prospects import Prospects
from hpcjet.swe.record import Record
from hpcjet.swe.sizes import limit_s
from hpcjet.swe.usage import Usage
from hpcjet.swe.worker import START_S, Underway, Worker, cause
from hpcjet.swe.workers import Workers
from hpcjet.tasks.verdict import Verdict
from hpcjet.workload import Cluster

_log = logging.getLogger(__name__)
SETTLE_S = 2.0
"""From the death of a process until it counts as that alone: the news that its node is gone may come a little later."""
WAIT_S = 0.5


class Dispatcher:
    """Makes jobs on all nodes of a cluster, also on those that join later, until each has a record."""

    def __init__(
        self,
        cluster: Cluster,
        exp: SweConfig,
        settings: AttemptSettings,
        *,
        serving: Serving | None = None,
        prospects: Prospects | None = None,
        usage: Usage | None = None,
        keeps: Callable[[UsableNode], bool] = lambda node: False,
        clock: Any = time,
    ) -> None:
        """`serving`: what answers the agents; None for a scaffold that asks no model.

        `keeps`: whether something else of the run is still on a node, which is not given back then.
        """
        self._ray, self._exp, self._settings = cluster.ray, exp, settings
        self._serving, self._clock = serving, clock
        self._usage = usage or Usage()
        self._workers = Workers(
            cluster,
            exp,
            settings,
            serving=serving,
            prospects=prospects,
            usage=self._usage,
            keeps=keeps,
            clock=clock,
        )
        self._waiting: deque[Job] = deque()
        self._lengths = Lengths(limit_s(exp))
        self._said: set[str] = set()
        self.isolation: dict[str, str] = {}
        """Node -> how agents are isolated there."""

    @property
    def in_flight(self) -> int:
        return sum(len(worker.jobs) for worker in self._workers.all)

    def backlog(self) -> dict[str, Any]:
        """What waits, and where attempts are under way."""
        return backlog(
            self._exp,
            waiting=len(self._waiting),
            workers=self._workers.all,
            longest_s=self._lengths.expected_s,
            now=self._clock.time(),
        )

    def usage(self, *, ended: bool = False) -> str:
        """usage.json; once it has `ended`, what is under way will leave no record."""
        now, running = self._clock.monotonic(), dict[str, float]()
        for worker in self._workers.all:
            member, seconds = worker.node.member, sum(now - each.began for each in worker.jobs.values())
            running[member] = running.get(member, 0.0) + seconds
        return self._usage.to_json(running, ended=ended)

    def run(self, jobs: Iterable[Job], *, check: Callable[[], None]) -> Iterator[Record]:
        """Records in the order in which attempts end. A try that the infrastructure spoiled is made again elsewhere.

        `check` is called now and then, and may raise to stop.
        """
        self._waiting = waiting = deque(jobs)
        while waiting or self.in_flight:
            check()
            self._workers.look()
            self._hand_out()
            for job, record, with_node in self._collect():
                next_job = again(job, record, with_node=with_node, max_tries=self._exp.max_tries)
                if next_job is None:
                    yield record
                    continue
                _log.warning("%s again: %s %s", job.key, record.failure, record.detail)
                if with_node:
                    waiting.appendleft(next_job)
                else:
                    waiting.append(next_job)

    # jobs

    def _hand_out(self) -> None:
        limit = (self._exp.in_flight or 1 << 30) - self.in_flight
        number = min(limit, len(self._waiting))
        if number < 1:
            return
        workers = [worker for worker in self._workers.all if worker.free > 0]
        offers = [Offer(each.free, self._workers.left_s(each), each.life_s) for each in workers]
        for index in assign(offers, number, self._lengths):
            self._start_job(workers[index], self._waiting.popleft())

    def _start_job(self, worker: Worker, job: Job) -> None:
        if self._serving is not None:
            job = replace(job, endpoint=self._serving.endpoint(job.session, valid_s=self._lengths.limit_s))
        if worker.life_s < self._lengths.expected_s:
            self._say_too_short(worker)
        now = self._clock.monotonic()
        worker.jobs[worker.actor.make.remote(job)] = Underway(job, now, now + self._lengths.limit_s)

    def _say_too_short(self, worker: Worker) -> None:
        group = worker.node.group
        if group not in self._said:
            self._said.add(group)
            _log.warning(
                "attempts may take %.0f s, and nodes%s are had for %.0f s: those under way when a node ends are made "
                "again; a longer time_min, or a shorter exp.agent_timeout_s and the like, saves that",
                self._lengths.expected_s, f" of group {group}" if group else "", worker.life_s,
            )  # fmt: skip

    # what comes back

    def _collect(self) -> Iterator[tuple[Job, Record, bool]]:
        """What ended within the next moment, with the attempts that were lost; the last: whether with their node."""
        references = [reference for worker in self._workers.all for reference in worker.references]
        if references:
            done, _ = self._ray.wait(references, num_returns=1, timeout=WAIT_S)
            if done:
                done, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        elif any(worker.broken for worker in self._workers.all) or self._workers.may_come():
            done = []
            self._clock.sleep(WAIT_S)
        else:
            raise self._workers.none_left()
        ready = set(done)
        for worker in list(self._workers.all):
            for job, record in self._collect_from(worker, ready):
                yield job, record, False
            yield from self._settle(worker)

    def _collect_from(self, worker: Worker, done: set[Any]) -> Iterator[tuple[Job, Record]]:
        if worker.ready in done and (said := self._answer(worker, worker.ready)):
            name, isolation = said
            self.isolation[name] = isolation
            worker.ready = None
            self._usage.is_ready(worker.node.member)
        for answer in [each for each in worker.jobs if each in done]:
            record = self._answer(worker, answer)
            if record is None:
                continue
            ended = worker.jobs.pop(answer)
            seconds = self._clock.monotonic() - ended.began
            self._usage.ended(worker.node.member, seconds)
            if record.verdict is not Verdict.infrastructure:
                self._lengths.add(seconds)
            self._finish(ended.job)
            yield ended.job, record

    def _answer(self, worker: Worker, reference: Any) -> Any:
        """What came for a reference; None if its process died, which is noted. Raises what it could not start for."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise cause(error) from None
        except self._ray.exceptions.RayError as error:
            worker.broken = str(error).strip().partition("\n")[0] or "its process died"
            worker.broken_at = self._clock.monotonic()
            return None

    def _settle(self, worker: Worker) -> Iterator[tuple[Job, Record, bool]]:
        """See to a process that is no more, that does not start, or that does not end an attempt."""
        now = self._clock.monotonic()
        if worker.broken and now > worker.broken_at + SETTLE_S:
            self._workers.look(now=True)
        if not self._workers.has(worker) or (worker.broken and worker.node.drains):
            yield from self._lose(worker, "node_lost", worker.broken or "its node is gone", with_node=True)
        elif worker.broken and now > worker.broken_at + SETTLE_S:
            yield from self._lose(worker, "node_lost", worker.broken)
        elif worker.ready is not None and now > worker.start_deadline:
            detail = f"no worker process started on {worker.node.host} within {START_S:.0f} s"
            _log.warning("%s: the node gets no attempts", detail)
            yield from self._lose(worker, "node_lost", detail, given_up=True)
        elif worker.late(now):
            yield from self._lose(worker, "stuck", "its process did not end an attempt in time and was killed")

    def _lose(
        self, worker: Worker, failure: str, detail: str, *, with_node: bool = False, given_up: bool = False
    ) -> Iterator[tuple[Job, Record, bool]]:
        self._workers.lose(worker, detail, with_node=with_node, given_up=given_up)
        host, under_way = worker.node.host, list(worker.jobs.values())
        worker.jobs.clear()
        for each in under_way:
            self._usage.lost(worker.node.member, self._clock.monotonic() - each.began)
            self._finish(each.job)
            yield each.job, lost_record(each.job, self._settings, node=host, failure=failure, detail=detail), with_node

    def _finish(self, job: Job) -> None:
        if self._serving is not None:
            self._serving.finish(job.session)


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
