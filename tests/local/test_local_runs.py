"""Whole runs on this machine, through the real command, Ray, sandboxes and the oracle; the tasks are tiny."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tasks_scenes import Project, new_folder

from hpcjet.rundir import RunDir
from hpcjet.sandbox.orphans import abandoned
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.tasks.jsonl import dump_tasks

pytestmark = pytest.mark.slow

NUM_TASKS = 6
PATIENCE_S = 600.0
"""What takes 15 s on a quiet machine took two minutes beside the lab, at the nice level of `make test`."""


class Scene:
    """A folder with tasks, repositories and runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        project = Project(folder)
        task = project.task()
        self.tasks = folder / "tasks.jsonl"
        dump_tasks(self.tasks, [replace(task, instance_id=f"own__calc-{number}") for number in range(NUM_TASKS)])

    def words(self, *overrides: str, root: Path) -> list[str]:
        return [
            sys.executable, "-m", "hpcjet.launch", "+exp=swe", "exp.limit=0", f"exp.tasks={self.tasks}",
            f"exp.repos={self.folder / 'repos'}", f"exp.trees={self.folder / 'trees'}",
            f"run.root={root}", *overrides,
        ]  # fmt: skip

    def launch(self, *overrides: str) -> "tuple[subprocess.CompletedProcess[str], RunDir]":
        """A launch that ended, and its run."""
        root = self._new_root()
        done = run_command(self.words(*overrides, root=root))
        return done, only_run(root)

    @contextmanager
    def started(self, *overrides: str, root: Path | None = None) -> "Iterator[tuple[subprocess.Popen[str], RunDir]]":
        """A launch that goes on, with at least one result recorded."""
        root = root or self._new_root()
        words = self.words(*overrides, root=root)
        pipe = subprocess.PIPE
        with subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as launch:
            try:
                wait_for(lambda: list(root.glob("*/*")) and recorded(only_run(root)))
                yield launch, only_run(root)
            finally:
                launch.kill()

    def _new_root(self) -> Path:
        return self.folder / f"runs-{secrets.token_hex(4)}"


def only_run(root: Path) -> RunDir:
    (path,) = root.glob("*/*")
    return RunDir(path)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    folder = new_folder()
    yield Scene(folder)
    remove_tree(folder)


def run_command(words: list[str], timeout_s: float = PATIENCE_S) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=timeout_s, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip


def hpcjet(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return run_command([sys.executable, "-c", "from hpcjet.cli import main; main()", *map(str, words)])


def report(run: RunDir) -> dict[str, object]:
    done = hpcjet("report", run.path, "--json")
    assert done.returncode == 0, done.stdout
    data = json.loads(done.stdout)
    assert isinstance(data, dict)
    return data


def recorded(run: RunDir) -> list[tuple[str, int]]:
    rows = [json.loads(line) for segment in run.results.glob("*") for line in segment.read_text().splitlines()]
    return [(row["instance_id"], row["attempt"]) for row in rows]


def wait_for(condition: Callable[[], object], *, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def processes_of(run: RunDir) -> list[str]:
    """What still runs for a run, wherever it detached itself to: by the run directory in argv or environment."""
    found = []
    for process in psutil.process_iter():
        try:
            text = " ".join(process.cmdline()) + " ".join(process.environ().values())
        except psutil.Error:
            continue
        if str(run.path) in text and process.pid != os.getpid():
            found.append(" ".join(process.cmdline()))
    return found


def driver_of(run: RunDir) -> psutil.Process:
    for process in psutil.process_iter(["cmdline"]):
        argv = process.info["cmdline"] or []
        if "hpcjet.drive" in argv and str(run.plan) in argv:
            return process
    raise AssertionError(f"no driver of {run}")


@pytest.mark.parametrize(
    ("mode", "resolved", "verdict"),
    [("solve", NUM_TASKS, "resolved"), ("empty", 0, "empty_patch"), ("wrong", 0, "failed")],
)
def test_the_oracle_decides(scene: Scene, mode: str, resolved: int, verdict: str) -> None:
    done, run = scene.launch(f"engine.mode={mode}")
    assert done.returncode == 0, done.stdout
    assert "oracle (plays known solutions, no model)" in done.stdout and "report.html" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if not line.startswith(("run", "report"))) <= 80
    figures = report(run)
    assert (figures["tasks"], figures["attempts"], figures["resolved"]) == (NUM_TASKS, NUM_TASKS, resolved)
    assert figures["verdicts"][verdict] == NUM_TASKS  # type: ignore[index]
    assert not processes_of(run)


def test_the_reference_scaffold_needs_no_engine(scene: Scene) -> None:
    done, run = scene.launch("exp.scaffold=reference")
    assert done.returncode == 0, done.stdout
    assert report(run)["resolved"] == NUM_TASKS
    assert not list((run.path / "logs").rglob("engine.log"))


def test_mixed_behaviour_is_judged_attempt_by_attempt(scene: Scene) -> None:
    done, run = scene.launch("engine.mode=mixed", "exp.attempts=3", "exp.command_timeout_s=10", "exp.step_limit=12")
    assert done.returncode == 0, done.stdout
    figures = report(run)
    verdicts = {name: count for name, count in figures["verdicts"].items() if count}  # type: ignore[attr-defined]
    assert sum(verdicts.values()) == 3 * NUM_TASKS and len(verdicts) >= 3, verdicts
    assert "infrastructure" not in verdicts, verdicts


def test_kill_9_of_the_driver_then_resume_at_once(scene: Scene) -> None:
    with scene.started("engine.latency_s=0.4", "exp.attempts=3", "exp.cpus=0.5") as (launch, run):
        driver = driver_of(run)
        driver.suspend()  # a busy machine may take longer for the next command than the run takes to its end
        busy = hpcjet("resume", run.path)
        assert busy.returncode == 2 and "is in use by another launch" in busy.stdout, busy.stdout
        driver.kill()
        output = launch.communicate(timeout=PATIENCE_S)[0]
    assert launch.returncode == 1 and "ended by SIGKILL" in output, output
    assert not processes_of(run)
    finish(run, attempts=3)
    done = recorded(run)
    again = hpcjet("resume", run.path)
    assert again.returncode == 0 and recorded(run) == done, again.stdout


def test_kill_9_of_the_node_agent_leaves_no_process(scene: Scene) -> None:
    with scene.started("engine.latency_s=0.4", "exp.attempts=3", "exp.cpus=0.5") as (launch, run):
        agent = driver_of(run).parent()
        assert agent is not None and "submitit.core._submit" in agent.cmdline()
        agent.kill()
        output = launch.communicate(timeout=PATIENCE_S)[0]
    assert launch.returncode == 3 and "without a word" in output, output
    deadline = time.monotonic() + PATIENCE_S
    while (left := processes_of(run)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    wait_for(lambda: not abandoned())  # starts of sandboxes, which bear no name of the run
    finish(run, attempts=3)


def test_cancel_then_resume(scene: Scene) -> None:
    # Slow calls: a busy machine takes long to start `hpcjet cancel`.
    with scene.started("engine.latency_s=1", "exp.attempts=3", "exp.cpus=0.5") as (launch, run):
        assert hpcjet("cancel", run.path).returncode == 0
        output = launch.communicate(timeout=PATIENCE_S)[0]
    assert launch.returncode == 130, output
    assert not processes_of(run)
    finish(run, attempts=3)


def test_ctrl_c_without_a_terminal_leaves_it_going(scene: Scene) -> None:
    with scene.started("engine.latency_s=0.4", "exp.attempts=3", "exp.cpus=0.5") as (launch, run):
        os.killpg(launch.pid, signal.SIGINT)
        output = launch.communicate(timeout=PATIENCE_S)[0]
    assert launch.returncode == 130 and "The run goes on" in output, output
    done = hpcjet("status", run.path, "--follow")
    assert done.returncode == 0, done.stdout
    assert report(run)["resolved"] == NUM_TASKS


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_loses_nothing_and_says_what_to_do(scene: Scene) -> None:
    small = scene.folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=755", "tmpfs", small], check=True)
    try:
        with scene.started("engine.latency_s=0.4", "exp.attempts=3", "exp.cpus=0.5", root=small) as (launch, run):
            fill = small / "fill"
            with pytest.raises(OSError), fill.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
            output = launch.communicate(timeout=PATIENCE_S)[0]
        assert launch.returncode == 3, output
        assert "No space left" in output and "Traceback" not in output, output
        fill.unlink()
        finish(run, attempts=3)
    finally:
        subprocess.run(["umount", small], check=True)


def finish(run: RunDir, *, attempts: int) -> None:
    """Resume; then every attempt is recorded once, and what was recorded before is still there."""
    before = recorded(run)
    assert len(before) < attempts * NUM_TASKS
    done = hpcjet("resume", run.path)
    assert done.returncode == 0, done.stdout
    after = recorded(run)
    assert len(after) == len(set(after)) == attempts * NUM_TASKS and set(before) <= set(after)
