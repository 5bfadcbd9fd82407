"""Kind process: what it has in place of namespaces."""
# ruff: noqa: F811 (fixtures are imported)

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox_scenes import (  # noqa: F401 (fixtures)
    NAP,
    config_of,
    make_tree,
    output,
    place,
    processes_below,
    tree,
    wait_for,
)

from hpcjet.config.sandbox import SandboxConfig, SandboxKind
from hpcjet.errors import SandboxError
from hpcjet.sandbox import Network, Sandbox
from hpcjet.sandbox.candidates import landlock_version
from hpcjet.sandbox.identity import identity
from hpcjet.sandbox.process import translate

ROOT = Path(__file__).parents[2]
PROCESS = SandboxConfig(kind=SandboxKind.process)
needs_landlock = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
needs_scopes = pytest.mark.skipif(
    landlock_version() < 6, reason="signals are held back from Landlock 6 on (Linux 6.12)"
)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/testbed", "/s/upper"),
        ("/testbed/a b", "/s/upper/a b"),
        ("/testbed2", "/testbed2"),
        ("/data/ro/x", "/host/ro/x"),
        ("/data", "/data"),
        ("/", "/"),
    ],
)
def test_paths_are_translated_by_the_longest_folder(path: str, found: str) -> None:
    assert translate(path, {"/testbed": "/s/upper", "/data/ro": "/host/ro", "/data/ro/x/y": "/z"}) == found


@needs_landlock
def test_files_of_the_same_user_cannot_be_read_or_written(place: Path, tree: Path) -> None:
    secret = make_tree(place / "secret", {"key": "s3cret\n"}) / "key"
    with Sandbox(tree, config=PROCESS) as first, Sandbox(tree, config=PROCESS) as second:
        assert output(first, "cat a.txt; echo own >own.txt; echo x >$TMPDIR/x; echo y >~/y") == "one\n"
        for path in (secret, f"{second.upper}/a.txt", tree / "a.txt", "/root", "/home", "/run", "/var", "/dev/shm"):
            assert first.run(f"cat {path} || ls {path}/", timeout_s=300).returncode, path
            assert first.run(f"echo x >>{path} || touch {path}/x", timeout_s=300).returncode, path
        assert first.run(f"ln {secret} here; mv {secret} there", timeout_s=300).returncode
    assert secret.read_text() == "s3cret\n"


@needs_landlock
def test_the_environment_of_other_processes_cannot_be_read(place: Path) -> None:
    who = identity(PROCESS)
    with (
        subprocess.Popen(["sleep", NAP], env={"TOKEN": "s3cret"}, **who.popen()) as other,
        Sandbox(config=PROCESS) as box,
    ):
        try:
            assert box.run(f"cat /proc/{other.pid}/environ", timeout_s=300).returncode
            assert b"s3cret" not in box.run("cat /proc/[0-9]*/environ", timeout_s=300).output
        finally:
            other.kill()


@needs_scopes
def test_signals_reach_no_process_outside(place: Path) -> None:
    who = identity(PROCESS)
    with subprocess.Popen(["sleep", NAP], **who.popen()) as other, Sandbox(config=PROCESS) as box:
        try:
            assert box.run(f"kill -9 {other.pid}", timeout_s=300).returncode == 1
            keeper = box._server._process.pid
            assert box.run(f"kill -9 {keeper}", timeout_s=300).returncode == 1
            assert other.poll() is None
        finally:
            other.kill()


@needs_scopes
def test_a_command_that_kills_its_server_ends_the_sandbox_and_leaves_nothing(place: Path) -> None:
    box = Sandbox(config=PROCESS)
    pids = processes_below(box)
    output(box, f"(setsid sleep {NAP} &) ; true")
    with pytest.raises(SandboxError, match="ended by itself"):
        box.run(f"kill -9 {box._server.init}; kill -9 -1; sleep {NAP}", timeout_s=300)
    pids += processes_below(box)
    box.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_there_is_no_socket_but_pairs(place: Path) -> None:
    program = (
        "import socket\n"
        "for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET):\n"
        "    try: socket.socket(family, socket.SOCK_DGRAM); print('made', family)\n"
        "    except OSError as error: print(error.errno)\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "try: s.connect('/run/munge/munge.socket.2'); print('connected')\n"
        "except OSError as error: print(error.errno)\n"
    )
    with Sandbox(config=PROCESS) as box:
        assert output(box, "/usr/bin/python3 -", stdin=program.encode()).split() == ["97"] * 4 + ["13"]
        assert b"not known" in box.run("getent hosts x.y || echo not known", timeout_s=300).output


def test_processes_of_others_cannot_be_traced() -> None:
    with Sandbox(config=PROCESS) as box:
        program = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"
        assert output(box, f"/usr/bin/python3 -c '{program}'").strip() == "-1"


def test_the_engine_alone_cannot_be_had() -> None:
    with pytest.raises(SandboxError, match="network=engine needs a network namespace"):
        Sandbox(network=Network.engine, engine="localhost:8000", config=PROCESS)


OWNER = f"""
import sys
from hpcjet.config.sandbox import SandboxConfig, SandboxKind
from hpcjet.sandbox import Sandbox
box = Sandbox(config=SandboxConfig(kind=SandboxKind(sys.argv[1])))
print(box._server._process.pid, flush=True)
box.run("(setsid sleep {NAP} &) ; setsid sleep {NAP}; sleep {NAP}", timeout_s=1000)
"""


@pytest.mark.parametrize("kind", ["userns", "process"])
def test_nothing_outlives_a_killed_owner(kind: str) -> None:
    from hpcjet.sandbox import processes

    config_of(kind)
    with subprocess.Popen([sys.executable, "-c", OWNER, kind], cwd=ROOT, stdout=subprocess.PIPE) as owner:
        assert owner.stdout
        keeper = int(owner.stdout.readline())
        wait_for(lambda: len(processes.descendants(keeper)) >= 4)
        pids = [keeper, *processes.descendants(keeper)]
        time.sleep(0.1)
        owner.send_signal(signal.SIGKILL)
        owner.communicate()

    def gone() -> bool:
        return not [pid for pid in pids if _lives(pid)]

    wait_for(gone)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_keeper_that_is_killed_takes_its_server_along() -> None:
    box = Sandbox(config=SandboxConfig(kind=SandboxKind.userns))
    pids = processes_below(box)
    os.kill(box._server._process.pid, signal.SIGKILL)
    wait_for(lambda: not [pid for pid in pids if _lives(pid)])
    with pytest.raises(SandboxError):
        box.run("true", timeout_s=10)
    box.close()
