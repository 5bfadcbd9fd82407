"""What is left of sandboxes whose owners are killed: processes and folders.

Between two steps of its start bubblewrap's process 1 waits for a word from the outer process, and would wait for ever
if that is dead. The start is held there by a pipe that is full: bubblewrap writes to --info-fd after it has asked to
die with its owner, and before it lets process 1 go on.
"""
# ruff: noqa: F811 (fixtures are imported)

import fcntl
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from sandbox_scenes import (  # noqa: F401 (fixtures)
    Opener,
    config,
    config_of,
    opened,
    output,
    place,
    tree,
    wait_for,
)

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import SandboxError
from hpcjet.sandbox import Sandbox, SandboxSpec, open_sandbox, probe
from hpcjet.sandbox.orphans import VARIABLE, abandoned, end_abandoned, new_mark

ROOT = Path(__file__).parents[2]
OWNER = """
import os, sys, time
from pathlib import Path
from hpcjet.config.sandbox import SandboxConfig
from hpcjet.sandbox import SandboxSpec, open_sandbox, probe
place = Path(sys.argv[1])
config = SandboxConfig(bwrap=place / "held-bwrap")
assert probe(config).kind == "bwrap", probe(config).reason
if sys.argv[2] == "forks" and not os.fork():
    print(os.getpid(), flush=True)
    time.sleep(1000)
    os._exit(0)
if sys.argv[2] != "forks":
    print("ready", flush=True)
sys.stdin.readline()
open_sandbox(config, SandboxSpec(scratch=place / "s"))
"""
PROBER = """
import time
from hpcjet.config.sandbox import SandboxConfig
from hpcjet.sandbox import probe
probe(SandboxConfig())
time.sleep(1000)
"""
PIPE_BYTES = 4096


@pytest.fixture
def held_bwrap(place: Path) -> SandboxConfig:
    """A bubblewrap that stops on its way while the pipe `hold` is there."""
    program = probe(config_of("overlay")).bwrap
    assert program
    real, hold = shlex.quote(str(program)), shlex.quote(str(place / "hold"))
    wrapper = place / "held-bwrap"
    start = f'exec {{info}}>{hold}\nexec {real} --info-fd $info "$@"'
    wrapper.write_text(f'#!/bin/bash\n[ -p {hold} ] || exec {real} "$@"\n{start}\n')
    wrapper.chmod(0o755)
    return SandboxConfig(bwrap=wrapper)


@contextmanager
def holding(place: Path) -> Iterator[None]:
    hold = place / "hold"
    os.mkfifo(hold)
    hold.chmod(0o622)
    pipe = os.open(hold, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    assert os.write(pipe, bytes(PIPE_BYTES)) == PIPE_BYTES
    yield
    hold.unlink()
    os.close(pipe)


@contextmanager
def owning(place: Path, how: str = "plain") -> Iterator["subprocess.Popen[bytes]"]:
    """An owner whose sandbox is held, and killed after the block at the latest."""
    command = [sys.executable, "-c", OWNER, str(place), how]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdin and owner.stdout
        try:
            said = owner.stdout.readline()
            assert said == b"ready\n" or said.strip().isdigit()
            with holding(place):
                owner.stdin.write(b"\n")
                owner.stdin.flush()
                yield owner
        finally:
            owner.kill()
            if how == "forks":
                os.kill(int(said), signal.SIGKILL)


def held_start(owner: int) -> tuple[psutil.Process, psutil.Process]:
    """bubblewrap's outer process and its process 1, once the first waits for room in the pipe."""
    found: list[tuple[psutil.Process, psutil.Process]] = []

    def waits() -> bool:
        outers = [child for child in psutil.Process(owner).children() if child.name() == "bwrap"]
        pairs = [(outer, inner) for outer in outers for inner in outer.children()]
        found[:] = [(outer, inner) for outer, inner in pairs if outer.status() == inner.status() == "sleeping"]
        return bool(found)

    wait_for(waits)
    return found[0]


def guard_of(owner: int) -> psutil.Process:
    (guard,) = [child for child in psutil.Process(owner).children() if "hpcjet-guard" in child.cmdline()]
    return guard


def gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("how", ["plain", "forks"])
def test_a_start_ends_with_its_owner(place: Path, held_bwrap: SandboxConfig, how: str) -> None:
    with owning(place, how) as owner:
        guard = guard_of(owner.pid)
        start = held_start(owner.pid)
        owner.kill()
        wait_for(lambda: all(map(gone, start)), timeout_s=60)
        wait_for(lambda: gone(guard), timeout_s=60)


def test_a_start_whose_outer_process_was_killed_fails_soon_and_leaves_nothing(
    place: Path, held_bwrap: SandboxConfig
) -> None:
    assert probe(held_bwrap).kind == "bwrap"
    with ThreadPoolExecutor(1) as pool, holding(place):
        opening = pool.submit(open_sandbox, held_bwrap, SandboxSpec(scratch=place / "s"))
        outer, inner = held_start(os.getpid())
        outer.kill()
        with pytest.raises(SandboxError, match="opened no sandbox"):
            opening.result(50)  # OPEN_S is 60
        wait_for(lambda: gone(inner), timeout_s=60)
    assert not (place / "s").exists()


def test_what_is_left_when_the_guard_is_killed_too_ends_with_the_next_probe(
    place: Path, held_bwrap: SandboxConfig
) -> None:
    with owning(place) as owner:
        outer, inner = held_start(owner.pid)
        guard_of(owner.pid).kill()
        end_abandoned()
        assert not gone(outer), "its owner lives"
        owner.kill()
        owner.wait()
        wait_for(lambda: gone(outer))
        assert inner.pid in abandoned()
        assert not gone(inner), "bubblewrap has another order of steps now: is all of this still needed?"
    with subprocess.Popen([sys.executable, "-c", PROBER], cwd=ROOT) as prober:
        try:
            wait_for(lambda: gone(inner), timeout_s=60)
        finally:
            prober.kill()


def test_only_marks_of_owners_that_are_gone_for_certain_count() -> None:
    ours = new_mark()[VARIABLE]
    namespace, pid, began, _ = ours.split(":")
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    spared = {
        "alive": ours,
        "elsewhere": f"{int(namespace) + 1}:{ended.pid}:{began}:0",
        "short": f"{namespace}:{ended.pid}:{began}",
        "long": f"{ours}:0",
        "no-number": f"{namespace}:x:{began}:0",
        "everybody": f"{namespace}:-1:{began}:0",
        "own-group": f"{namespace}:0:{began}:0",
        "huge": f"{namespace}:{10**30}:{began}:0",
        "empty": "",
    }
    left = {"gone": f"{namespace}:{ended.pid}:{began}:0", "id-passed-on": f"{namespace}:{pid}:{int(began) - 1}:7"}
    sleepers = {
        name: subprocess.Popen(["sleep", "1000"], env={**os.environ, VARIABLE: mark})
        for name, mark in {**spared, **left}.items()
    }
    only_said = f"{VARIABLE}={left['gone']}"
    sleepers["argument"] = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", only_said])
    sleepers["other-variable"] = subprocess.Popen(["sleep", "1000"], env={f"X{VARIABLE}": left["gone"]})
    try:
        end_abandoned()
        assert {name: sleepers[name].wait(60) for name in left} == dict.fromkeys(left, -signal.SIGKILL)
        assert {name for name, sleeper in sleepers.items() if sleeper.poll() is not None} == set(left)
    finally:
        for sleeper in sleepers.values():
            sleeper.kill()
            sleeper.wait()


def test_commands_do_not_see_the_mark(opened: Opener) -> None:
    look = "env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | sort -u"
    assert VARIABLE not in output(opened(), look)


BOXES = """
import sys, time
from pathlib import Path
from hpcjet.config.sandbox import SandboxConfig
from hpcjet.sandbox import Sandbox
config = SandboxConfig(scratch=Path(sys.argv[1]))
boxes = [Sandbox(config=config, keep_scratch=keep) for keep in (False, True)]
boxes[0].run("mkdir ~/closed; chmod 0 ~/closed", timeout_s=300)
print("open", flush=True)
time.sleep(1000)
"""


def test_a_folder_that_nobody_named_goes_with_the_next_probe(place: Path) -> None:
    config_of("overlay")
    place.chmod(0o1777)
    (place / "hpcjet-mine").mkdir()  # not by any record
    with (
        subprocess.Popen([sys.executable, "-c", BOXES, str(place)], cwd=ROOT, stdout=subprocess.PIPE) as lives,
        subprocess.Popen([sys.executable, "-c", BOXES, str(place)], cwd=ROOT, stdout=subprocess.PIPE) as dies,
    ):
        try:
            assert lives.stdout and dies.stdout and lives.stdout.readline() and dies.stdout.readline()
            before = {path.name for path in place.glob("hpcjet-*")}
            assert len(before) == 5
            dies.kill()
            dies.wait()
            probe(SandboxConfig(scratch=place))
            gone_now = before - {path.name for path in place.glob("hpcjet-*")}
            assert len(gone_now) == 1 and gone_now.pop().startswith("hpcjet-sandbox-")
        finally:
            lives.kill()
            dies.kill()


def test_a_folder_that_nobody_named_is_gone_when_its_sandbox_is_closed_or_fails(place: Path) -> None:
    config_of("overlay")
    config = SandboxConfig(scratch=place)
    with Sandbox(config=config) as box:
        assert box.run("echo x >$TMPDIR/x", timeout_s=300).returncode == 0
        assert len(list(place.glob("hpcjet-*"))) == 1
    with pytest.raises(SandboxError, match="no-such-tree"):
        Sandbox(place / "no-such-tree", config=config)
    assert not list(place.glob("hpcjet-*"))
