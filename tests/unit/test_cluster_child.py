"""Child processes, for real: they end with us, whatever we or they do."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hpcjet.cluster.child import Child, tail

ROOT = Path(__file__).parents[2]


def wait_for(condition: object, what: str, timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pids(file: Path, count: int) -> list[int]:
    wait_for(lambda: file.exists() and len(file.read_text().split()) >= count, f"{count} ids in {file}")
    return [int(word) for word in file.read_text().split()]


def shell(tmp_path: Path, script: str) -> Child:
    return Child("sh", ["bash", "-c", script], env=dict(os.environ), log=tmp_path / "logs" / "sh.log", cwd=tmp_path)


def test_output_goes_to_a_private_log_and_the_code_comes_back(tmp_path: Path) -> None:
    child = shell(tmp_path, "echo out; echo err >&2; read line; echo got $line; exit 7")
    child.say("a word")
    assert child.wait(300) == 7 == child.returncode
    assert child.log.read_text().split("\n")[:3] == ["out", "err", "got a word"]
    assert stat.S_IMODE(child.log.stat().st_mode) == 0o600
    child.say("nobody listens")
    child.stop(1)


def test_a_child_has_a_session_of_its_own_and_only_its_environment(tmp_path: Path) -> None:
    child = Child("env", [sys.executable, "-c", "import os; print(os.getsid(0), os.environ.get('HOME'))"],
                  env={"PATH": os.environ["PATH"]}, log=tmp_path / "log")  # fmt: skip
    child.wait(300)
    child.stop(1)
    assert child.log.read_text() == f"{child.pid} None\n"


def test_sigterm_comes_first(tmp_path: Path) -> None:
    child = shell(tmp_path, "trap 'echo ended in order; exit 3' TERM; echo up; while :; do sleep 0.02; done")
    wait_for(lambda: "up" in child.log.read_text(), "the trap")
    child.stop(300)
    assert child.returncode == 3 and "ended in order" in child.log.read_text()


@pytest.mark.alone
def test_what_ignores_sigterm_is_killed_after_the_time_limit(tmp_path: Path) -> None:
    child = shell(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.02; done")
    wait_for(lambda: "up" in child.log.read_text(), "the trap")
    begin = time.monotonic()
    child.stop(0.3)
    assert child.returncode == -signal.SIGKILL and 0.3 <= time.monotonic() - begin < 4


def test_stop_ends_the_whole_session_groups_of_their_own_too(tmp_path: Path) -> None:
    # set -m puts each background job into a process group of its own, as Ray does with its parts.
    child = shell(tmp_path, "set -m; sleep 999 & echo $! >> ids; (sleep 999 & echo $! >> ids; wait) & sleep 999 & "
                            "echo $! >> ids; wait")  # fmt: skip
    members = pids(tmp_path / "ids", 3)
    assert len({os.getpgid(pid) for pid in members}) > 1
    child.stop(0)
    assert all(gone(pid) for pid in members)


def test_stop_ends_what_outlived_the_leader(tmp_path: Path) -> None:
    child = shell(tmp_path, "sleep 999 & echo $! > ids; exit 0")
    [left] = pids(tmp_path / "ids", 1)
    assert child.wait(300) == 0
    child.stop(1)
    assert gone(left)


def run_parent(tmp_path: Path, body: str) -> subprocess.Popen[bytes]:
    code = f"import os, sys, time\nfrom pathlib import Path\nfrom hpcjet.cluster.child import *\n{body}"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=env, stdout=subprocess.PIPE)


def test_the_kernel_kills_it_when_we_are_killed(tmp_path: Path) -> None:
    with run_parent(
        tmp_path,
        "child = Child('x', ['sleep', '999'], env=os.environ, log=Path('log'))\n"
        "Path('ids').write_text(f'{child.pid} ')\ntime.sleep(999)\n",
    ) as parent:
        [child] = pids(tmp_path / "ids", 1)
        assert not gone(child)
        parent.kill()
        parent.wait()
        wait_for(lambda: gone(child), "the child's end")


def test_orphans_that_left_the_session_are_ended_and_reaped(tmp_path: Path) -> None:
    escape = (
        "setsid sleep 999 & echo $! >> ids; setsid bash -c 'setsid sleep 999 & echo $! >> ids; wait' & "
        "until [ $(wc -l <ids) = 2 ]; do sleep 0.02; done"
    )
    with run_parent(
        tmp_path,
        "adopt_orphans()\n"
        f"child = Child('x', ['bash', '-c', {escape!r}], env=os.environ, log=Path('log'))\n"
        "child.wait(300); child.stop(0); end_orphans()\n"
        "import psutil; print(len(psutil.Process().children(recursive=True)))\n",
    ) as parent:
        assert parent.stdout is not None and parent.stdout.read() == b"0\n"
    assert all(gone(pid) for pid in pids(tmp_path / "ids", 2))


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"", "(empty)"),
        (b"a\nb\nc\n", "b\nc"),
        (b"x" * 20_000 + b"\nlast\n", "x" * (16_384 - 6) + "\nlast"),
        (b"caf\xe9", "caf\ufffd"),
    ],
    ids=["empty", "lines", "long line", "not UTF-8"],
)
def test_tail(tmp_path: Path, content: bytes, shown: str) -> None:
    (tmp_path / "log").write_bytes(content)
    assert tail(tmp_path / "log", 2) == shown


def test_tail_of_nothing(tmp_path: Path) -> None:
    assert tail(tmp_path / "none") == f"(cannot read {tmp_path / 'none'}: No such file or directory)"
