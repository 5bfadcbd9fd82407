"""Runs that Slurm stops and starts again: preemption, a time limit, a head without power, a controller that is away."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from launching import (
    AtWork,
    Login,
    busy,
    events,
    recorded,
    sacct,
    start_work,
    state_in_queue,
    wait_for,
    wait_until_free,
)

from hpcjet.cluster.state import read_state
from hpcjet.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SMALL = ("cluster.nodes=2", "cluster.cpus_per_node=1", "cluster.mem_gb=2", "cluster.object_store_gb=0.1")


@pytest.fixture
def folder(login: Login) -> Iterator[Path]:
    """A folder of the test's own, on the file system that all nodes share."""
    path = login.home / "tests" / f"requeue-{time.time_ns()}"
    made = login.run("mkdir", "-p", path)
    assert made.code == 0, made.output
    yield path


def start_now(login: Login, job: str) -> None:
    """Slurm holds a requeued job back for two minutes; its owner may say that it need not wait."""
    wait_for(lambda: state_in_queue(login, job) == "PENDING", what=f"job {job} in the queue again")
    done = login.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    assert done.code == 0, done.output


def begun(work: AtWork, restart: int) -> bool:
    return any(row["event"] == "workload_start" and row["restart"] == restart for row in events(work.run))


def test_a_head_without_power_the_run_goes_on_after_the_requeue(lab: Lab, login: Login, folder: Path) -> None:
    with start_work(login, folder, *SMALL, "cluster.time_min=5") as work:
        work.await_work()
        head, worker = work.nodes
        try:
            began = time.monotonic()
            lab.crash(head)
            wait_until_free(lab, [worker], timeout_s=30)
            free_s = time.monotonic() - began
            start_now(login, work.job)
            wait_for(lambda: begun(work, 1), what="the second start")
            work.end_work()
            ended = work.ended()
            assert ended.code == 0, ended.output
        finally:
            lab.restart(head)
        assert free_s <= 10 * busy()
        assert len(list(work.run.path.glob("logs/*-1"))) == 1


def test_a_higher_partition_preempts_a_run_which_goes_on_where_it_was(login: Login, tasks: None, folder: Path) -> None:
    words = ("cluster=lab", "cluster.partition=spot", "cluster.nodes=2", "cluster.cpus_per_node=2", "cluster.mem_gb=4")
    launch = login.start("+exp=swe", *words, "engine.latency_s=0.3", f"run.root={folder}/runs")
    with AtWork(login, folder, launch) as work:
        wait_for(lambda: bool(list(folder.glob("runs/*/*"))), what="the run")
        wait_for(lambda: len(recorded(work.run)) >= 2, what="two results")
        job = work.job
        whole = ["--partition=batch", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap", "sleep 8"]
        other = login.run("sbatch", "--parsable", *whole)
        assert other.code == 0, other.output
        wait_for(lambda: state_in_queue(login, job) == "PENDING", what="the run in the queue again")
        before = recorded(work.run)
        assert sacct(login, other.output.strip())["state"] == "COMPLETED"
        start_now(login, job)
        ended = work.ended()
        assert ended.code == 0, ended.output
        after = recorded(work.run)
        assert 2 <= len(before) < 8, before
        assert len(after) == len(set(after)) == 8 and set(before) <= set(after)
        assert sorted(path.name for path in work.run.path.glob(f"logs/{job}-*")) == [f"{job}-0", f"{job}-1"]
        asked = [row["reason"] for row in events(work.run) if row["event"] == "stop_asked"]
        assert asked == ["preempted"]


def without_scontrol(folder: Path) -> str:
    """A PATH as on nodes that have no scontrol."""
    (folder / "bin").mkdir()
    for program in [*Path("/usr/bin").iterdir(), *Path("/usr/local/bin").iterdir()]:
        if program.name != "scontrol":
            (folder / "bin" / program.name).symlink_to(program)
    return f"{folder}/bin"


def test_near_the_time_limit_a_run_stops_and_goes_on_if_it_may(login: Login, folder: Path) -> None:
    """Four at once, since each takes most of a minute."""
    one = (*SMALL, "cluster.nodes=1", "cluster.time_min=1")
    kinds = {
        "goes-on": (),
        "must-not": ("cluster.requeue=false",),
        "too-often": ("cluster.max_restarts=0",),
        "no-scontrol": ("",),
    }
    for kind in kinds:
        made = login.run("mkdir", "-p", folder / kind)
        assert made.code == 0, made.output
    kinds["no-scontrol"] = (f"cluster.setup=['export PATH={without_scontrol(folder / 'no-scontrol')}']",)
    with ExitStack() as stack:
        works = {
            kind: stack.enter_context(start_work(login, folder / kind, *one, *words)) for kind, words in kinds.items()
        }
        for work in works.values():
            work.await_work()
        jobs = {kind: work.job for kind, work in works.items()}

        start_now(login, jobs["goes-on"])
        wait_for(lambda: begun(works["goes-on"], 1), what="the second start")
        works["goes-on"].end_work()
        ended = works["goes-on"].ended()
        assert ended.code == 0, ended.output

        for kind, reason in (("must-not", ""), ("too-often", "not queued again after 0 restarts")):
            ended = works[kind].ended()
            assert ended.code == 130 and "the time limit is near" in ended.output and reason in ended.output, ended
            state = read_state(works[kind].run.state)
            assert state and state.then == "" and state.exit_code == 130
            assert sacct(login, jobs[kind])["code"] == "2:0", "130: sacct shows codes from 128 on less 128"

        again = works["no-scontrol"]
        wait_for(lambda: again.job != jobs["no-scontrol"], what="another job")
        wait_for(lambda: state_in_queue(login, again.job) == "RUNNING", what="it running")
        again.end_work()
        ended = again.ended()
        assert ended.code == 0, ended.output
        assert f"submitted again, as Slurm job {again.job} (restart 1 of at most 20)" in ended.output


def test_a_controller_that_is_away_for_a_minute(lab: Lab, login: Login, folder: Path) -> None:
    with start_work(login, folder, *SMALL) as work:
        work.await_work()
        job = work.job
        try:
            lab.stop_daemon("slurmctld")
            time.sleep(60)
        finally:
            lab.up(len(lab.nodes))
        work.end_work()
        ended = work.ended()
        assert ended.code == 0, ended.output
        assert "Slurm does not answer; still waiting" in ended.output
        assert sacct(login, job)["code"] == "0:0"
        wait_until_free(lab, lab.nodes, timeout_s=10)
