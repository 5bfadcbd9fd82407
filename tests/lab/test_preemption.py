"""exp=swe over a head and preemptible workers, on real Slurm: nodes are taken away, one dies, nothing is lost."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import AtWork, Login, events, recorded, start_work, state_in_queue, wait_for

from hpcjet.lab import Lab
from hpcjet.rundir import RunDir

pytestmark = [pytest.mark.lab, pytest.mark.slow]

GROUPS = (
    "cluster=lab",
    "cluster.form=jobs",
    "cluster.object_store_gb=0.1",
    "+cluster.groups={head: {nodes: 1, cpus_per_node: 1, mem_gb: 3},"
    " cpu: {nodes: 1, max: 3, cpus_per_node: 2, mem_gb: 4, time_min: 20, partition: spot, exclusive: true,"
    " idle_s: 10}}",
    "exp.group=cpu",
)
EACH = int(os.environ.get("HPCJET_ATTEMPTS", "4"))
"""Attempts at each of eight tasks; the figure of docs/faults.md is of 15."""
MOST_LOST = 0.15 if EACH >= 15 else 0.4
"""Share of the node-seconds that may be idle or wasted: four losses weigh more in a run of two minutes."""


@pytest.fixture
def folder(login: Login) -> Iterator[Path]:
    """A folder of the test's own, on the file system that all nodes share."""
    path = login.home / "tests" / f"preemption-{time.time_ns()}"
    made = login.run("mkdir", "-p", path)
    assert made.code == 0, made.output
    yield path


def at_work(run: RunDir) -> list[dict[str, Any]]:
    """The members of the group cpu that have joined."""
    try:
        members = json.loads(run.members.read_text())
    except FileNotFoundError:
        return []
    return [each for each in members if each["group"] == "cpu" and each["state"] == "joined"]


def await_nodes(run: RunDir, number: int, *, timeout_s: float = 300) -> list[dict[str, Any]]:
    what = f"{number} nodes at work"
    wait_for(lambda: len(at_work(run)) >= number, timeout_s=timeout_s, what=what)
    return at_work(run)


def take_away(login: Login, member: dict[str, Any]) -> None:
    """A job of a higher partition takes a member's node for a few seconds."""
    host = member["host"].split(".")[0]
    whole = ["--partition=batch", "--nodes=1", f"--nodelist={host}", "--exclusive", "--output=/dev/null"]
    taken = login.run("sbatch", "--parsable", *whole, "--wrap", "sleep 8")
    assert taken.code == 0, taken.output
    job = member["job"]
    wait_for(lambda: state_in_queue(login, job) in ("", "PREEMPTED"), what=f"the end of job {job}")


def await_results(work: AtWork, number: int, *, timeout_s: float = 300) -> None:
    def there() -> bool:
        assert work.launch.poll() is None, work.launch.communicate()[0]
        return len(recorded(work.run)) >= number

    wait_for(there, timeout_s=timeout_s, what=f"{number} results")


def test_nothing_is_lost_while_nodes_are_taken_away_and_one_dies(
    lab: Lab, login: Login, tasks: None, folder: Path
) -> None:
    launch = login.start("+exp=swe", *GROUPS, f"exp.attempts={EACH}", "engine.latency_s=1", f"run.root={folder}/runs")
    with AtWork(login, folder, launch) as work:
        wait_for(lambda: bool(list(folder.glob("runs/*/*/submission.json"))), what="the run")
        grown = []
        for results in (EACH, 2 * EACH, 4 * EACH):
            await_results(work, results)
            grown.append(len(await_nodes(work.run, 3)))
            take_away(login, at_work(work.run)[0])
        await_results(work, 5 * EACH)
        dead = int(await_nodes(work.run, 2)[0]["host"].split(".")[0].removeprefix("n"))
        lab.crash(dead)
        try:
            ended = work.ended(timeout_s=420)
        finally:
            lab.restart(dead)
        assert ended.code == 0 and ended.run, ended.output
        keys = recorded(ended.run)
        assert len(keys) == len(set(keys)) == 8 * EACH
        assert grown == [3, 3, 3], "the group grew again each time"
        report = login.report(ended.run)
        assert (report["attempts"], report["resolved"]) == (8 * EACH, 8), report["verdicts"]
        shares = report["ledger"]["shares"]
        print(f"ledger: {report['ledger']}")
        assert shares["idle"] + shares["wasted"] <= MOST_LOST, report["ledger"]
        reasons = [row.get("reason") for row in events(ended.run) if row["event"] in ("leaving", "node_lost")]
        assert sum("preempted" in str(reason) for reason in reasons) >= 3, reasons


def start_again_at_once(login: Login, work: AtWork, job: str) -> None:
    """Until the run is over: Slurm holds a requeued job back for two minutes, unless its owner says otherwise."""
    while work.launch.poll() is None:
        if state_in_queue(login, job) == "PENDING":
            login.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        time.sleep(1)


def test_a_chain_of_short_allocations_finishes_long_work(login: Login, tasks: None, folder: Path) -> None:
    """The head's time limit comes again and again, and its workers wait for the next; nothing is done twice."""
    limits = (
        "cluster=lab",
        "cluster.form=jobs",
        "cluster.signal_delay_s=20",
        "cluster.object_store_gb=0.1",
        "+cluster.groups={head: {nodes: 1, cpus_per_node: 1, mem_gb: 3, time_min: 2},"
        " cpu: {nodes: 1, cpus_per_node: 2, mem_gb: 4, time_min: 10}}",
        "exp.group=cpu",
    )
    launch = login.start(
        "+exp=swe", *limits, "exp.limit=6", "exp.attempts=3", "engine.latency_s=1", f"run.root={folder}/runs"
    )
    with AtWork(login, folder, launch) as work:
        wait_for(lambda: bool(list(folder.glob("runs/*/*/submission.json"))), what="the run")
        start_again_at_once(login, work, work.job)
        ended = work.ended()
        assert ended.code == 0 and ended.run, ended.output
        keys = recorded(ended.run)
        assert len(keys) == len(set(keys)) == 18
        rows = events(ended.run)
        begun = [row["restart"] for row in rows if row["event"] == "workload_start"]
        assert len(begun) >= 2 and len(set(begun)) == len(begun), begun
        joined = {(row["job"], row["restart"]) for row in rows if row["event"] == "ray_up" and row["group"] == "cpu"}
        assert {restart for _, restart in joined} == set(begun), "each head has a worker"
        assert len({job for job, _ in joined}) < len(begun), "which had waited for it"
        assert login.report(ended.run)["resolved"] == 6


def test_max_hours_ends_the_chain(login: Login, folder: Path) -> None:
    words = ("cluster.time_min=1", "run.max_hours=0.015", "cluster.cpus_per_node=1", "cluster.mem_gb=2")
    with start_work(login, folder, *words) as work:
        work.await_work()
        ended = work.ended()
        assert ended.code != 0 and "run.max_hours" in ended.output, ended.output
        assert state_in_queue(login, work.job) in ("", "COMPLETING")
