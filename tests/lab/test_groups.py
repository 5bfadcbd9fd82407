"""Groups of nodes on the lab: a heterogeneous job as one run, and nodes that come in jobs of their own."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Login, events, interrupt, leftovers, state_in_queue, wait_for, wait_until_free

from hpcjet.cluster.state import read_state
from hpcjet.lab import Lab
from hpcjet.paths import templates_dir
from hpcjet.rundir import RunDir
from hpcjet.slurm.allocations import Allocation, allocations

pytestmark = [pytest.mark.lab, pytest.mark.slow]

HET = [
    "cluster=lab", "cluster.form=het", "cluster.mem_gb=2", "cluster.object_store_gb=0.1",
    "cluster.groups.head={nodes: 1, cpus_per_node: 1, sbatch: {nodelist: n4}}",
    "cluster.groups.cpu={nodes: 2, cpus_per_node: 2, mem_gb: 3, partition: spot, sbatch: {exclude: n1}}",
]  # fmt: skip
JOBS = [
    "cluster=lab", "cluster.form=jobs", "cluster.mem_gb=2", "cluster.cpus_per_node=1", "cluster.object_store_gb=0.1",
    "cluster.groups.head={}", "cluster.groups.cpu={nodes: 1, max: 3, partition: spot}",
]  # fmt: skip
PROGRAM = """\
import os, time
import ray

ray.init()
wanted, deadline = int(os.environ["WANTED"]), time.monotonic() + 280
while len([node for node in ray.nodes() if node["Alive"]]) < wanted and time.monotonic() < deadline:
    time.sleep(0.2)
sizes = sorted(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
print("CPUs", sizes, "restart", os.environ["HPCJET_RESTART"], flush=True)
while os.path.exists("hold"):
    time.sleep(0.2)
"""


@pytest.fixture
def root(login: Login, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of runs for one test, on the file system that all nodes share."""
    folder = login.home / "tests" / f"{request.node.name.split('[')[0][:40]}-{time.time_ns()}"
    made = login.run("mkdir", "-p", folder)
    assert made.code == 0, made.output
    yield folder


def ray_words(login: Login, root: Path, *, wanted: int) -> list[str]:
    (root / "program.py").write_text(PROGRAM)
    workdir = [f"exp.workdir={root}", f"exp.python={login.bin}/python", f"run.root={root}/runs"]
    return ["+exp=ray", *workdir, f"+cluster.env.WANTED='{wanted}'", "--", "python", "program.py"]


def with_words(words: list[str], *more: str) -> list[str]:
    """More overrides, in front of the program."""
    split = words.index("--")
    return [*words[:split], *more, *words[split:]]


def said(run: RunDir) -> str:
    return "".join(file.read_text() for file in run.path.glob("logs/*/output.log"))


def only(root: Path) -> RunDir:
    wait_for(lambda: bool(list(root.glob("runs/*/*/plan.json"))), what="the run")
    (path,) = root.glob("runs/*/*")
    return RunDir(path)


def test_a_heterogeneous_job_is_one_run(lab: Lab, login: Login, root: Path) -> None:
    done = login.launch("+exp=noop", *HET, f"run.root={root}")
    assert done.code == 0 and done.run, done.output
    assert len(set(json.loads((done.run.path / "noop.json").read_text())["hosts"])) == 3
    up = [row for row in events(done.run) if row["event"] == "agent_up"]
    assert {row["rank"]: row["host"] for row in up} == {0: "n4", 1: "n2", 2: "n3"}, "the head is the first component's"
    logs = "".join(file.read_text() for file in done.run.path.glob("logs/*/n*.log"))
    assert (
        "node 0 of 3: n4, 1 CPUs" in logs and "node 2 of 3: n3, 2 CPUs" in logs and "are told differently" not in logs
    )
    wait_until_free(lab, lab.nodes, timeout_s=10, left=leftovers)


def test_ray_over_the_components_a_requeue_and_a_cancel(lab: Lab, login: Login, root: Path) -> None:
    (root / "hold").touch()
    words = with_words(ray_words(login, root, wanted=3), *HET)
    launch = login.start(*words)
    try:
        run = only(root)
        wait_for(lambda: "CPUs [1.0, 2.0, 2.0] restart 0" in said(run), what=f"three nodes: {said(run)}")
        job = json.loads(run.submission.read_text())["job_id"]
        assert login.run("scontrol", "requeue", job).code == 0
        both = {"PENDING"}
        wait_for(lambda: set(state_in_queue(login, job).split()) == both, what="both in the queue again")
        assert login.run("scontrol", "update", f"JobId={job}", "StartTime=now").code == 0
        wait_for(lambda: "CPUs [1.0, 2.0, 2.0] restart 1" in said(run), what="the second start")
        cancelled = login.hpcjet("cancel", str(run))
        assert cancelled.code == 0, cancelled.output
        assert launch.wait(timeout=300) == 130
        assert login.run("squeue", "-h", "-t", "PD,R", "-o", "%i", "-n", "hpcjet-ray").output.split() == []
        wait_until_free(lab, lab.nodes, timeout_s=15, left=leftovers)
    finally:
        end(login, root, launch)


def test_nodes_come_in_jobs_of_their_own_and_all_end_with_the_run(lab: Lab, login: Login, root: Path) -> None:
    """One job is submitted by the launch, one by a person's own script."""
    (root / "hold").touch()
    words = with_words(ray_words(login, root, wanted=3), *JOBS)
    launch = login.start(*words)
    try:
        run = only(root)
        wait_for(lambda: len(jobs(run)) == 1, what="the first worker allocation")
        env = {"HPCJET_VENV": str(login.bin.parent)}
        options = ["--cpus-per-task=1", "--mem=2G", "--time=10", f"--chdir={root}"]
        own = login.run("sbatch", "--parsable", *options, templates_dir() / "worker.sbatch", str(run), "cpu", env=env)
        assert own.code == 0, own.output
        wait_for(lambda: "CPUs [1.0, 1.0, 1.0]" in said(run), what=f"three nodes: {said(run)}")
        shown = login.hpcjet("status", str(run)).output
        assert "worker allocations: 2 running" in shown and f"cpu-2: 1 node, Slurm job {own.output.strip()}" in shown
        listed = login.hpcjet("runs", "--root", f"{root}/runs").output
        assert " +2" in listed, listed
        assert "log" in login.hpcjet("logs", str(run), "--group", "cpu").output
        (root / "hold").unlink()
        assert launch.wait(timeout=300) == 0
        state = read_state(run.state)
        assert state and state.exit_code == 0
        wait_for(lambda: ended(login, run), what="the end of the worker allocations")
        wait_until_free(lab, lab.nodes, timeout_s=15, left=leftovers)
    finally:
        end(login, root, launch)


def end(login: Login, root: Path, launch: "subprocess.Popen[str]") -> None:
    """Leave nothing of a test that failed."""
    if launch.poll() is None:
        interrupt(launch)
        launch.wait(timeout=300)
        login.hpcjet("cancel", str(only(root)))
    launch.communicate(timeout=300)


def jobs(run: RunDir) -> list[Allocation]:
    return [each for each in allocations(run) if each.job_id]


def ended(login: Login, run: RunDir) -> bool:
    return {state_in_queue(login, each.job_id) for each in jobs(run)} <= {"", "COMPLETED"}
