"""Groups that grow and shrink while a run goes on: real Slurm, real node agents, the real keeper.

The test of the keeper's death writes backlog.json in the driver's place: the program at work has none.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import AtWork, Login, events, kill_on, recorded, start_work, state_in_queue, wait_for

from hpcjet.atomic import atomic_write
from hpcjet.lab import Lab
from hpcjet.rundir import RunDir

pytestmark = [pytest.mark.lab, pytest.mark.slow]

WORDS = ("cluster.form=jobs", "cluster.cpus_per_node=1", "cluster.mem_gb=1.5", "cluster.object_store_gb=0.1")


@pytest.fixture
def folder(login: Login) -> Iterator[Path]:
    """A folder of the test's own, on the file system that all nodes share."""
    path = login.home / "tests" / f"scale-{time.time_ns()}"
    made = login.run("mkdir", "-p", path)
    assert made.code == 0, made.output
    yield path


def groups(**cpu: int) -> str:
    more = ", ".join(f"{key}: {value}" for key, value in cpu.items())
    return f"+cluster.groups={{head: {{nodes: 1}}, cpu: {{{more}}}}}"


def members(run: RunDir, state: str = "joined") -> list[dict[str, Any]]:
    """Those of the group `cpu` that stand so."""
    if not run.members.exists():
        return []
    return [each for each in json.loads(run.members.read_text()) if each["group"] == "cpu" and each["state"] == state]


def backlog(run: RunDir, waiting: int, busy: dict[str, int]) -> None:
    """What a driver with so much work would say."""
    told = {"updated": time.time(), "waiting": waiting, "in_flight": sum(busy.values()), "cpus": 1.0, "memory_gb": 0.1}
    atomic_write(run.backlog, json.dumps({**told, "longest_s": None, "group": "cpu", "busy": busy}), mode=0o644)


def await_members(work: AtWork, number: int, *, timeout_s: float = 300) -> list[dict[str, Any]]:
    what = f"{number} nodes of the group cpu"
    wait_for(lambda: len(members(work.run)) == number, timeout_s=timeout_s, what=what)
    return members(work.run)


def jobs(login: Login, run: RunDir) -> list[str]:
    """The run's worker allocations that Slurm has in its queue."""
    records = [json.loads(record.read_text()) for record in sorted(run.allocations.glob("*.json"))]
    return [each["job_id"] for each in records if each["job_id"] and state_in_queue(login, each["job_id"])]


def scale(login: Login, run: RunDir, *words: str) -> str:
    done = login.hpcjet("scale", run.path, *words)
    assert done.code == 0, done.output
    return done.output


def test_scale_adds_and_removes_nodes_while_a_run_goes_on(lab: Lab, login: Login, folder: Path) -> None:
    with start_work(login, folder, *WORDS, groups(nodes=1, max=2)) as work:
        work.await_work()
        (first,) = await_members(work, 1)
        said = scale(login, work.run, "group=cpu", "nodes=+2")
        assert "has 1 node, with those in the queue; 3 wanted" in said
        assert "over cluster.groups.cpu.max=2" in said
        await_members(work, 3)
        assert len(jobs(login, work.run)) == 3
        scale(login, work.run, "group=cpu", "nodes=-2")
        await_members(work, 1)
        wait_for(lambda: len(jobs(login, work.run)) == 1, what="two nodes that Slurm has back")
        refused = login.hpcjet("scale", work.run.path, "group=head", "nodes=2")
        assert refused.code == 2 and "choose one of cpu" in refused.output
        assert work.launch.poll() is None, "the run goes on"
        said_by = [(row["event"], row.get("nodes")) for row in events(work.run) if row["event"] == "scaled"]
        assert said_by == [("scaled", 3), ("scaled", 1)]
        work.end_work()
        ended = work.ended()
        assert ended.code == 0, ended.output
        wait_for(lambda: not jobs(login, work.run), what="all nodes that Slurm has back")
        assert first["host"] in {f"n{number}" for number in lab.nodes}
        over = login.hpcjet("scale", work.run.path, "group=cpu", "nodes=+1")
        assert over.code == 2 and "has ended (done)" in over.output


def test_scale_grows_with_the_backlog_and_shrinks_when_idle(login: Login, tasks: None, folder: Path) -> None:
    """Eight tasks on up to three nodes that hold one each: in the last round one of the nodes has nothing to do."""
    words = ("cluster=lab", *WORDS, "cluster.mem_gb=3", groups(nodes=0, max=3, idle_s=5), "exp.group=cpu")
    launch = login.start("+exp=swe", *words, "engine.latency_s=2", f"run.root={folder}/runs")
    with AtWork(login, folder, launch) as work:
        wait_for(lambda: bool(list(folder.glob("runs/*/*/submission.json"))), what="the run")
        await_members(work, 3)
        ended = work.ended(timeout_s=400)
        assert ended.code == 0, ended.output
        done = recorded(work.run)
        assert len(done) == len(set(done)) == 8
        rows = events(work.run)
        assert sum(row["event"] == "allocation_submitted" for row in rows) == 3
        idle = [row for row in rows if row["event"] == "drain" and "idle" in row["reason"]]
        assert idle, [row for row in rows if row["event"] in ("drain", "left")]
        left = {row["member"]: row["t"] for row in rows if row["event"] == "left"}
        end = next(row["t"] for row in rows if row["event"] == "workload_end")
        assert left[idle[0]["member"]] < end, "it was given back while others worked"
        wait_for(lambda: not jobs(login, work.run), what="all nodes that Slurm has back")


def test_scale_the_keeper_is_killed_and_goes_on_where_it_was(lab: Lab, login: Login, folder: Path) -> None:
    with start_work(login, folder, *WORDS, groups(nodes=0, max=2)) as work:
        work.await_work()
        backlog(work.run, 1, {})
        await_members(work, 1)
        kill_on(lab, work.nodes[0], "hpcjet.elastic.keeper")
        backlog(work.run, 2, {})
        await_members(work, 2)
        assert len(list(work.run.allocations.glob("*.json"))) == 2, "nothing was asked for twice"
        work.end_work()
        ended = work.ended()
        assert ended.code == 0, ended.output
