"""Whole runs on the lab, by an ordinary user: the same verdicts as on one machine, a prompt end, nothing lost."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import (
    PROJECT,
    Login,
    events,
    interrupt,
    kill_driver,
    leftovers,
    only_run,
    recorded,
    run_of,
    sacct,
    wait_for,
    wait_until_free,
)

from hpcjet.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NODES = ["cluster=lab", "cluster.nodes=3", "cluster.cpus_per_node=2"]


@pytest.fixture
def root(login: Login, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of runs for one test, on the file system that all nodes share."""
    folder = login.home / "tests" / f"{request.node.name.split('[')[0]}-{time.time_ns()}"
    made = login.run("mkdir", "-p", folder)
    assert made.code == 0, made.output
    yield folder


def job_id(output: str) -> str:
    return next(line.split()[-1] for line in output.splitlines() if line.startswith("Slurm job"))


def test_noop_reaches_every_node_and_leaves_nothing(lab: Lab, login: Login, root: Path) -> None:
    done = login.launch("+exp=noop", *NODES, f"run.root={root}")
    assert done.code == 0 and done.run, done.output
    answer = json.loads((done.run.path / "noop.json").read_text())
    assert len(set(answer["hosts"])) == 3
    assert sacct(login, job_id(done.output))["code"] == "0:0"
    wait_until_free(lab, lab.nodes, timeout_s=5, left=leftovers)
    assert not [
        path for node in lab.nodes for path in lab.on_node(node, ["ls", "/tmp"]).stdout.split() if "hj-" in path
    ]


def test_nothing_in_the_run_directory_is_open_to_others(login: Login, root: Path) -> None:
    done = login.launch("+exp=noop", *NODES, f"run.root={root}")
    assert done.run, done.output
    assert done.run.path.stat().st_mode & 0o077 == 0
    token = done.run.secret("ray-token")
    assert token.stat().st_mode & 0o777 == 0o600
    for log in done.run.path.rglob("*.log"):
        assert token.read_text() not in log.read_text(errors="replace"), log


def test_root_goes_on_as_the_labs_user(lab: Lab, login: Login) -> None:
    command = [sys.executable, "-m", "hpcjet.launch", "+exp=noop", *NODES]
    done = subprocess.run(command, cwd=PROJECT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    run = run_of(done.stdout)
    assert run and run.path.is_relative_to(login.home)
    assert run.path.stat().st_uid == lab.user.uid


def test_a_partition_that_does_not_exist(login: Login, root: Path) -> None:
    done = login.launch("+exp=noop", *NODES, "cluster.partition=nope", f"run.root={root}")
    assert done.code == 2
    assert "cluster.partition=nope does not exist on this cluster: choose one of batch, spot" in done.output
    assert not list(root.glob("*/*")), "nothing is left behind"


def test_a_request_that_slurm_refuses(login: Login, root: Path) -> None:
    # Only Slurm knows its reservations.
    done = login.launch("+exp=noop", *NODES, "+cluster.sbatch.reservation=nobodys", f"run.root={root}")
    assert done.code in (2, 3), done.output
    assert "Slurm refused the job" in done.output and "Traceback" not in done.output
    early = login.launch("+exp=noop", *NODES, "cluster.account=nobodys", f"run.root={root}")
    assert early.code == 2 and "cluster.account=nobodys" in early.output


def test_an_engine_that_is_not_there_ends_the_job_with_its_code(login: Login, tasks: None, root: Path) -> None:
    words = ["engine=openai", "engine.base_url=http://127.0.0.1:9/v1", "engine.model=none", "engine.api_key_env=''"]
    done = login.launch("+exp=swe", *NODES, *words, "engine.start_timeout_s=3", f"run.root={root}")
    assert done.code == 3, done.output
    assert "127.0.0.1:9" in done.output and "Traceback" not in done.output
    assert sacct(login, job_id(done.output))["code"] == "3:0"


def test_agents_on_three_nodes_resolve_what_one_machine_resolves(
    lab: Lab, login: Login, tasks: None, root: Path
) -> None:
    done = login.launch("+exp=swe", *NODES, f"run.root={root}", timeout_s=600)
    assert done.code == 0 and done.run, done.output
    wait_until_free(lab, lab.nodes, timeout_s=5, left=leftovers)
    report = login.report(done.run)
    assert (report["tasks"], report["attempts"], report["resolved"]) == (8, 8, 8)
    assert len(report["nodes"]) == 3, report["nodes"]
    assert len(recorded(done.run)) == len(set(recorded(done.run))) == 8
    assert done.run.report.stat().st_size > 10_000
    users = {path.stat().st_uid for path in done.run.path.rglob("*")}
    assert users == {lab.user.uid}


@pytest.mark.parametrize("mode", ["empty", "wrong"])
def test_agents_that_do_not_solve_resolve_nothing(login: Login, tasks: None, root: Path, mode: str) -> None:
    done = login.launch("+exp=swe", *NODES, f"engine.mode={mode}", "exp.limit=4", f"run.root={root}")
    assert done.code == 0 and done.run, done.output
    report = login.report(done.run)
    assert report["resolved"] == 0
    expected = {"empty": {"empty_patch": 4}, "wrong": {"failed": 4}}[mode]
    assert {name: count for name, count in report["verdicts"].items() if count} == expected


def half_done(login: Login, root: Path) -> "subprocess.Popen[str]":
    """A launch of ten attempts of which some are recorded and some are under way."""
    words = ["exp.limit=5", "exp.attempts=2", "engine.latency_s=0.3"]
    launch = login.start("+exp=swe", *NODES, *words, f"run.root={root}")

    def some() -> bool:
        assert launch.poll() is None, launch.communicate()[0]
        return len(list(root.glob("*/*"))) == 1 and len(recorded(only_run(root))) >= 3

    wait_for(some, what="three results")
    return launch


def finish(lab: Lab, login: Login, root: Path, before: list[tuple[str, int]]) -> None:
    """Resume, and find every attempt recorded once, with what was recorded before still there."""
    wait_until_free(lab, lab.nodes, timeout_s=15, left=leftovers)
    done = login.hpcjet("resume", only_run(root).path, timeout_s=600)
    assert done.code == 0, done.output
    after = recorded(only_run(root))
    assert len(after) == len(set(after)) == 10
    assert set(before) <= set(after)
    assert login.report(only_run(root))["resolved"] == 5


def test_kill_9_of_the_driver_then_resume(lab: Lab, login: Login, tasks: None, root: Path) -> None:
    launch = half_done(login, root)
    run = only_run(root)
    kill_driver(lab, run)
    output = launch.communicate(timeout=300)[0]
    assert launch.returncode == 1, output
    assert "ended by SIGKILL" in output and "hpcjet resume" in output
    before = recorded(run)
    assert 3 <= len(before) < 10
    finish(lab, login, root, before)


def test_scancel_then_resume(lab: Lab, login: Login, tasks: None, root: Path) -> None:
    launch = half_done(login, root)
    run = only_run(root)
    busy = login.hpcjet("resume", run.path)
    assert busy.code == 2 and "is in use by another launch, Slurm job" in busy.output, busy.output
    cancelled = login.hpcjet("cancel", run.path)
    assert cancelled.code == 0, cancelled.output
    output = launch.communicate(timeout=300)[0]
    assert launch.returncode == 130, output
    before = recorded(run)
    assert len(before) < 10
    finish(lab, login, root, before)


def test_after_a_power_loss_of_a_worker_the_run_goes_on(lab: Lab, login: Login, tasks: None, root: Path) -> None:
    launch = half_done(login, root)
    run = only_run(root)
    victim = next(
        node for node in lab.nodes
        if any("hpcjet.cluster.raynode" in p.argv for p in lab.processes(node))
        and not any("hpcjet.drive" in p.argv for p in lab.processes(node))
    )  # fmt: skip
    before = recorded(run)
    try:
        lab.crash(victim)
        output = launch.communicate(timeout=300)[0]
        assert launch.returncode == 0, output
    finally:
        lab.restart(victim)
    after = recorded(run)
    assert len(after) == len(set(after)) == 10 and set(before) <= set(after)
    lost = [row["host"] for row in events(run) if row["event"] == "node_lost"]
    assert lost == [f"n{victim}"]
    assert not list(run.path.glob("logs/*-1")), "it did not start again"


def test_ctrl_c_without_a_terminal_leaves_the_run_going(login: Login, tasks: None, root: Path) -> None:
    launch = login.start("+exp=swe", *NODES, "exp.limit=2", f"run.root={root}")
    wait_for(lambda: bool(list(root.glob("*/*/submission.json"))), what="the submission")
    time.sleep(3)
    interrupt(launch)
    output = launch.communicate(timeout=300)[0]
    assert launch.returncode == 130, output
    assert "The run goes on" in output and "Traceback" not in output
    run = run_of(output)
    assert run
    followed = login.hpcjet("status", run.path, "--follow")
    assert followed.code == 0, followed.output
    assert login.report(run)["resolved"] == 2
