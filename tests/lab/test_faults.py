"""The fault table: what is broken, what the run makes of it, and how soon every node is free. docs/faults.md tells it.

`--repeats 5` runs each row five times; the times are written to the folder that HPCJET_FAULT_TIMES names.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from launching import (
    AtWork,
    Login,
    events,
    kill_driver,
    kill_on,
    sacct,
    start_work,
    traces,
    wait_for,
)

from hpcjet.cluster.state import read_state
from hpcjet.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SMALL = ("cluster.nodes=2", "cluster.cpus_per_node=1", "cluster.mem_gb=2", "cluster.object_store_gb=0.1")
AGENT = "submitit.core._submit"


@dataclass(frozen=True)
class Fault:
    """One row."""

    id: str
    inject: Callable[[AtWork], None]
    code: int
    """The exit code of the launch."""
    job: str
    """Slurm's state and exit code."""
    free_s: float
    """From the fault until no node has a process or a temp folder of the run."""
    reason: str = ""
    """Part of what the launch says; {head} and {worker} stand for host names."""
    overrides: tuple[str, ...] = ()
    mend: Callable[[AtWork], None] | None = None
    sacct_s: float = 30


def kill_head(word: str) -> Callable[[AtWork], None]:
    return lambda work: kill_on(work.lab, work.nodes[0], word)


def kill_worker(word: str) -> Callable[[AtWork], None]:
    return lambda work: kill_on(work.lab, work.nodes[-1], word)


FAIL, CONTINUE = ("cluster.on_node_loss=fail",), ("cluster.on_node_loss=continue",)
KILLED = "its node agent was killed, or the node is down"


def then_end(inject: Callable[[AtWork], None]) -> Callable[[AtWork], None]:
    """The run goes on: once the loss is noted, its work is done."""

    def inject_and_end(work: AtWork) -> None:
        inject(work)
        lost = lambda: any(row["event"] == "node_lost" for row in events(work.run))  # noqa: E731
        wait_for(lost, timeout_s=15, what="the loss in events.jsonl")
        work.end_work()

    return inject_and_end


def crash_head(work: AtWork) -> None:
    work.lab.crash(work.nodes[0])


def crash_worker(work: AtWork) -> None:
    work.lab.crash(work.nodes[-1])


def scancel(work: AtWork) -> None:
    done = work.login.run("scancel", work.job)
    assert done.code == 0, done.output


def mend(work: AtWork) -> None:
    for node in work.lab.nodes:
        if work.lab.status().nodes[f"n{node}"] in ("crashed", "down", "down*"):
            work.lab.restart(node)


def end_orphans_of_slurm(work: AtWork) -> None:
    """Without its slurmstepd the batch script is nobody's, and the run goes on."""
    kill_stepd(work, work.nodes[0], "b")
    time.sleep(2)
    work.end_work()


FAULTS = [
    Fault("the-program-returns", lambda work: work.end_work(), 0, "COMPLETED 0:0", 2),
    Fault("the-program-fails", lambda work: work.end_work(7), 7, "FAILED 7:0", 2, "exit code 7"),
    Fault("driver", lambda work: kill_driver(work.lab, work.run), 1, "FAILED 1:0", 2, "driver was ended by SIGKILL"),
    Fault("head-gcs", kill_head("gcs_server"), 3, "FAILED 3:0", 10, "Ray on {head} ended before the work was done"),
    Fault("head-raylet", kill_head("raylet/raylet"), 3, "FAILED 3:0", 10, "Ray on {head} ended before the work was"),
    Fault("head-agent", kill_head(AGENT), 3, "FAILED 3:0", 10, "the node agent of the head, {head}, was killed"),
    Fault("head-step-slurmstepd", lambda work: kill_stepd(work, work.nodes[0], "0"), 3, "FAILED 3:0", 10, "slurmstepd"),
    Fault("head-batch-slurmstepd", end_orphans_of_slurm, 0, "NODE_FAIL", 12, sacct_s=100),
    Fault("worker-agent", kill_worker(AGENT), 3, "FAILED 3:0", 10, f"lost {{worker}}: {KILLED}", FAIL),
    Fault("worker-raylet", kill_worker("raylet/raylet"), 3, "FAILED 3:0", 10, "Ray on {worker} ended before", FAIL),
    Fault("worker-slurmstepd", lambda work: kill_stepd(work, work.nodes[-1], "0"), 3, "FAILED 3:0", 10,
          "lost {worker}: what started the node agent", FAIL),
    Fault("worker-power", crash_worker, 3, "FAILED 3:0", 10, f"lost {{worker}}: {KILLED}", FAIL, mend),
    Fault("worker-agent-continue", then_end(kill_worker(AGENT)), 0, "COMPLETED 0:0", 10, "", CONTINUE),
    Fault("worker-raylet-continue", then_end(kill_worker("raylet/raylet")), 0, "COMPLETED 0:0", 10, "", CONTINUE),
    Fault("worker-power-continue", then_end(crash_worker), 0, "COMPLETED 0:0", 12, "", CONTINUE, mend),
    Fault("scancel", scancel, 130, "CANCELLED", 7, "it got SIGTERM (cancelled)"),
]  # fmt: skip


def kill_stepd(work: AtWork, node: int, step: str) -> None:
    kill_on(work.lab, node, f"slurmstepd: [{work.job}.{step}")


@pytest.fixture(scope="module")
def login(lab: Lab) -> Login:
    return Login(lab)


@pytest.fixture
def folder(login: Login) -> Path:
    """A folder of the test's own, on the file system that all nodes share."""
    path = login.home / "tests" / f"fault-{time.time_ns()}"
    made = login.run("mkdir", "-p", path)
    assert made.code == 0, made.output
    return path


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_fault(login: Login, folder: Path, fault: Fault) -> None:
    with start_work(login, folder, *SMALL, *fault.overrides) as work:
        try:
            check(work, fault)
        finally:
            if fault.mend:
                fault.mend(work)


def check(work: AtWork, fault: Fault) -> None:
    work.await_work()
    nodes, job = work.nodes, work.job
    began = time.monotonic()
    fault.inject(work)
    wait_for(lambda: not traces(work.lab, nodes), timeout_s=90, what="free nodes")
    free_s = time.monotonic() - began
    ended = work.ended(timeout_s=30)
    answer = sacct(work.login, job, timeout_s=fault.sacct_s)
    record(fault.id, free_s=free_s, launch_s=time.monotonic() - began)
    print(fault.id, round(free_s, 2), ended.code, answer, ended.output)
    assert ended.code == fault.code, ended.output
    assert f"{answer['state']} {answer['code']}".startswith(fault.job), answer
    names = {"head": f"n{nodes[0]}", "worker": f"n{nodes[-1]}"}
    assert fault.reason.format(**names) in ended.output, ended.output
    final = read_state(work.run.state)
    assert final and final.exit_code == fault.code and fault.reason.format(**names) in final.reason
    assert free_s <= fault.free_s


def record(row: str, **seconds: float) -> None:
    """For docs/faults.md."""
    if file := os.environ.get("HPCJET_FAULT_TIMES"):
        with Path(file).open("a") as out:
            out.write(json.dumps({"row": row, **seconds}) + "\n")
