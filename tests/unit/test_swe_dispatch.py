"""The dispatcher: on a fake of the module ray for losses that cannot be had on demand, and once on a real Ray."""

import io
import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcjet.cluster.inbox import Inbox, ToldNode
from hpcjet.cluster.roster import UsableNode
from hpcjet.config.exp import SweConfig
from hpcjet.errors import BootstrapError, SandboxError
from hpcjet.sandbox.spec import GIB
from hpcjet.swe.again import MOST_NODE_LOSSES
from hpcjet.swe.attempt import AttemptSettings, Job
from hpcjet.swe.dispatch import Dispatcher
from hpcjet.swe.placement import ENOUGH_SEEN
from hpcjet.swe.prospects import Prospects
from hpcjet.swe.record import Record
from hpcjet.swe.sizes import GRACE_S, host_sizes
from hpcjet.swe.worker import START_S
from hpcjet.swe.workers import MAX_LOSSES
from hpcjet.tasks.task import Task
from hpcjet.tasks.verdict import Verdict
from hpcjet.workload import Cluster


def cluster_of(ray: Any, *hosts: str) -> Cluster:
    return Cluster(ray=ray, address="h", gcs_port=1, ports={"engine": 2}, hosts=hosts, inbox=Inbox(io.StringIO()))


ROOT = Path(__file__).parents[2]
SETTINGS: AttemptSettings = SimpleNamespace(scaffold="mini")  # type: ignore[assignment]


def jobs(count: int) -> list[Job]:
    return [
        Job(
            Task(instance_id=f"a__b-{n}", repo="a/b", base_commit="c", problem_statement="", patch="", test_patch=""), 0
        )
        for n in range(count)
    ]


def record_of(job: Job, verdict: Verdict = Verdict.resolved, failure: str = "") -> Record:
    return Record(
        instance_id=job.task.instance_id, attempt=job.attempt, verdict=verdict, failure=failure, tries=job.tries
    )


@pytest.mark.parametrize(
    ("cpus", "gib", "settings", "sizes"),
    [
        (4, 100, {}, (4,)),
        (40, 100, {}, (14, 13, 13)),
        (64, 8, {}, (8,)),
        (1, 100, {"cpus": 0.1}, (10,)),
        (3, 100, {"cpus": 0.3, "attempts_per_process": 4}, (4, 3, 3)),
        (8, 100, {"cpus": 3}, (2,)),
        (2, 2.0, {"memory_gb": 1.5}, (1,)),
    ],
    ids=["CPUs decide", "equal processes", "memory decides", "a tenth", "no rounding error", "rest unused", "one"],
)
def test_host_sizes(cpus: float, gib: float, settings: dict[str, Any], sizes: tuple[int, ...]) -> None:
    assert host_sizes(cpus, gib * GIB, SweConfig(**settings)) == sizes


def test_a_node_without_room_is_told() -> None:
    with pytest.raises(BootstrapError, match=r"a node with 1 CPUs and 4\.0 GiB has no room .* exp\.cpus=2 .* lower"):
        host_sizes(1, 4 * GIB, SweConfig(cpus=2))


# A fake of ray: actors answer what a test says, time passes only while the dispatcher waits.


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


PENDING = object()
Answer = Callable[[str, Job], Any]
"""(node, job) -> what its actor answers: a Record, an exception to raise, PENDING for never, or a function that says
which of them it is now."""


class Ref:
    def __init__(self, result: Any) -> None:
        self._result = result

    @property
    def result(self) -> Any:
        return self._result() if callable(self._result) else self._result


class FakeRay:
    """As much of the module ray as the dispatcher uses."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    util = SimpleNamespace(scheduling_strategies=SimpleNamespace(
        NodeAffinitySchedulingStrategy=lambda node, soft: node))  # fmt: skip

    def __init__(self, nodes: dict[str, int], answer: Answer, ready: Callable[[str], Any] | None = None) -> None:
        self.cpus, self._answer, self._ready = dict(nodes), answer, ready or (lambda node: (node, "bwrap"))
        self.now, self.made, self.most = 0.0, Counter[str](), 0
        self.killed: list[str] = []
        self.calls: list[tuple[str, tuple[str, int], int]] = []

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "NodeManagerHostname": name, "Alive": True, "Resources": {"CPU": cpus, "memory": 1 << 50}}
            for name, cpus in self.cpus.items()
        ]

    def remote(self, cls: type) -> Any:
        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=lambda _: self._actor(options)))

    def _actor(self, options: dict[str, Any]) -> Any:
        node = options["scheduling_strategy"]
        assert options["num_cpus"] == options["max_concurrency"] and options["memory"] > 0
        self.made[node] += 1

        def make(job: Job) -> Ref:
            self.calls.append((node, job.key, job.tries))
            return Ref(self._answer(node, job))

        return SimpleNamespace(
            node=node,
            ready=SimpleNamespace(remote=lambda: Ref(self._ready(node))),
            make=SimpleNamespace(remote=make),
        )

    def wait(self, refs: list[Ref], *, num_returns: int, timeout: float) -> tuple[list[Ref], list[Ref]]:
        self.most = max(self.most, len(refs))
        self.now += timeout
        done = [ref for ref in refs if ref.result is not PENDING][:num_returns]
        return done, [ref for ref in refs if ref not in done]

    def get(self, ref: Ref) -> Any:
        if isinstance(ref.result, Exception):
            raise ref.result
        return ref.result

    def kill(self, actor: Any) -> None:
        self.killed.append(actor.node)

    @property
    def clock(self) -> Any:
        """Time passes while the dispatcher waits, and no other way."""

        def sleep(seconds: float) -> None:
            self.now += seconds

        return SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now, sleep=sleep)


class Told:
    """The inbox, and what the node agent is told: (when, member)."""

    def __init__(self, ray: FakeRay) -> None:
        self.ray, self.told = ray, dict[str, ToldNode]()
        self.given_back: list[tuple[float, str]] = []

    def node(self, member: str, *, group: str = "cpu", **facts: Any) -> None:
        """A node that is in: Ray's node of the same name as its host."""
        self.told[member] = ToldNode(member=member, host=member.replace(":", "-"), group=group, **facts)

    def change(self, member: str, **facts: Any) -> None:
        self.told[member] = replace(self.told[member], **facts)

    def nodes(self) -> dict[str, ToldNode]:
        return dict(self.told)

    def say(self, word: str, *, member: str) -> None:
        self.given_back.append((self.ray.now, member))


def run(
    ray: FakeRay,
    work: list[Job],
    *,
    told: Told | None = None,
    prospects: Prospects | None = None,
    each: Callable[[Dispatcher], None] = lambda dispatcher: None,
    keeps: Callable[[UsableNode], bool] = lambda node: False,
    **settings: Any,
) -> tuple[list[Record], Dispatcher]:
    """`each` is called now and then while it goes on."""
    cluster = cluster_of(ray, *ray.cpus)
    if told:
        cluster = replace(cluster, inbox=told, outbox=told)
    dispatcher = Dispatcher(
        cluster, SweConfig(**settings), SETTINGS, prospects=prospects, keeps=keeps, clock=ray.clock
    )  # fmt: skip
    checks = iter(range(10_000))

    def check() -> None:
        assert next(checks) < 2000, "it does not come to an end"
        each(dispatcher)

    return list(dispatcher.run(work, check=check)), dispatcher


def test_each_job_gets_one_record_on_all_nodes() -> None:
    ray = FakeRay({"n1": 2, "n2": 4}, lambda node, job: record_of(job))
    records, dispatcher = run(ray, jobs(20))
    assert sorted(record.key for record in records) == sorted(job.key for job in jobs(20))
    assert {node for node, _, _ in ray.calls} == {"n1", "n2"} and len(ray.calls) == 20
    assert dispatcher.isolation == {"n1": "bwrap", "n2": "bwrap"} and dispatcher.in_flight == 0


def test_no_more_than_asked_are_in_flight() -> None:
    ray = FakeRay({"n1": 8}, lambda node, job: record_of(job))
    assert len(run(ray, jobs(20), in_flight=3)[0]) == 20
    assert ray.most == 3


def test_nothing_to_do_ends_at_once() -> None:
    ray = FakeRay({"n1": 8}, lambda node, job: record_of(job))
    assert run(ray, [])[0] == [] and not ray.made


def test_what_the_infrastructure_spoiled_is_tried_again_up_to_the_limit() -> None:
    def answer(node: str, job: Job) -> Record:
        good = job.task.instance_id == "a__b-1" and job.tries == 2
        return record_of(job) if good else record_of(job, Verdict.infrastructure, "sandbox")

    ray = FakeRay({"n1": 2}, answer)
    records, _ = run(ray, jobs(2), max_tries=3)
    assert {(record.instance_id, record.verdict, record.tries) for record in records} == {
        ("a__b-0", Verdict.infrastructure, 3),
        ("a__b-1", Verdict.resolved, 2),
    }
    assert len(ray.calls) == 5


def test_a_lost_process_costs_its_attempts_a_try_and_is_replaced() -> None:
    died: list[Job] = []

    def answer(node: str, job: Job) -> Any:
        if not died:
            died.append(job)
            return RayError("The actor died unexpectedly.\nmore")
        answered = job.task.instance_id == "a__b-3"
        return record_of(job) if job.tries == 2 or answered else PENDING

    ray = FakeRay({"n1": 4}, answer)
    records, _ = run(ray, jobs(4))
    assert len(records) == 4 and all(record.verdict is Verdict.resolved for record in records)
    assert ray.made == {"n1": 2} and ray.killed == ["n1"]
    tries = {record.instance_id: record.tries for record in records}
    assert tries == {"a__b-0": 2, "a__b-1": 2, "a__b-2": 2, "a__b-3": 1}, "all that left no record are made again"


def test_the_last_loss_is_recorded_as_the_infrastructures() -> None:
    ray = FakeRay({"n1": 1}, lambda node, job: RayError("The actor died.\nmore"))
    [record], _ = run(ray, jobs(1), max_tries=2)
    assert (record.verdict, record.failure, record.detail, record.node, record.tries) == (
        Verdict.infrastructure, "node_lost", "The actor died.", "n1", 2,
    )  # fmt: skip


def test_a_node_that_is_gone_gets_no_process_and_the_others_go_on() -> None:
    def answer(node: str, job: Job) -> Any:
        if node == "n2":
            ray.cpus.pop("n2", None)
            return RayError("node died")
        return record_of(job)

    ray = FakeRay({"n1": 1, "n2": 1}, answer)
    records, _ = run(ray, jobs(6))
    assert len(records) == 6 and ray.made == {"n1": 1, "n2": 1}


def test_a_node_that_joins_later_gets_work() -> None:
    def answer(node: str, job: Job) -> Any:
        ray.cpus.setdefault("n2", 1)
        return record_of(job)

    ray = FakeRay({"n1": 1}, answer)
    assert len(run(ray, jobs(40))[0]) == 40
    assert {node for node, _, _ in ray.calls} == {"n1", "n2"}


def test_a_node_on_which_processes_keep_dying_is_given_up() -> None:
    ray = FakeRay({"n1": 1}, lambda node, job: record_of(job), ready=lambda node: RayError("killed by the kernel"))
    with pytest.raises(BootstrapError, match=r"no worker process is left.*killed by the kernel.*hpcjet resume"):
        run(ray, jobs(1))
    assert ray.made == {"n1": MAX_LOSSES + 1}


def test_a_stuck_attempt_is_killed_with_its_process() -> None:
    def answer(node: str, job: Job) -> Any:
        return PENDING if job.tries == 1 else record_of(job)

    ray = FakeRay({"n1": 1}, answer)
    short = {"build_timeout_s": 10, "agent_timeout_s": 20, "test_timeout_s": 5}
    [record], _ = run(ray, jobs(1), **short)
    assert record.tries == 2 and ray.killed == ["n1"]
    assert 10 + 20 + 2 * 5 + GRACE_S < ray.now < 10 + 20 + 2 * 5 + GRACE_S + 10


def test_a_process_that_never_starts_is_told() -> None:
    ray = FakeRay({"n1": 1}, lambda node, job: record_of(job), ready=lambda node: PENDING)
    with pytest.raises(BootstrapError, match=f"no worker process started on n1 within {START_S:.0f} s"):
        run(ray, jobs(1))


def test_a_sandbox_that_cannot_be_opened_is_told_as_such() -> None:
    ray = FakeRay({"n1": 1}, lambda node, job: PENDING, ready=lambda node: RayTaskError(SandboxError("n1: no userns")))
    with pytest.raises(SandboxError, match="n1: no userns"):
        run(ray, jobs(1))
    other = FakeRay({"n1": 1}, lambda node, job: PENDING, ready=lambda node: RayTaskError(ImportError("no module x")))
    with pytest.raises(BootstrapError, match="a worker process failed: no module x"):
        run(other, jobs(1))


def test_check_may_stop_it() -> None:
    ray = FakeRay({"n1": 1}, lambda node, job: PENDING)
    dispatcher = Dispatcher(cluster_of(ray, "n1"), SweConfig(), SETTINGS)

    def check() -> None:
        if ray.calls:
            raise RuntimeError("the engine ended")

    with pytest.raises(RuntimeError, match="the engine ended"):
        list(dispatcher.run(jobs(1), check=check))


# Nodes of many allocations: groups, ends, drains, losses.


def elastic(**facts: Any) -> Prospects:
    """Of a run whose workers are nodes of the group cpu, in jobs of their own."""
    return Prospects(head="9-0", group="cpu", grows=frozenset({"cpu"}), **facts)


def test_only_the_nodes_of_the_group_work_and_those_that_come_late_do() -> None:
    ray = FakeRay({"9-0-0": 8}, lambda node, job: record_of(job))
    told = Told(ray)
    told.node("9-0:0", group="head")

    def each(dispatcher: Dispatcher) -> None:
        assert dispatcher.backlog()["waiting"] == 3 or ray.now > 100
        if ray.now > 100 and "10-0:0" not in told.told:
            told.node("10-0:0")
            ray.cpus["10-0-0"] = 2

    records, _ = run(ray, jobs(3), told=told, prospects=elastic(), each=each)
    assert len(records) == 3 and {node for node, _, _ in ray.calls} == {"10-0-0"}


def test_a_node_that_drains_gets_nothing_new_and_is_given_back_when_it_is_empty() -> None:
    def answer(node: str, job: Job) -> Any:
        if node == "10-0-0":
            told.change("10-0:0", drains="idle", drains_by=900.0)
            return lambda: record_of(job) if ray.now > 50 else PENDING
        return record_of(job)

    ray = FakeRay({"9-0-0": 1, "10-0-0": 1}, answer)
    told = Told(ray)
    told.node("9-0:0")
    told.node("10-0:0")

    records, _ = run(ray, jobs(200), told=told, prospects=elastic())
    assert len(records) == 200 and {record.tries for record in records} == {1}
    assert [node for node, _, _ in ray.calls].count("10-0-0") == 1 and ray.killed == ["10-0-0"]
    [(when, member)] = told.given_back
    assert member == "10-0:0" and 50 < when < 55


def test_a_node_of_no_concern_is_given_back_at_once_unless_something_else_is_there() -> None:
    for keeps, given_back in ((False, ["11-0:0"]), (True, [])):
        ray = FakeRay({"10-0-0": 1, "11-0-0": 1}, lambda node, job: record_of(job))
        told = Told(ray)
        told.node("10-0:0")
        told.node("11-0:0", group="gpu", drains="time limit")
        run(ray, jobs(5), told=told, prospects=elastic(), keeps=lambda node, keeps=keeps: keeps)  # type: ignore[misc]
        assert [member for _, member in told.given_back] == given_back


def test_what_is_lost_with_its_node_is_made_again_at_once_and_uses_up_no_try() -> None:
    """Ray has not noticed: the answers never come."""

    def answer(node: str, job: Job) -> Any:
        if job.losses < 4:
            told.change(f"{node[:-2]}:0", lost=True)
            ray.cpus.pop(node)
            fresh = f"{10 + job.losses + 1}-0"
            told.node(f"{fresh}:0")
            ray.cpus[f"{fresh}-0"] = 1
            return PENDING
        return record_of(job) if job.tries == 5 else PENDING

    ray = FakeRay({"10-0-0": 1}, answer)
    told = Told(ray)
    told.node("10-0:0")
    [record], dispatcher = run(ray, jobs(1), told=told, prospects=elastic(), max_tries=1)
    assert (record.verdict, record.tries) == (Verdict.resolved, 5) and ray.now < 30
    used = json.loads(dispatcher.usage())
    assert [use["lost"] for use in used.values()] == [1, 1, 1, 1, 0] and used["14-0:0"]["attempts"] == 1


def test_an_attempt_that_takes_its_node_with_it_each_time_is_recorded_in_the_end() -> None:
    def answer(node: str, job: Job) -> Any:
        ray.cpus.pop(node)
        ray.cpus[f"n{len(ray.calls)}"] = 1
        return RayError("The actor died because its node has died.")

    ray = FakeRay({"n0": 1}, answer)
    [record], _ = run(ray, jobs(1), prospects=Prospects(grows=frozenset({"cpu"})), max_tries=1)
    assert (record.verdict, record.failure) == (Verdict.infrastructure, "node_lost")
    assert record.tries == MOST_NODE_LOSSES + 1


def test_a_process_that_dies_on_a_node_that_is_taken_away_is_no_loss_of_its_own() -> None:
    """The word that the node is preempted comes first, the loss itself later."""

    def answer(node: str, job: Job) -> Any:
        if node == "10-0-0":
            told.change("10-0:0", drains="preempted")
            told.node("11-0:0")
            ray.cpus["11-0-0"] = 1
            return RayError("The actor died.")
        return record_of(job)

    ray = FakeRay({"10-0-0": 1}, answer)
    told = Told(ray)
    told.node("10-0:0")
    [record], _ = run(ray, jobs(1), told=told, prospects=elastic(), max_tries=1)
    assert record.tries == 2 and ray.made == {"10-0-0": 1, "11-0-0": 1}


def test_nothing_is_started_where_it_cannot_end() -> None:
    """Attempts may take 260 s: the node that ends in 200 s gets none until ten others have told how short they are."""
    ray = FakeRay({"9-0-0": 1, "10-0-0": 4}, lambda node, job: record_of(job))
    told = Told(ray)
    told.node("9-0:0", ends=3600.0)
    told.node("10-0:0", ends=200.0)
    short = {"build_timeout_s": 10, "agent_timeout_s": 20, "test_timeout_s": 25}
    records, _ = run(ray, jobs(40), told=told, prospects=elastic(life_s={"cpu": 3600.0}), **short)
    assert len(records) == 40
    nodes = [node for node, _, _ in ray.calls]
    assert set(nodes[:ENOUGH_SEEN]) == {"9-0-0"} and nodes.count("10-0-0") > 10


def test_where_no_node_is_had_for_long_enough_attempts_are_started_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ray = FakeRay({"11-0-0": 1, "10-0-0": 1}, lambda node, job: lambda: PENDING if ray.now < 5 else record_of(job))
    told = Told(ray)
    told.node("11-0:0", ends=100.0)
    told.node("10-0:0", ends=120.0)
    run(ray, jobs(2), told=told, prospects=elastic(life_s={"cpu": 150.0}), build_timeout_s=1, agent_timeout_s=1)
    assert [node for node, _, _ in ray.calls][:2] == ["10-0-0", "11-0-0"], "where most time is left first"
    assert caplog.text.count("nodes of group cpu are had for 145 s") == 1


def test_the_dispatcher_waits_for_nodes_only_where_some_may_come() -> None:
    ray = FakeRay({}, lambda node, job: record_of(job))
    with pytest.raises(BootstrapError, match="no worker process is left"):
        run(ray, jobs(1))
    late = FakeRay({}, lambda node, job: record_of(job))

    def each(dispatcher: Dispatcher) -> None:
        if late.now > 300:
            late.cpus["n2"] = 1

    assert len(run(late, jobs(1), prospects=Prospects(expected=1), each=each)[0]) == 1


def test_nodes_that_are_too_small_are_told_where_no_others_come() -> None:
    small = FakeRay({"10-0-0": 1}, lambda node, job: record_of(job))
    told = Told(small)
    told.node("10-0:0")
    with pytest.raises(BootstrapError, match=r"no room for an attempt of exp\.cpus=2"):
        run(small, jobs(1), told=told, prospects=elastic(), cpus=2)


def test_a_node_where_no_process_starts_does_not_end_the_run() -> None:
    ray = FakeRay(
        {"n1": 1, "n2": 1}, lambda node, job: lambda: PENDING if ray.now < 1.5 * START_S else record_of(job),
        ready=lambda node: PENDING if node == "n1" else (node, "bwrap"),
    )  # fmt: skip
    assert len(run(ray, jobs(3))[0]) == 3 and ray.made["n1"] == 1


def test_what_is_told_to_the_keeper() -> None:
    seen: list[dict[str, Any]] = []
    ray = FakeRay({"9-0-0": 2}, lambda node, job: lambda: PENDING if ray.now < 3 else record_of(job))
    told = Told(ray)
    told.node("9-0:0")
    run(ray, jobs(3), told=told, prospects=elastic(), each=lambda d: seen.append(d.backlog()), memory_gb=3, group="cpu")
    assert (seen[0]["waiting"], seen[0]["in_flight"], seen[0]["busy"]) == (3, 0, {})
    assert (seen[2]["waiting"], seen[2]["in_flight"], seen[2]["busy"]) == (1, 2, {"9-0:0": 2})
    assert (seen[2]["cpus"], seen[2]["memory_gb"], seen[2]["group"]) == (1.0, 3, "cpu")


REAL = '''
    import json, os, sys, time
    import ray
    from hpcjet.config.exp import SweConfig
    from hpcjet.cluster.inbox import Inbox
    from hpcjet.swe import dispatch, worker
    from hpcjet.swe.attempt import Job
    from hpcjet.swe.record import Record
    from hpcjet.tasks.task import Task
    from hpcjet.tasks.verdict import Verdict
    from hpcjet.workload import Cluster

    class Host:
        """In place of AttemptHost: an attempt is a moment's sleep; the first try of one kills the whole process."""
        def __init__(self, settings): pass
        def ready(self): return os.uname().nodename, "nothing"
        def make(self, job):
            time.sleep(0.1)
            if job.task.instance_id == "a__b-5" and job.tries == 1:
                os._exit(1)
            return Record(instance_id=job.task.instance_id, attempt=job.attempt, verdict=Verdict.resolved,
                          tries=job.tries, detail=str(os.getpid()))

    worker.AttemptHost = Host
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 1024**2,
             _temp_dir=sys.argv[1])
    cluster = Cluster(ray=ray, address="127.0.0.1", gcs_port=1, ports={"engine": 2}, hosts=("x",), inbox=Inbox())
    exp = SweConfig(memory_gb=0.1, max_tries=3)
    class Settings: scaffold = "mini"
    work = [Job(Task(instance_id=f"a__b-{n}", repo="a/b", base_commit="c", problem_statement="", patch="",
                     test_patch=""), 0) for n in range(6)]
    records = list(dispatch.Dispatcher(cluster, exp, Settings()).run(work, check=lambda: None))
    print(json.dumps([[r.instance_id, r.verdict.value, r.tries, r.detail] for r in records]))
    ray.shutdown()
'''


def test_on_a_real_ray_a_process_that_dies_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_text(textwrap.dedent(REAL))
    temp = Path("/tmp") / f"hjd{os.getpid()}"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
           "RAY_raylet_start_wait_time_s": "120", "RAY_worker_niceness": "0"}  # fmt: skip
    try:
        done = subprocess.run(
            [sys.executable, str(tmp_path / "real.py"), str(temp)], env=env, capture_output=True, text=True,
            timeout=600, check=False,
        )  # fmt: skip
    finally:
        subprocess.run(["rm", "-rf", str(temp)], check=False)
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout.splitlines()[-1])
    assert sorted(name for name, *_ in records) == [f"a__b-{n}" for n in range(6)]
    assert all(verdict == "resolved" for _, verdict, _, _ in records)
    assert {tries for name, _, tries, _ in records if name == "a__b-5"} == {2}
    assert len({pid for *_, pid in records}) == 2
