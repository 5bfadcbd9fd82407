import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import pytest

from hpcjet.errors import BusyError, StoreError
from hpcjet.runlock import RunLock, holder, this_process

HOLD = """
import sys, time
from pathlib import Path
from hpcjet.runlock import RunLock
with RunLock(Path(sys.argv[1]), heartbeat_s=0.1):
    print("held", flush=True)
    time.sleep(900)
"""


def start_holder(run_dir: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(run_dir)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def pretend_holder(run_dir: Path, *, silent_s: float, **changes: object) -> None:
    """The lock of a launch on a machine that is not this one."""
    (run_dir / "lock").mkdir()
    entry = run_dir / "lock" / "000001"
    owner = replace(this_process(), boot_id="another", host="n042", **changes)  # type: ignore[arg-type]
    entry.write_text(json.dumps(asdict(owner)))
    silent_since = time.time() - silent_s
    os.utime(entry, (silent_since, silent_since))


def test_lock_is_free_again_after_the_block(tmp_path: Path) -> None:
    for _ in range(3):
        assert holder(tmp_path) is None
        with RunLock(tmp_path) as lock:
            lock.check()
            owner = holder(tmp_path)
            assert owner is not None and owner.pid == os.getpid()
    assert holder(tmp_path) is None


def test_second_launch_learns_who_and_since_when(tmp_path: Path) -> None:
    process = start_holder(tmp_path)
    try:
        with pytest.raises(BusyError, match=rf"in use by .*\(pid {process.pid}\) since 20\d\d-.*hpcjet cancel"):
            RunLock(tmp_path).__enter__()
    finally:
        end(process)


@pytest.mark.alone
def test_killed_launch_on_this_machine_is_followed_at_once(tmp_path: Path) -> None:
    end(start_holder(tmp_path))
    begin = time.monotonic()
    with RunLock(tmp_path):
        assert time.monotonic() - begin < 1


def test_killed_launch_that_nobody_waited_for_is_dead_too(tmp_path: Path) -> None:
    process = start_holder(tmp_path)
    process.kill()
    try:
        deadline = time.monotonic() + 300
        while holder(tmp_path) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        end(process)


def test_pid_that_another_process_has_now_is_not_the_holder(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    owner = replace(this_process(), started=this_process().started - 1)
    (tmp_path / "lock" / "000001").write_text(json.dumps(asdict(owner)))
    with RunLock(tmp_path):
        assert holder(tmp_path) == replace(this_process(), since=holder(tmp_path).since)  # type: ignore[union-attr]


def test_holder_elsewhere_is_believed_while_it_gives_signs(tmp_path: Path) -> None:
    pretend_holder(tmp_path, silent_s=50, job_id="4711")
    with pytest.raises(BusyError, match=r"on n042 \(pid \d+, Slurm job 4711\).*last sign of life 5\d s ago"):
        RunLock(tmp_path).__enter__()


def test_holder_elsewhere_that_went_silent_is_followed(tmp_path: Path) -> None:
    pretend_holder(tmp_path, silent_s=70)
    with RunLock(tmp_path) as lock:
        lock.check()


@pytest.mark.parametrize("wrong_by_s", [-3600, 3600], ids=["slow clock", "fast clock"])
def test_the_clock_of_this_node_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong_by_s: float
) -> None:
    pretend_holder(tmp_path, silent_s=0)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + wrong_by_s)
    with pytest.raises(BusyError, match=r"last sign of life \d{1,2} s ago"):
        RunLock(tmp_path).__enter__()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b'{"pid": "x"}'], ids=ascii)
def test_unreadable_entry_counts_as_somebody(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").mkdir()
    entry = tmp_path / "lock" / "000001"
    entry.write_bytes(content)
    with pytest.raises(BusyError, match="just starting"):
        RunLock(tmp_path).__enter__()
    os.utime(entry, (1, 1))
    with RunLock(tmp_path):
        pass


def test_heartbeat_is_kept_up(tmp_path: Path) -> None:
    with RunLock(tmp_path, heartbeat_s=0.02):
        entry = tmp_path / "lock" / "000001"
        os.utime(entry, (1, 1))
        deadline = time.monotonic() + 300
        while entry.stat().st_mtime < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_frozen_holder_learns_that_it_lost_and_releases_nothing(tmp_path: Path) -> None:
    with RunLock(tmp_path, heartbeat_s=60) as frozen:
        os.utime(tmp_path / "lock" / "000001", (1, 1))
        code = HOLD.replace("import sys, time", "import sys, time, hpcjet.runlock as r; r._boot_id = lambda: 'other'")
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match="taken over by"):
            frozen.check()
    try:
        with pytest.raises(BusyError, match=f"pid {process.pid}"):
            RunLock(tmp_path).__enter__()
    finally:
        end(process)


def _race(run_dir: Path, ready: Barrier, wins: "multiprocessing.Queue[bool]", over: Event) -> None:
    """Who wins holds it until all others have tried."""
    ready.wait(300)
    try:
        with RunLock(run_dir):
            wins.put(True)
            over.wait(300)
    except BusyError:
        wins.put(False)


@pytest.mark.parametrize("stale", [False, True], ids=["free", "stale"])
def test_race_has_one_winner(tmp_path: Path, stale: bool) -> None:
    if stale:
        pretend_holder(tmp_path, silent_s=100)
    context = multiprocessing.get_context("fork")
    wins: multiprocessing.Queue[bool] = context.Queue()
    ready, over = context.Barrier(8), context.Event()
    racers = [context.Process(target=_race, args=(tmp_path, ready, wins, over)) for _ in range(8)]
    for racer in racers:
        racer.start()
    outcomes = [wins.get(timeout=300) for _ in racers]
    over.set()
    for racer in racers:
        racer.join()
    assert sorted(outcomes) == [False] * 7 + [True]


def test_forked_child_does_not_release(tmp_path: Path) -> None:
    with RunLock(tmp_path) as lock:
        child = os.fork()
        if child == 0:
            lock.__exit__()
            os._exit(0)
        os.waitpid(child, 0)
        lock.check()


def test_interrupted_launch_releases(tmp_path: Path) -> None:
    process = start_holder(tmp_path)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert sorted(entry.name for entry in (tmp_path / "lock").iterdir()) == ["000001", "000002"]


def test_run_directory_that_cannot_be_locked(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("not a folder")
    with pytest.raises(StoreError, match="cannot be locked"):
        RunLock(tmp_path).__enter__()
