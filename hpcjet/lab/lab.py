"""The lab: a real Slurm cluster on this machine."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hpcjet.errors import LabError
from hpcjet.lab import bringup, node
from hpcjet.lab.bringup import DAEMONS
from hpcjet.lab.install import install
from hpcjet.lab.layout import check_node_count, check_node_index, node_name, resolve_layout
from hpcjet.lab.node import NodeProcess
from hpcjet.lab.process import Process, clean_environment, stop
from hpcjet.lab.requirements import check_requirements, check_root
from hpcjet.lab.state import State, load_state, locked
from hpcjet.lab.user import User, become, ensure_user, find_user, user_environment

Stream = int | IO[str] | None


@dataclass(frozen=True)
class LabStatus:
    """What is there now: per daemon whether it lives, per node what Slurm calls it ("crashed" if it has no power)."""

    is_up: bool
    daemons: dict[str, bool]
    nodes: dict[str, str]


def quiet(_: str) -> None:
    """The default for `report`: the lab says nothing."""


class Lab:
    """A real Slurm cluster on this machine, for one lab root.

    It keeps nothing in memory: several processes may hold a Lab of the same root, and changes are made one at a time.
    All methods that change something raise LabError with the next step, or with the log of the daemon to blame.
    """

    def __init__(self, root: Path | None = None, *, report: Callable[[str], None] = quiet) -> None:
        self.layout = resolve_layout(root)
        self._report = report

    def up(self, nodes: int = 4) -> None:
        """Bring the lab up, or repair it: daemons and nodes that are gone are started again."""
        check_node_count(nodes)
        check_requirements()
        bringup.make_root(self.layout)
        with locked(self.layout):
            state = load_state(self.layout)
            if state and state.ready and bringup.has_network(self.layout):
                bringup.repair(self.layout, state, nodes, self._report)
            else:
                bringup.start_afresh(self.layout, nodes, self._report)

    def down(self, *, purge: bool = False) -> None:
        """Stop and remove all that `up` made, except the lab's files; with `purge`, those and the user as well."""
        check_root()
        if not self.layout.root.is_dir():
            return
        with locked(self.layout):
            bringup.clean(self.layout)
        if purge:
            bringup.purge(self.layout)

    def crash(self, index: int) -> None:
        """Cut the node's power: everything in it dies at once, nothing is told."""
        with self._changing() as state:
            check_node_index(index, state.nodes)
            if keeper := state.alive(node_name(index)):
                node.crash_node(self.layout, index, keeper)

    def restart(self, index: int) -> None:
        """Give the node its power back (after a crash, if it still has it) and wait until Slurm uses it."""
        with self._changing() as state:
            check_node_index(index, state.nodes)
            if keeper := state.alive(node_name(index)):
                node.crash_node(self.layout, index, keeper)
            node.report_down(self.layout, index)
            bringup.start_nodes(self.layout, state, [index])

    def stop_daemon(self, name: str, *, at_once: bool = False) -> None:
        """Stop munged, mariadbd, slurmdbd or slurmctld, for tests of an outage; `up` starts it again.

        Told to end, slurmctld saves the jobs first. Killed `at_once`, it forgets those of the last seconds or minutes.
        """
        if name not in DAEMONS:
            raise LabError(f"daemon {name!r} is not of the lab; choose one of {', '.join(DAEMONS)}")
        with self._changing() as state:
            if process := state.alive(name):
                stop(process, grace_s=0 if at_once else bringup.STOP_GRACE_S)

    def status(self) -> LabStatus:
        state = load_state(self.layout)
        if state is None:
            return LabStatus(is_up=False, daemons={}, nodes={})
        alive = {name: state.alive(name) is not None for name in DAEMONS}
        table = node.query_nodes(self.layout) if alive["slurmctld"] else {}
        names = [node_name(index) for index in range(1, state.nodes + 1)]
        words = {name: table.get(name, {}).get("State", "unknown").lower() for name in names}
        nodes = {name: words[name] if state.alive(name) else "crashed" for name in names}
        return LabStatus(is_up=state.ready, daemons=alive, nodes=nodes)

    @property
    def user(self) -> User:
        """The ordinary user who submits jobs."""
        if user := find_user():
            return user
        raise LabError("the lab has no user yet; bring it up first: hpcjet lab up")

    @property
    def nodes(self) -> list[int]:
        """The indices of the nodes, crashed ones too."""
        return list(range(1, self._require_up().nodes + 1))

    def login_command(self, argv: Sequence[str | Path]) -> list[str]:
        """The words that make root run a command as the user on the login node, which is this machine."""
        check_root()
        self._require_up()
        enter = ["unshare", "--mount", "--propagation", "private", "/bin/sh", str(self.layout.etc / "login-enter")]
        return [*enter, *map(str, argv)]

    def popen_as_user(
        self,
        argv: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> "subprocess.Popen[str]":
        """Start a command as the user on the login node; its id is that of the command itself.

        It gets a login's environment and `env`, and a session of its own.
        """
        return subprocess.Popen(
            self.login_command(argv),
            cwd=cwd or self.layout.home,
            env={**user_environment(self.layout, self.user), **(env or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            start_new_session=True,
            umask=0o022,
        )

    def run_as_user(
        self,
        argv: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the user on the login node and keep what it prints; any exit code is returned.

        Raises subprocess.TimeoutExpired, after SIGKILL to its process group.
        """
        pipe = subprocess.PIPE
        with self.popen_as_user(argv, cwd=cwd, env=env, stdout=pipe, stderr=pipe) as process:
            return _finish(process, list(map(str, argv)), timeout_s)

    def node_command(self, index: int, argv: Sequence[str | Path], *, as_user: bool = False) -> list[str]:
        """The words that make root run a command inside the node, as root or as the user."""
        check_root()
        first = self._first_process(index)
        return [*node.enter(first), *(become(self.user) if as_user else []), *map(str, argv)]

    def node_environment(self, *, as_user: bool = False) -> dict[str, str]:
        if as_user:
            return user_environment(self.layout, self.user)
        return clean_environment(HOME="/root", SLURM_CONF=str(self.layout.slurm_conf))

    def on_node(
        self, index: int, argv: Sequence[str | Path], *, as_user: bool = False, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside the node, as root or as the user, and keep what it prints; any exit code is returned."""
        command = self.node_command(index, argv, as_user=as_user)
        env = self.node_environment(as_user=as_user)
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd="/", timeout=timeout_s)

    def processes(self, index: int) -> list[NodeProcess]:
        """All that runs inside the node, except the lab's own first process and slurmd; nothing if it has crashed."""
        state = self._require_up()
        check_node_index(index, state.nodes)
        keeper = state.alive(node_name(index))
        return node.node_processes(node.first_process(self.layout, index, keeper)) if keeper else []

    def install(self, project_root: Path, *, extras: Sequence[str] = ("swe", "engine", "swarm")) -> Path:
        """A virtual environment that the user can run, with the project installed from a wheel built now."""
        check_requirements()
        bringup.make_root(self.layout)
        return install(self.layout, ensure_user(self.layout), project_root, extras=extras)

    @contextmanager
    def _changing(self) -> Iterator[State]:
        """The state of a lab that is up, for one change of it."""
        check_root()
        self._require_up()
        with locked(self.layout):
            yield self._require_up()

    def _require_up(self) -> State:
        state = load_state(self.layout)
        if state is None or not state.ready:
            raise LabError(f"no lab is up with root {self.layout.root}; bring it up first: hpcjet lab up --nodes 4")
        return state

    def _first_process(self, index: int) -> Process:
        state = self._require_up()
        check_node_index(index, state.nodes)
        if keeper := state.alive(node_name(index)):
            return node.first_process(self.layout, index, keeper)
        raise LabError(f"node {node_name(index)} has crashed; start it again: hpcjet lab restart {index}")


def _finish(process: "subprocess.Popen[str]", argv: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except BaseException:
        # Its children hold the pipes as well, and the reading must end.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)
