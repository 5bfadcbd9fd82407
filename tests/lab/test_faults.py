"""The fault table: what is broken, what the run makes of it, and how soon every node is free. docs/faults.md tells it.

`--repeats 5` runs each row five times; the times are written to the folder that HPCJET_FAULT_TIMES names.
"""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from launching import (
    AtWork,
    Login,
    busy,
    events,
    kill_driver,
    kill_on,
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
        wait_for(lost, what="the loss in events.jsonl")
        work.end_work()

    return inject_and_end


def crash_head(work: AtWork) -> None:
    work.lab.crash(work.nodes[0])


def crash_worker(work: AtWork) -> None:
    work.lab.crash(work.nodes[-1])


def scancel(work: AtWork) -> None:
    done = work.login.run("scancel", work.job)
    assert done.code == 0, done.output


def submitted(work: AtWork) -> bool:
    return bool(list(work.folder.glob("runs/*/*/submission.json"))) and bool(state_in_queue(work.login, work.job))


def runs_on(word: str, which: int) -> Callable[[AtWork], bool]:
    """Whether a process with this word in its command line runs on the first or the last node of the job."""

    def found(work: AtWork) -> bool:
        if not submitted(work) or state_in_queue(work.login, work.job) != "RUNNING":
            return False
        node = work.nodes[which]
        return any(word in argument for process in work.lab.processes(node) for argument in process.argv)

    return found


def mend(work: AtWork) -> None:
    for node in work.lab.nodes:
        if work.lab.status().nodes[f"n{node}"] in ("crashed", "down", "down*"):
            work.lab.restart(node)


def end_orphans_of_slurm(work: AtWork) -> None:
    """Without its slurmstepd the batch script is nobody's, and the run goes on."""
    kill_stepd(work, work.nodes[0], "slurm_script")
    time.sleep(2)
    work.end_work()


FAULTS = [
    Fault("the-program-returns", lambda work: work.end_work(), 0, "COMPLETED 0:0", 2),
    Fault("the-program-fails", lambda work: work.end_work(7), 7, "FAILED 7:0", 2, "exit code 7"),
    Fault("driver", lambda work: kill_driver(work.lab, work.run), 1, "FAILED 1:0", 2, "driver was ended by SIGKILL"),
    Fault("head-gcs", kill_head("gcs_server"), 3, "FAILED 3:0", 10, "Ray on {head} ended before the work was done"),
    Fault("head-raylet", kill_head("raylet/raylet"), 3, "FAILED 3:0", 10, "Ray on {head} ended before the work was"),
    Fault("head-agent", kill_head(AGENT), 3, "FAILED 3:0", 10, "the node agent of the head, {head}, was killed"),
    Fault("head-step-slurmstepd", lambda work: kill_stepd(work, work.nodes[0], AGENT), 3, "FAILED 3:0", 10,
          "slurmstepd"),
    Fault("head-batch-slurmstepd", end_orphans_of_slurm, 0, "NODE_FAIL", 12),
    Fault("worker-agent", kill_worker(AGENT), 3, "FAILED 3:0", 10, f"lost {{worker}}: {KILLED}", FAIL),
    Fault("worker-raylet", kill_worker("raylet/raylet"), 3, "FAILED 3:0", 10, "Ray on {worker} ended before", FAIL),
    Fault("worker-slurmstepd", lambda work: kill_stepd(work, work.nodes[-1], AGENT), 3, "FAILED 3:0", 10,
          "lost {worker}: what started the node agent", FAIL),
    Fault("worker-power", crash_worker, 3, "FAILED 3:0", 10, f"lost {{worker}}: {KILLED}", FAIL, mend),
    Fault("worker-agent-continue", then_end(kill_worker(AGENT)), 0, "COMPLETED 0:0", 10, "", CONTINUE),
    Fault("worker-raylet-continue", then_end(kill_worker("raylet/raylet")), 0, "COMPLETED 0:0", 10, "", CONTINUE),
    Fault("worker-power-continue", then_end(crash_worker), 0, "COMPLETED 0:0", 12, "", CONTINUE, mend),
]  # fmt: skip


def kill_stepd(work: AtWork, node: int, word: str) -> None:
    """kill -9 of the slurmstepd above a process of the job; its own title is cut short by a long job id."""
    lab = work.lab
    mine = [p for p in lab.processes(node) if p.user == lab.user.name and p.argv[0] != "srun"]
    below = next(p.pid for p in mine if any(word in each for each in p.argv))
    above = lab.on_node(node, ["ps", "-o", "ppid=", "-p", str(below)]).stdout.strip()
    assert lab.on_node(node, ["ps", "-o", "comm=", "-p", above]).stdout.startswith("slurmstepd")
    killed = lab.on_node(node, ["kill", "-9", above])
    assert killed.returncode == 0, killed.stderr


MOMENTS = {
    "pending": (submitted, ("+cluster.sbatch.begin=now+1hour",)),
    "agents-start": (runs_on(AGENT, -1), ()),
    "ray-head-starts": (runs_on("gcs_server", 0), ()),
    "workers-join": (runs_on("raylet/raylet", -1), ()),
    "program-runs": (lambda work: (work.folder / "at-work").exists(), ()),
}


@pytest.fixture
def folder(login: Login) -> Path:
    """A folder of the test's own, on the file system that all nodes share."""
    path = login.home / "tests" / f"fault-{time.time_ns()}"
    made = login.run("mkdir", "-p", path)
    assert made.code == 0, made.output
    return path


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "repeat" in metafunc.fixturenames:
        metafunc.parametrize("repeat", range(metafunc.config.getoption("--repeats")))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_fault(login: Login, folder: Path, fault: Fault, repeat: int) -> None:
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
    wait_until_free(work.lab, nodes, timeout_s=90)
    free_s = time.monotonic() - began
    ended = work.ended()
    answer = sacct(work.login, job)
    record(fault.id, free_s=free_s, launch_s=time.monotonic() - began)
    assert ended.code == fault.code, ended.output
    assert f"{answer['state']} {answer['code']}".startswith(fault.job), answer
    names = {"head": f"n{nodes[0]}", "worker": f"n{nodes[-1]}"}
    assert fault.reason.format(**names) in ended.output, ended.output
    final = read_state(work.run.state)
    assert final and final.exit_code == fault.code and fault.reason.format(**names) in final.reason
    assert free_s <= fault.free_s * busy()


def record(row: str, **seconds: float) -> None:
    """For docs/faults.md."""
    if file := os.environ.get("HPCJET_FAULT_TIMES"):
        with Path(file).open("a") as out:
            out.write(json.dumps({"row": row, **seconds}) + "\n")


@pytest.mark.parametrize("moment", MOMENTS)
def test_scancel_at_any_moment_of_the_boot(login: Login, folder: Path, moment: str, repeat: int) -> None:
    came, overrides = MOMENTS[moment]
    with start_work(login, folder, *SMALL, *overrides) as work:
        wait_for(lambda: came(work), what=moment)
        job, began = work.job, time.monotonic()
        scancel(work)
        wait_until_free(work.lab, work.lab.nodes, timeout_s=30)
        free_s = time.monotonic() - began
        ended = work.ended()
        record(f"scancel-{moment}", free_s=free_s, launch_s=time.monotonic() - began)
        assert ended.code == 130 and "Traceback" not in ended.output, ended.output
        assert sacct(login, job)["state"].startswith("CANCELLED")
        assert free_s <= 7 * busy()


def test_sigterm_to_the_launch_leaves_the_run(login: Login, folder: Path) -> None:
    with start_work(login, folder, *SMALL) as work:
        work.await_work()
        work.launch.terminate()
        ended = work.ended()
        assert ended.code == 130 and "The run goes on" in ended.output, ended.output
        work.end_work(7)
        assert sacct(login, work.job)["code"] == "7:0"
        wait_until_free(work.lab, work.lab.nodes, timeout_s=5)


def test_a_full_tmp_is_passed_over(lab: Lab, login: Login, folder: Path) -> None:
    nodes = [1, 2]
    fill = "mount -t tmpfs -o size=1m,mode=1777 tmpfs /tmp && head -c 2M /dev/zero >/tmp/full; df /tmp"
    try:
        for node in nodes:
            assert " 100% " in lab.on_node(node, ["sh", "-c", fill]).stdout
        with start_work(login, folder, *SMALL, "cluster.nodelist='n1,n2'") as work:
            work.await_work()
            assert any("/var/tmp/hj-" in argument for p in lab.processes(1) for argument in p.argv)
            work.end_work()
            assert work.ended().code == 0
            wait_until_free(lab, nodes, timeout_s=5)
    finally:
        for node in nodes:
            lab.on_node(node, ["umount", "/tmp"])


@pytest.fixture
def small_disk(lab: Lab, folder: Path) -> Iterator[Path]:
    """A file system of 16 MB that the login node and two nodes share: one block device, so one state for all."""
    image, point = folder / "image", folder / "disk"
    image.write_bytes(b"")
    os.truncate(image, 16 * 1024**2)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    device = subprocess.run(["losetup", "--find", "--show", image], check=True, text=True, stdout=subprocess.PIPE)
    mount = ["mount", "-t", "ext4", device.stdout.strip(), str(point)]
    point.mkdir()
    try:
        subprocess.run(mount, check=True)
        os.chown(point, lab.user.uid, -1)
        for node in (1, 2):
            assert lab.on_node(node, mount).returncode == 0
        yield point
    finally:
        for node in (1, 2):
            lab.on_node(node, ["umount", "--lazy", str(point)])
        subprocess.run(["umount", "--lazy", point], check=False)
        subprocess.run(["losetup", "--detach", device.stdout.strip()], check=False)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "full").open("wb", buffering=0) as file:
        while file.write(b"\0" * 4096):
            pass


def test_a_run_directory_that_fills_up(lab: Lab, login: Login, folder: Path, small_disk: Path) -> None:
    with start_work(login, folder, *SMALL, "cluster.nodelist='n1,n2'", f"run.root={small_disk}/runs") as work:
        wait_for((folder / "at-work").exists, what="the program at work")
        fill(small_disk)
        began = time.monotonic()
        work.end_work()
        wait_until_free(lab, [1, 2], timeout_s=30)
        record("full-run-directory", free_s=time.monotonic() - began)
        ended = work.ended()
        assert ended.code == 3, ended.output
        assert f"(no space is left in {small_disk}" in ended.output, ended.output


def test_a_run_directory_that_is_full_from_the_start(login: Login, small_disk: Path) -> None:
    fill(small_disk)
    done = login.launch("+exp=noop", "cluster=lab", f"run.root={small_disk}/runs")
    assert done.code == 3 and "Traceback" not in done.output and "No space left" in done.output, done.output
