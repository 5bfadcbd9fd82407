"""A compute node: namespaces, a cable, a control group and a slurmd; and the processes inside."""

import os
import pwd
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpcjet.errors import LabError
from hpcjet.lab.cgroups import CgroupTree
from hpcjet.lab.daemons import slurm_environment, tail
from hpcjet.lab.layout import Layout, node_name
from hpcjet.lab.process import (
    Process,
    all_pids,
    children,
    clean_environment,
    holds,
    identify,
    is_alive,
    kill,
    run,
    start_daemon,
)

READY_S = 30
UNSHARE = ("unshare", "--cgroup", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child")
ENTER = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
# What scontrol calls a node that takes jobs; anything else, or one of these with a flag that bars it, is not up.
SERVING = {"IDLE", "MIXED", "ALLOCATED", "COMPLETING"}
BARRED = {"DRAIN", "NOT_RESPONDING", "FAIL", "INVALID_REG", "MAINT", "REBOOT_REQUESTED"}


class NodeProcess(NamedTuple):
    """A process inside a node, by its id in there."""

    pid: int
    user: str
    argv: tuple[str, ...]


def start_node(layout: Layout, tree: CgroupTree, index: int) -> Process:
    """Start the node with an empty /tmp, and return its keeper: the parent, outside, of its first process."""
    name = node_name(index)
    directory = layout.node_dir(index)
    shutil.rmtree(directory, ignore_errors=True)
    for path, mode in ((directory, 0o755), (directory / "spool", 0o755), (directory / "tmp", 0o1777)):
        path.mkdir(parents=True)
        path.chmod(mode)
    address = f"{layout.node_address(index)}/{layout.subnet.prefixlen}"
    command = [*UNSHARE, "--mount-proc", "--propagation", "private", "/bin/sh", str(layout.etc / "node-init")]
    procs_files = tree.create(name)
    env = clean_environment(SLURM_CONF=str(layout.slurm_conf))
    return start_daemon([*command, name, address], procs_files=procs_files, output=layout.output_of(name), env=env)


def first_process(layout: Layout, index: int, keeper: Process) -> Process:
    """The node's process 1, as this machine sees it."""
    found: list[Process] = []

    def look() -> bool:
        found.extend(filter(None, map(identify, children(keeper.pid))))
        return bool(found) or not is_alive(keeper)

    if not holds(look, within_s=READY_S) or not found:
        raise LabError(f"node {node_name(index)} did not start; {tail(layout, node_name(index))}")
    return found[0]


def crash_node(layout: Layout, index: int, keeper: Process) -> None:
    """A power cut: the first process is killed, and the kernel kills all others in the node at once."""
    kill(first_process(layout, index, keeper))
    kill(keeper)


def wait_for_nodes(layout: Layout, keepers: Mapping[int, Process], *, since: float) -> None:
    """Return once the controller gives jobs to the slurmd of each of these nodes, started no earlier than `since`."""

    def waiting() -> list[int]:
        table = query_nodes(layout)
        return [index for index in keepers if not _serves_since(table.get(node_name(index), {}), since)]

    holds(lambda: not waiting() or not all(map(is_alive, keepers.values())), within_s=READY_S)
    for index in waiting():
        name = node_name(index)
        state = query_nodes(layout).get(name, {}).get("State", "unknown")
        what = f"is {state} to Slurm after {READY_S} s, not idle" if is_alive(keepers[index]) else "ended as it started"
        raise LabError(f"node {name} {what}; {tail(layout, name)}")


def report_down(layout: Layout, index: int) -> None:
    """Tell the controller that the node has no power, unless it has noticed.

    It stands in for the minutes that a real node takes to boot. One that is back within SlurmdTimeout would count as
    never away, and the jobs that it lost as running.
    """
    name = node_name(index)
    if "DOWN" in query_nodes(layout).get(name, {}).get("State", "DOWN"):
        return
    words = ["scontrol", "update", f"nodename={name}", "state=down", "reason=no power"]
    run(words, env=slurm_environment(layout))


def query_nodes(layout: Layout) -> dict[str, dict[str, str]]:
    """What scontrol says of each node, times in seconds since 1970; nothing while the controller does not answer."""
    env = {**slurm_environment(layout), "SLURM_TIME_FORMAT": "%s"}
    try:
        answer = run(["scontrol", "--oneliner", "show", "node"], env=env)
    except LabError:
        return {}
    return parse_nodes(answer)


def parse_nodes(answer: str) -> dict[str, dict[str, str]]:
    rows = (dict(word.split("=", 1) for word in line.split() if "=" in word) for line in answer.splitlines())
    return {row["NodeName"]: row for row in rows if "NodeName" in row}


def serves(state: str) -> bool:
    """Whether a node in this state, as scontrol prints it (IDLE+DRAIN, DOWN*, ...), is given jobs."""
    base, *flags = state.split("+")
    return base in SERVING and not BARRED.intersection(flags)


def _serves_since(row: Mapping[str, str], since: float) -> bool:
    started = row.get("SlurmdStartTime", "")
    return serves(row.get("State", "")) and started.isdigit() and int(started) >= int(since)


def enter(first: Process) -> list[str]:
    """The words in front of a command that run it inside the node, as root."""
    return ["nsenter", f"--target={first.pid}", *ENTER, "--"]


def node_processes(first: Process) -> list[NodeProcess]:
    """All that runs inside the node, except the lab's own first process and slurmd."""
    namespace = _pid_namespace(first.pid)
    inside = (pid for pid in all_pids() if pid != first.pid and _pid_namespace(pid) == namespace)
    return [process for pid in inside if (process := _describe(pid)) is not None]


def _pid_namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None


def _describe(pid: int) -> NodeProcess | None:
    """None for slurmd itself, and for a process that ended meanwhile or waits to be collected."""
    proc = Path(f"/proc/{pid}")
    try:
        if identify(pid) is None or (proc / "exe").readlink().name.startswith("slurmd"):
            return None
        status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines() if ":\t" in line)
        argv = (proc / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return None
    uid = int(status["Uid"].split()[0])
    return NodeProcess(int(status["NSpid"].split()[-1]), _user_name(uid), tuple(map(os.fsdecode, argv)))


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
