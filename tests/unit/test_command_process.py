"""The user's program as a process: exit codes, how it is ended, that nothing is left; the first step of a rank."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from hpcjet.cluster.network import interface_names, link_towards, links
from hpcjet.cluster.network_env import network_env
from hpcjet.cluster.signals import Interrupted, signals_raise
from hpcjet.command import rank, words
from hpcjet.command.process import Group, ended_how, run_program
from hpcjet.command.start import without_heads_network

ROOT = Path(__file__).parents[2]


def program(command: str, folder: Path, *, stop_s: float = 5, ending: Group | None = None) -> int:
    return run_program(
        words.on_head(words.bash(command)),
        env=os.environ,
        workdir=folder,
        output=folder / "output.log",
        stop_s=stop_s,
        ending=ending or Group(),
    )


def interrupted(command: str, folder: Path, *, stop_s: float = 5, after: str = "ready") -> float:
    """Run it, send this process SIGTERM once the program has printed `after`; seconds from then to its end."""
    output, sent = folder / "output.log", []

    def send() -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and not (output.exists() and after in output.read_text()):
            time.sleep(0.01)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=send).start()
    with pytest.raises(Interrupted), signals_raise(signal.SIGTERM):
        program(command, folder, stop_s=stop_s)
    return time.monotonic() - sent[0]


def alive(folder: Path, *names: str) -> list[str]:
    """Which of the processes that left their ids in files still live."""
    found = []
    for name in names:
        pid = int((folder / name).read_text())
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            found.append(name)
    return found


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("true", 0, "ended with exit code 0"),
        ("exit 7", 7, "ended with exit code 7"),
        ("kill -SEGV $$", 139, "ended with exit code 139, as after SIGSEGV"),
        ("bash -c 'kill -KILL $$'; exit $?", 137, "ended with exit code 137, as after SIGKILL"),
        ("no-such-program", 127, "ended with exit code 127: a command was not found"),
        ("/", 126, "ended with exit code 126: it cannot be run"),
    ],
    ids=["well", "7", "signal", "signal of a child", "not found", "not a program"],
)
def test_exit_codes(command: str, code: int, told: str, tmp_path: Path) -> None:
    assert program(command, tmp_path) == code
    assert ended_how(code) == told
    assert (tmp_path / "output.log").stat().st_mode & 0o777 == 0o600


def test_output_is_kept_byte_for_byte_and_there_is_no_input(tmp_path: Path) -> None:
    assert program(r"printf 'a\377\r\nb'; cat; pwd >&2; kill -USR2 $$; echo deaf", tmp_path) == 0
    assert (tmp_path / "output.log").read_bytes() == b"a\xff\r\nb" + f"{tmp_path}\ndeaf\n".encode()


@pytest.mark.alone
def test_what_a_program_leaves_running_ends_with_it(tmp_path: Path) -> None:
    command = (
        "sleep 300 & echo $! > same; setsid sleep 301 & echo $! > session; "
        "(setsid setsid bash -c 'echo $$ > deep; exec sleep 302' &); until [ -s deep ]; do sleep 0.02; done"
    )
    begin = time.monotonic()
    assert program(command, tmp_path) == 0
    assert alive(tmp_path, "same", "session", "deep") == [] and time.monotonic() - begin < 5


@pytest.mark.alone
def test_a_program_that_is_asked_to_end_may_save_its_work(tmp_path: Path) -> None:
    # It is not the first process: bash waits for it, dies of the signal at once, and still it has its time.
    code = "trap 'sleep 1; echo saved; exit' TERM; echo ready; while :; do sleep 0.05; done"
    took = interrupted(f'bash -c "{code}"; echo not-reached', tmp_path)
    printed = (tmp_path / "output.log").read_text()
    assert printed.endswith("saved\n") and "not-reached" not in printed and 0.9 < took < 4


@pytest.mark.alone
def test_a_program_that_does_not_end_is_killed_after_the_promised_time(tmp_path: Path) -> None:
    command = (
        "trap '' TERM; setsid sleep 300 & echo $! > session; echo $$ > own; echo ready; while :; do sleep 0.1; done"
    )
    took = interrupted(command, tmp_path, stop_s=1)
    assert alive(tmp_path, "session", "own") == [] and 0.9 < took < 4


def test_the_program_dies_with_its_driver(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; "
        "from test_command_process import program; program('echo $$ > own; sleep 900', Path(sys.argv[2]))"
    )
    argv = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path)]
    with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}) as driver:
        deadline = time.monotonic() + 300
        while not ((tmp_path / "own").exists() and (tmp_path / "own").read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        driver.kill()
    deadline = time.monotonic() + 300
    while alive(tmp_path, "own"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


# the first step of a rank


def as_rank(*argv: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "hpcjet.command.rank", "--", *argv]
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}, capture_output=True, text=True, timeout=300
    )


def test_a_rank_becomes_the_program_deaf_to_the_warning(tmp_path: Path) -> None:
    env = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "3", rank.STEP_FILE: str(tmp_path / "step")}
    done = as_rank("bash", "-c", "kill -USR2 $$; echo $1; exit 7", "bash", "a b", env=env)
    assert (done.returncode, done.stdout, done.stderr) == (7, "a b\n", "")
    assert (tmp_path / "step").read_text() == "3"


def test_a_program_of_the_ranks_may_take_the_warning_itself() -> None:
    code = "import os, signal; signal.signal(signal.SIGUSR2, lambda *_: print('warned')); os.kill(os.getpid(), 12)"
    assert as_rank(sys.executable, "-c", code).stdout == "warned\n"


def test_a_program_that_is_not_there_is_named() -> None:
    done = as_rank("/no/such/program")
    assert done.returncode == 1
    assert done.stderr == f"/no/such/program cannot be run on {os.uname().nodename}: No such file or directory\n"


def test_a_rank_takes_the_network_of_its_own_node() -> None:
    usable = [link for link in links() if not link.virtual]
    if not usable:
        pytest.skip("this machine has no network interface besides loopback")
    env = {rank.HEAD: usable[0].address, rank.INTERFACE: ""}
    here = link_towards(usable[0].address, links(), asked=None)
    assert rank.network_of_this_node(env)["GLOO_SOCKET_IFNAME"] == here.name
    assert rank.network_of_this_node({**env, "GLOO_SOCKET_IFNAME": "own"}).get("GLOO_SOCKET_IFNAME") is None
    assert rank.network_of_this_node({}) == {}, "one node"
    agents = network_env(usable[0], interface_names(), {}).values
    own = {"A": "1", "GLOO_SOCKET_IFNAME": "own"}
    assert without_heads_network({**agents, **own}, usable[0].address) == own


def test_a_rank_loads_little() -> None:
    code = "import sys, hpcjet.command.rank; print(*sorted(sys.modules))"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert not {"ray", "torch", "hydra", "omegaconf", "psutil", "submitit", "yaml", "rich"} & set(loaded)
    assert [name for name in loaded if name.startswith("hpcjet")] == ["hpcjet", "hpcjet.command", "hpcjet.command.rank"]


def test_torchs_launcher_stands_alone() -> None:
    text = words.TORCH_LAUNCHER.read_text()
    assert "import hpcjet" not in text and "from hpcjet" not in text
