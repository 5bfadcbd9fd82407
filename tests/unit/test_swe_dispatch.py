"""The dispatcher: on a fake of the module ray for losses that cannot be had on demand, and once on a real Ray."""

import io
import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcjet.cluster.inbox import Inbox
from hpcjet.config.exp import SweConfig
from hpcjet.errors import BootstrapError, SandboxError
from hpcjet.swe import dispatch
from hpcjet.swe.attempt import AttemptSettings, Job
from hpcjet.swe.dispatch import GIB, MAX_LOSSES, START_S, Dispatcher, host_sizes
from hpcjet.swe.record import Record
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
"""(node, job) -> what its actor answers: a Record, an exception to raise, or PENDING for never."""


class Ref:
    def __init__(self, result: Any) -> None:
        self.result = result


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


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[Record], Dispatcher]]:
    def run(ray: FakeRay, work: list[Job], **settings: Any) -> tuple[list[Record], Dispatcher]:
        monkeypatch.setattr(dispatch, "time", SimpleNamespace(monotonic=lambda: ray.now))
        cluster = cluster_of(ray, *ray.cpus)
        dispatcher = Dispatcher(cluster, SweConfig(**settings), SETTINGS)
        checks = iter(range(10_000))
        return list(dispatcher.run(work, check=lambda: assert_goes_on(next(checks)))), dispatcher

    return run


def assert_goes_on(checks: int) -> None:
    assert checks < 2000, "it does not come to an end"


Run = Callable[..., tuple[list[Record], Dispatcher]]


def test_each_job_gets_one_record_on_all_nodes(run: Run) -> None:
    ray = FakeRay({"n1": 2, "n2": 4}, lambda node, job: record_of(job))
    records, dispatcher = run(ray, jobs(20))
    assert sorted(record.key for record in records) == sorted(job.key for job in jobs(20))
    assert {node for node, _, _ in ray.calls} == {"n1", "n2"} and len(ray.calls) == 20
    assert dispatcher.isolation == {"n1": "bwrap", "n2": "bwrap"} and dispatcher.in_flight == 0


def test_no_more_than_asked_are_in_flight(run: Run) -> None:
    ray = FakeRay({"n1": 8}, lambda node, job: record_of(job))
    assert len(run(ray, jobs(20), in_flight=3)[0]) == 20
    assert ray.most == 3


def test_nothing_to_do_ends_at_once(run: Run) -> None:
    ray = FakeRay({"n1": 8}, lambda node, job: record_of(job))
    assert run(ray, [])[0] == [] and not ray.made


def test_what_the_infrastructure_spoiled_is_tried_again_up_to_the_limit(run: Run) -> None:
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


def test_a_lost_process_costs_its_attempts_a_try_and_is_replaced(run: Run) -> None:
    died: list[Job] = []

    def answer(node: str, job: Job) -> Any:
        if not died:
            died.append(job)
            return RayError("The actor died unexpectedly.\nmore")
        return record_of(job)

    ray = FakeRay({"n1": 4}, answer)
    records, _ = run(ray, jobs(4))
    assert len(records) == 4 and all(record.verdict is Verdict.resolved for record in records)
    assert ray.made == {"n1": 2} and ray.killed == ["n1"]
    assert {record.tries for record in records} == {2}, "all that were in the process are made again"


def test_the_last_loss_is_recorded_as_the_infrastructures(run: Run) -> None:
    ray = FakeRay({"n1": 1}, lambda node, job: RayError("The actor died.\nmore"))
    [record], _ = run(ray, jobs(1), max_tries=2)
    assert (record.verdict, record.failure, record.detail, record.node, record.tries) == (
        Verdict.infrastructure, "node_lost", "The actor died.", "n1", 2,
    )  # fmt: skip


def test_a_node_that_is_gone_gets_no_process_and_the_others_go_on(run: Run) -> None:
    def answer(node: str, job: Job) -> Any:
        if node == "n2":
            ray.cpus.pop("n2", None)
            return RayError("node died")
        return record_of(job)

    ray = FakeRay({"n1": 1, "n2": 1}, answer)
    records, _ = run(ray, jobs(6))
    assert len(records) == 6 and ray.made == {"n1": 1, "n2": 1}


def test_a_node_that_joins_later_gets_work(run: Run) -> None:
    def answer(node: str, job: Job) -> Any:
        ray.cpus.setdefault("n2", 1)
        return record_of(job)

    ray = FakeRay({"n1": 1}, answer)
    assert len(run(ray, jobs(40))[0]) == 40
    assert {node for node, _, _ in ray.calls} == {"n1", "n2"}


def test_a_node_on_which_processes_keep_dying_is_given_up(run: Run) -> None:
    ray = FakeRay({"n1": 1}, lambda node, job: record_of(job), ready=lambda node: RayError("killed by the kernel"))
    with pytest.raises(BootstrapError, match=r"no worker process is left.*killed by the kernel.*hpcjet resume"):
        run(ray, jobs(1))
    assert ray.made == {"n1": MAX_LOSSES + 1}


def test_a_stuck_attempt_is_killed_with_its_process(run: Run) -> None:
    def answer(node: str, job: Job) -> Any:
        return PENDING if job.tries == 1 else record_of(job)

    ray = FakeRay({"n1": 1}, answer)
    short = {"build_timeout_s": 10, "agent_timeout_s": 20, "test_timeout_s": 5}
    [record], _ = run(ray, jobs(1), **short)
    assert record.tries == 2 and ray.killed == ["n1"]
    assert 10 + 20 + 2 * 5 + dispatch.GRACE_S < ray.now < 10 + 20 + 2 * 5 + dispatch.GRACE_S + 10


def test_a_process_that_never_starts_is_told(run: Run) -> None:
    ray = FakeRay({"n1": 1}, lambda node, job: record_of(job), ready=lambda node: PENDING)
    with pytest.raises(BootstrapError, match=f"no worker process started on n1 within {START_S:.0f} s"):
        run(ray, jobs(1))


def test_a_sandbox_that_cannot_be_opened_is_told_as_such(run: Run) -> None:
    ray = FakeRay({"n1": 1}, lambda node, job: PENDING, ready=lambda node: RayTaskError(SandboxError("n1: no userns")))
    with pytest.raises(SandboxError, match="n1: no userns"):
        run(ray, jobs(1))
    other = FakeRay({"n1": 1}, lambda node, job: PENDING, ready=lambda node: RayTaskError(ImportError("no module x")))
    with pytest.raises(BootstrapError, match="a worker process failed: no module x"):
        run(other, jobs(1))


def test_check_may_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay({"n1": 1}, lambda node, job: PENDING)
    dispatcher = Dispatcher(cluster_of(ray, "n1"), SweConfig(), SETTINGS)

    def check() -> None:
        if ray.calls:
            raise RuntimeError("the engine ended")

    with pytest.raises(RuntimeError, match="the engine ended"):
        list(dispatcher.run(jobs(1), check=check))


REAL = '''
    import json, os, sys, time
    import ray
    from hpcjet.config.exp import SweConfig
    from hpcjet.swe import dispatch
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

    dispatch.AttemptHost = Host
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 1024**2,
             _temp_dir=sys.argv[1])
    cluster = Cluster(ray=ray, address="127.0.0.1", gcs_port=1, ports={"engine": 2}, hosts=("x",), inbox=None)
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
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    try:
        done = subprocess.run(
            [sys.executable, str(tmp_path / "real.py"), str(temp)], env=env, capture_output=True, text=True,
            timeout=90, check=False,
        )  # fmt: skip
    finally:
        subprocess.run(["rm", "-rf", str(temp)], check=False)
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout.splitlines()[-1])
    assert sorted(name for name, *_ in records) == [f"a__b-{n}" for n in range(6)]
    assert all(verdict == "resolved" for _, verdict, _, _ in records)
    assert {tries for name, _, tries, _ in records if name == "a__b-5"} == {2}
    assert len({pid for *_, pid in records}) == 2
