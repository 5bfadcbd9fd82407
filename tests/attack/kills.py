"""Kills owners of sandboxes at random moments and tells what is left: `python kills.py BASE COUNT SEED`.

A process of its own that the kernel hands every orphan, so that nothing that lives on can hide. One JSON line per kill.
"""

import contextlib
import fcntl
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from hpcjet.cluster.child import adopt_orphans
from hpcjet.cluster.leftovers import sweep
from hpcjet.config.sandbox import SandboxConfig
from hpcjet.sandbox.held import remove_left
from hpcjet.sandbox.identity import identity
from hpcjet.sandbox.program import find_bwrap, reachable_bwrap
from hpcjet.sandbox.scratch import remove_tree

ROLES = ("runner", "worker", "agent", "starter")
LATEST_S = 1.2
"""After an owner said that it is ready."""
GONE_S = 15.0
PIPE_BYTES = 4096
DRIP_S = 0.1
"""How long a start of a "starter" waits, or a few times as long."""


def main() -> None:
    base, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    adopt_orphans()
    chance = random.Random(seed)
    mounts = Path("/proc/self/mountinfo").read_text()
    make_slow_bwrap(base / "slow")
    for number in range(count):
        role = ROLES[number % len(ROLES)]
        after_s = chance.uniform(0, LATEST_S)
        found = kill_once(base, role, after_s)
        found["mounts"] = Path("/proc/self/mountinfo").read_text() != mounts
        print(json.dumps({"number": number, "role": role, "after_s": round(after_s, 3), **found}), flush=True)


def make_slow_bwrap(folder: Path) -> None:
    """A bubblewrap that waits between two steps of its start: it has asked to die with its owner, and its process 1,
    which has not, waits for a word from it. There it writes to --info-fd, which is a pipe that is nearly always full.
    """
    folder.mkdir(mode=0o755)
    pipe, program = folder / "pipe", folder / "bwrap"
    os.mkfifo(pipe)
    pipe.chmod(0o622)
    descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    config = SandboxConfig()
    real = shlex.quote(str(reachable_bwrap(find_bwrap(config), identity(config))))
    start = f'exec {{info}}>{shlex.quote(str(pipe))}\nexec {real} --info-fd $info "$@"'
    program.write_text(f'#!/bin/bash\n[ "$1" = --args ] || exec {real} "$@"\n{start}\n')
    program.chmod(0o755)
    threading.Thread(target=drip, args=(descriptor,), daemon=True).start()


def drip(pipe: int) -> None:
    """Let those that wait go on, again and again."""
    while True:
        with contextlib.suppress(BlockingIOError):
            while True:  # little by little: what the last ones wrote is still there
                os.write(pipe, bytes(64))
        time.sleep(DRIP_S)
        with contextlib.suppress(BlockingIOError):
            os.read(pipe, PIPE_BYTES)
        time.sleep(DRIP_S / 10)


def kill_once(base: Path, role: str, after_s: float) -> dict[str, object]:
    """Start, wait, kill -9; then what still runs after GONE_S, and what the next sweep leaves of the folders."""
    owner_role = "agent" if role == "worker" else role
    owner = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("owners.py")), owner_role, str(base)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert owner.stdout and owner.stdin
    line = owner.stdout.readline()
    assert line == b"ready\n", line
    if role == "worker":
        return kill_worker(base, owner, after_s)
    deadline = time.monotonic() + 30
    while role == "starter" and not any(base.glob("recorded/*")) and time.monotonic() < deadline:
        time.sleep(0.005)  # it first finds out, slowly, how sandboxes are made here
    time.sleep(after_s)
    busy = len(psutil.Process().children(recursive=True))
    owner.send_signal(signal.SIGKILL)
    gone_s, left = await_end()
    owner.communicate()
    folders = leftovers(base)
    remove_left(base)
    if role == "agent":
        sweep(base)
    else:
        for scratch in (base / "recorded").glob("*"):
            remove_tree(scratch)
    return {"processes": busy, "gone_s": gone_s, "left": left, "folders": len(folders), "after": leftovers(base)}


def kill_worker(base: Path, agent: "subprocess.Popen[bytes]", after_s: float) -> dict[str, object]:
    """One of an agent's two workers. The agent starts another, which removes the folders of the dead one."""
    assert agent.stdout and agent.stdin
    victim = int(agent.stdout.readline().split()[1])
    os.set_blocking(agent.stdout.fileno(), False)
    deadline = time.monotonic() + 30
    while len(list(base.glob("hj-*/attempts-*/*/agent"))) == 0 and time.monotonic() < deadline:
        agent.stdout.read()
        time.sleep(0.02)
    time.sleep(after_s)
    before = {str(path) for path in base.glob("hj-*/attempts-*")}
    tree = psutil.Process(victim).children(recursive=True)
    os.kill(victim, signal.SIGKILL)
    gone_s, left = await_end(tree)
    # The other worker lives; the new one has swept when it has a folder of its own.
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        agent.stdout.read()
        now = {str(path) for path in base.glob("hj-*/attempts-*")}
        if now - before and len(now) <= 2:
            break
        time.sleep(0.05)
    after = [] if len(now) <= 2 else sorted(now)
    agent.stdin.write(b"end\n")
    agent.stdin.flush()
    os.set_blocking(agent.stdout.fileno(), True)
    agent.communicate()
    await_end()
    remove_left(base)
    return {
        "processes": len(tree), "gone_s": gone_s, "left": left, "folders": len(before), "after": after + leftovers(base)
    }  # fmt: skip


def await_end(tree: Sequence[psutil.Process] | None = None) -> tuple[float, list[str]]:
    """How long until nothing of `tree`, or below us, runs any more; what still does in the end."""
    begin = time.monotonic()
    while time.monotonic() - begin < GONE_S:
        below = psutil.Process().children(recursive=True) if tree is None else tree
        alive = [process for process in below if _runs(process)]
        if not alive:
            return round(time.monotonic() - begin, 2), []
        time.sleep(0.01)
    return GONE_S, [f"{process.pid} {process.name()}" for process in alive]


def _runs(process: psutil.Process) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            if process.ppid() == os.getpid():
                os.waitpid(process.pid, os.WNOHANG)
            return False
    except (psutil.NoSuchProcess, ChildProcessError):
        return False
    return True


def leftovers(base: Path) -> list[str]:
    return sorted(
        str(path)
        for pattern in ("hj-*", "hpcjet-*", "recorded/*")
        for path in base.glob(pattern)
        if "decoy" not in path.name
    )


if __name__ == "__main__":
    main()
