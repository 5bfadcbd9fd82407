"""Programs of the user's own on this machine, through the real command: live output, exit code, end, resume."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from test_local_runs import PATIENCE_S, hpcjet, only_run, processes_of, run_command, wait_for

from hpcjet.cluster.state import read_state

pytestmark = pytest.mark.slow

ALONE = ["+exp=mpi", "exp.ranks_per_node=1"]
"""Without Ray: that takes seconds."""


def words(root: Path, *given: str) -> list[str]:
    return [sys.executable, "-m", "hpcjet.launch", f"run.root={root}", *given]


@contextmanager
def started(root: Path, *given: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A launch that goes on; what it prints can be read while it does."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words(root, *given), stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True
    ) as launch:
        try:
            yield launch
        finally:
            launch.kill()


def read_until(launch: "subprocess.Popen[bytes]", expected: bytes) -> bytes:
    assert launch.stdout
    seen = b""
    while expected not in seen:
        piece = os.read(launch.stdout.fileno(), 65536)
        assert piece, seen
        seen += piece
    return seen


def test_a_program_finds_ray_and_its_exit_code_is_the_runs(tmp_path: Path) -> None:
    (tmp_path / "my program.py").write_text(
        "import os, sys, ray\nray.init(address='auto')\n"
        "print(ray.get(ray.remote(lambda x: x + 1).remote(41)), sys.argv[1:])\n"
        "os.system('setsid sleep 300 &')\nsys.exit(7)\n"
    )
    given = ["+exp=ray", f"exp.workdir={tmp_path}", "cluster.object_store_gb=0.1"]
    done = run_command(words(tmp_path / "runs", *given, "--", "python", "my program.py", "a b", "$X"))
    run = only_run(tmp_path / "runs")
    assert done.returncode == 7, done.stdout
    assert "\n42 ['a b', '$X']\n" in done.stdout and "the program ended with exit code 7" in done.stdout
    state = read_state(run.state)
    assert state and state.exit_code == 7
    assert not processes_of(run)
    token = run.secret("ray-token").read_text()
    assert all(token not in log.read_text(errors="replace") for log in run.path.rglob("*.log"))


def test_output_comes_while_the_program_runs(tmp_path: Path) -> None:
    command = r"printf 'half \377'; until [ -e go ]; do sleep 0.05; done; printf ' whole\nlast'"
    with started(tmp_path / "runs", *ALONE, f"exp.workdir={tmp_path}", "--", "bash", "-c", command) as launch:
        seen = read_until(launch, b"half \xff")
        (tmp_path / "go").touch()
        assert launch.stdout
        seen += launch.stdout.read()
        assert launch.wait(PATIENCE_S) == 0
    assert seen.endswith(b"half \xff whole\nlast\n"), seen
    [output] = only_run(tmp_path / "runs").path.glob("logs/*/output.log")
    assert output.read_bytes() == b"half \xff whole\nlast" and output.stat().st_mode & 0o777 == 0o600


def test_a_cancelled_program_saves_its_work_and_resume_runs_it_again(tmp_path: Path) -> None:
    command = (
        "[ -e saved ] && { echo goes on; exit; }; "
        "trap 'touch saved; echo saved; exit' TERM; setsid sleep 900 & echo begins; while :; do sleep 0.05; done"
    )
    with started(tmp_path / "runs", *ALONE, f"exp.workdir={tmp_path}", "--", "bash", "-c", command) as launch:
        read_until(launch, b"begins")
        run = only_run(tmp_path / "runs")
        begin = time.monotonic()
        assert hpcjet("cancel", run.path).returncode == 0
        assert launch.stdout
        rest = launch.stdout.read()
        assert launch.wait(PATIENCE_S) == 130 and time.monotonic() - begin < 600  # the sleep is not waited for
    assert b"saved\n" in rest
    assert not processes_of(run)
    done = hpcjet("resume", run.path)
    assert done.returncode == 0 and "goes on" in done.stdout and "begins" not in done.stdout, done.stdout


def test_kill_9_of_the_driver_takes_the_program_along(tmp_path: Path) -> None:
    command = "setsid sleep 300 & echo begins; sleep 300"
    with started(tmp_path / "runs", *ALONE, "--", "bash", "-c", command) as launch:
        read_until(launch, b"begins")
        run = only_run(tmp_path / "runs")
        [driver] = [line for line in processes_with_ids(run.path) if "hpcjet.drive" in line[1]]
        os.kill(driver[0], signal.SIGKILL)
        assert launch.stdout
        rest = launch.stdout.read().decode()
        assert launch.wait(PATIENCE_S) == 1 and "ended by SIGKILL" in rest, rest
    wait_for(lambda: not processes_of(run))


def processes_with_ids(run: Path) -> list[tuple[int, list[str]]]:
    import psutil

    found = [(process.pid, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [(pid, argv) for pid, argv in found if any(str(run) in word for word in argv)]


def test_a_program_that_is_killed_says_so(tmp_path: Path) -> None:
    done = run_command(words(tmp_path / "runs", *ALONE, "exp.command='kill -9 $$'"))
    assert done.returncode == 137, done.stdout
    assert "the program ended with exit code 137, as after SIGKILL" in done.stdout
