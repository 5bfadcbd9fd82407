"""One run over many allocations, on real Slurm: who joins, when, and who is refused."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import (
    WORK,
    AtWork,
    Login,
    events,
    only_run,
    sacct,
    start_work,
    state_in_queue,
    wait_for,
    wait_until_free,
)

from hpcjet.lab import Lab
from hpcjet.rundir import RunDir

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SMALL = ("cluster.cpus_per_node=1", "cluster.mem_gb=2", "cluster.object_store_gb=0.1")
JOBS = (
    *SMALL,
    "cluster.form=jobs",
    "+cluster.groups={head: {nodes: 1}, cpu: {nodes: 0, min: 0, max: 3, idle_s: 3600}}",
)
"""A head of one node, and a group that begins empty: the tests submit its allocations by hand."""


@pytest.fixture
def folder(login: Login) -> Iterator[Path]:
    """A folder of the test's own, on the file system that all nodes share."""
    path = login.home / "tests" / f"join-{time.time_ns()}"
    made = login.run("mkdir", "-p", path)
    assert made.code == 0, made.output
    yield path


class Workers:
    """Worker allocations of one node each, submitted by hand. Whatever went wrong, none stays."""

    def __init__(self, login: Login, folder: Path) -> None:
        self._login, self._folder = login, folder
        self._jobs: list[str] = []

    def submit(self, run: Path) -> str:
        """One for a run directory; its job."""
        script = self._folder / f"worker-{len(self._jobs)}.sbatch"
        script.write_text(
            "#!/bin/bash\n#SBATCH --nodes=1 --cpus-per-task=1 --mem=2G --time=10 --no-requeue\n"
            f"#SBATCH --output={self._folder}/worker-%j.log\n"
            f"srun {self._login.bin}/python -u -m hpcjet.cluster.node {run}/plan.json --worker cpu\n"
        )
        done = self._login.run("sbatch", "--parsable", script)
        assert done.code == 0, done.output
        self._jobs.append(done.output.strip())
        return self._jobs[-1]

    def said(self, job: str) -> str:
        log = self._folder / f"worker-{job}.log"
        return log.read_text() if log.exists() else ""

    def cancel(self) -> None:
        for job in self._jobs:
            self._login.run("scancel", job)


@pytest.fixture
def workers(login: Login, folder: Path) -> Iterator[Workers]:
    made = Workers(login, folder)
    yield made
    made.cancel()


def members(run: RunDir) -> dict[str, dict[str, Any]]:
    """Job -> what members.json says of its node."""
    try:
        return {each["job"]: each for each in json.loads(run.members.read_text())}
    except FileNotFoundError:
        return {}


def await_standing(run: RunDir, job: str, state: str, *, timeout_s: float = 300) -> None:
    wait_for(
        lambda: members(run).get(job, {}).get("state") == state,
        timeout_s=timeout_s,
        what=f"job {job} {state}; there are {members(run)}",
    )


def of(run: RunDir, event: str) -> list[dict[str, Any]]:
    return [row for row in events(run) if row["event"] == event]


def nothing_is_left(lab: Lab) -> None:
    wait_until_free(lab, lab.nodes, timeout_s=15)


def test_join_before_the_head(lab: Lab, login: Login, folder: Path, workers: Workers) -> None:
    (folder / "work.sh").write_text(WORK.format(folder=folder))
    words = ["+exp=ray", f"exp.command='bash {folder}/work.sh'", "cluster=lab", f"run.root={folder}/runs", *JOBS]
    prepared = login.launch(*words, "submit=false")
    assert prepared.code == 0, prepared.output
    run = only_run(folder / "runs")
    early = workers.submit(run.path)
    wait_for(lambda: state_in_queue(login, early) == "RUNNING", what="the worker's job")
    wait_for(lambda: "node 0 of 1" in workers.said(early), what="the worker's agent")
    head = login.run(
        "sbatch", "--parsable", "--nodes=1", "--cpus-per-task=1", "--mem=2G", "--time=10", "--output=/dev/null",
        f"--wrap={login.bin}/python -m hpcjet.cluster.batch {run.path}",
    )  # fmt: skip
    assert head.code == 0, head.output
    try:
        await_standing(run, early, "joined")
        (folder / "end").write_text("0\n")
        assert sacct(login, head.output.strip())["code"] == "0:0"
        assert sacct(login, early)["code"] == "0:0", workers.said(early)
    finally:
        login.run("scancel", head.output.strip())
    ups = {row["group"]: row["t"] for row in of(run, "agent_up")}
    assert ups["cpu"] < ups["head"], "it was there before the head"
    assert [row["job"] for row in of(run, "ray_up")] == [head.output.strip(), early]
    assert [row["job"] for row in of(run, "left")] == [early]
    nothing_is_left(lab)


def test_join_long_after_the_head(lab: Lab, login: Login, folder: Path, workers: Workers) -> None:
    """All of the head's own times to start are over: its boot timeout is 40 s here."""
    with start_work(login, folder, *JOBS, "cluster.boot_timeout_s=40") as work:
        work.await_work()
        ready = of(work.run, "ready")[0]["t"]
        wait_for(lambda: time.time() > ready + 45, what="the end of the boot")
        late = workers.submit(work.run.path)
        await_standing(work.run, late, "joined")
        ray_up = next(row["t"] for row in of(work.run, "ray_up") if row["job"] == late)
        assert ray_up > ready + 45
        preempted = workers.submit(work.run.path)
        await_standing(work.run, preempted, "joined")
        assert login.run("scancel", preempted).code == 0
        await_standing(work.run, preempted, "lost")
        assert of(work.run, "leaving")[0]["job"] == preempted
        assert work.launch.poll() is None, "the run goes on without a node of another allocation"
        work.end_work()
        assert work.ended().code == 0
        assert sacct(login, late)["code"] == "0:0"
    nothing_is_left(lab)


def copied(login: Login, work: AtWork, *, secret: str) -> Path:
    """A copy of the run directory that leads to the same head with another secret."""
    copy = work.folder / f"copy-{time.time_ns()}"
    pointer = json.loads(work.run.head.read_text())
    made = login.run("mkdir", "-p", "-m", "700", copy / "secrets", copy / "rendezvous")
    assert made.code == 0, made.output
    plan = json.loads(work.run.plan.read_text()) | {"run_dir": str(copy)}
    for name, text in {
        "plan.json": json.dumps(plan), "head.json": json.dumps(pointer), f"secrets/{pointer['secret']}": secret,
    }.items():  # fmt: skip
        (copy / name).write_text(text)
    owned = login.lab.user
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.chown(path, owned.uid, owned.uid)
    return copy


def test_join_is_refused_with_a_wrong_token_and_with_one_of_an_older_restart(
    lab: Lab, login: Login, folder: Path, workers: Workers
) -> None:
    with start_work(login, folder, *JOBS) as work:
        work.await_work()
        guest = workers.submit(work.run.path)
        await_standing(work.run, guest, "joined")
        old = work.run.secret(json.loads(work.run.head.read_text())["secret"]).read_text()
        forged = workers.submit(copied(login, work, secret="guessed"))
        assert sacct(login, forged)["code"] == "3:0"
        wait_for(lambda: bool(of(work.run, "refused")), what="the event")
        assert "does not know the secret" in of(work.run, "refused")[0]["reason"]
        (folder / "at-work").unlink()
        assert login.run("scontrol", "requeue", work.job).code == 0
        wait_for(lambda: state_in_queue(login, work.job) == "PENDING", what="the job in the queue again")
        assert state_in_queue(login, guest) == "RUNNING", "it waits for the next head"
        assert login.run("scontrol", "update", f"JobId={work.job}", "StartTime=now").code == 0
        work.await_work()
        new = work.run.secret(json.loads(work.run.head.read_text())["secret"]).read_text()
        assert new != old
        wait_for(
            lambda: any(row["job"] == guest and row["restart"] == 1 for row in of(work.run, "ray_up")),
            what="the worker at the next head",
        )  # fmt: skip
        older = workers.submit(copied(login, work, secret=old))
        assert sacct(login, older)["code"] == "3:0"
        wait_for(lambda: len(of(work.run, "refused")) > 1, what="the event")
        assert "earlier start of this run" in of(work.run, "refused")[-1]["reason"]
        work.end_work()
        assert work.ended().code == 0
        assert sacct(login, guest)["code"] == "0:0"
    logs = [log for log in folder.rglob("*.log") if re.search("|".join(map(re.escape, (old, new))), log.read_text())]
    assert not logs, "no secret in a log"
    nothing_is_left(lab)


def test_join_of_nobody_gives_the_nodes_back(lab: Lab, login: Login, folder: Path, workers: Workers) -> None:
    words = ["+exp=noop", "cluster=lab", f"run.root={folder}/runs", *JOBS, "cluster.head_wait_s=5", "submit=false"]
    assert login.launch(*words).code == 0
    run = only_run(folder / "runs")
    alone = workers.submit(run.path)
    assert sacct(login, alone)["code"] == "0:0"
    [row] = [json.loads(line) for line in run.worker_events(alone).read_text().splitlines()]
    assert row["event"] == "gave_up" and "waited 5 s for a head" in row["reason"]
    nothing_is_left(lab)
