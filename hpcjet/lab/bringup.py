"""How the lab comes up, is repaired, and is taken away without a trace."""

import secrets
import shutil
import socket
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpcjet.errors import LabError
from hpcjet.lab import daemons, network, node, render
from hpcjet.lab.cgroups import CONTROLLERS, CgroupTree, cgroup_version
from hpcjet.lab.daemons import Daemon
from hpcjet.lab.layout import DEFAULT_ROOT, Layout, node_name
from hpcjet.lab.process import Process, kill, run, stop
from hpcjet.lab.state import State, load_state, save_state
from hpcjet.lab.user import User, ensure_user, remove_user

STOP_GRACE_S = 5
LOGIN_GROUP = "login"
# In the order in which they start; they end in reverse.
DAEMONS: Mapping[str, Callable[[Layout], Daemon]] = {
    "munged": daemons.munged,
    "mariadbd": daemons.mariadbd,
    "slurmdbd": daemons.slurmdbd,
    "slurmctld": daemons.slurmctld,
}
Report = Callable[[str], None]


def make_root(layout: Layout) -> None:
    """Make the lab's folders, which all users may enter."""
    for path in (layout.root, layout.etc, layout.log, layout.run):
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    for parent in layout.root.parents:
        if not parent.stat().st_mode & stat.S_IXOTH:
            raise LabError(
                f"HPCJET_LAB_ROOT={layout.root}: an ordinary user cannot enter {parent}; "
                f"choose a folder such as {DEFAULT_ROOT}, or chmod o+x {parent}"
            )
    layout.marker.touch()


def start_afresh(layout: Layout, nodes: int, report: Report) -> None:
    """Bring up a lab without jobs, after removing what is left of an earlier one."""
    clean(layout)
    network.check_no_clash(layout)
    state = State(nodes=nodes)
    save_state(layout, state)
    _prepare(layout, ensure_user(layout), nodes)
    network.create_bridge(layout)
    report("accounting")
    _start_accounting(layout, state)
    report("controller")
    _start_daemon(layout, state, daemons.slurmctld(layout, fresh=True))
    report("nodes")
    start_nodes(layout, state, range(1, nodes + 1))
    state.ready = True
    save_state(layout, state)


def has_network(layout: Layout) -> bool:
    """Whether the lab's bridge is still there; without it the nodes are no use."""
    return network.bridge_owner() == str(layout.root)


def repair(layout: Layout, state: State, nodes: int, report: Report) -> None:
    """Start again what is gone of a lab that was up; its jobs stay."""
    if nodes != state.nodes:
        raise LabError(f"the lab is up with {state.nodes} nodes, not {nodes}; take it down first: hpcjet lab down")
    gone = [name for name in (*DAEMONS, *map(node_name, range(1, nodes + 1))) if not state.alive(name)]
    if not gone:
        return
    report(f"again: {', '.join(gone)}")
    for name, describe in DAEMONS.items():
        if name in gone:
            _start_daemon(layout, state, describe(layout))
    crashed = [index for index in range(1, nodes + 1) if node_name(index) in gone]
    for index in crashed:
        node.report_down(layout, index)
    start_nodes(layout, state, crashed)


def start_nodes(layout: Layout, state: State, indices: Sequence[int]) -> None:
    """Start these nodes side by side, and wait until Slurm uses them."""
    since = time.time()
    keepers: dict[int, Process] = {}
    for index in indices:
        keepers[index] = node.start_node(layout, _tree(layout), index)
        _record(layout, state, node_name(index), keepers[index])
    for index, keeper in keepers.items():
        network.connect_node(index, node.first_process(layout, index, keeper))
    node.wait_for_nodes(layout, keepers, since=since)


def clean(layout: Layout) -> None:
    """Remove what there is of this root's lab, however far it got."""
    state = load_state(layout) or State(nodes=0)
    for name in set(state.processes) - set(DAEMONS):
        if keeper := state.alive(name):
            kill(keeper)
    for name in reversed(list(DAEMONS)):
        if process := state.alive(name):
            stop(process, grace_s=STOP_GRACE_S)
    tree = _tree(layout)
    # What was started but not written down before a kill -9, and what the user left on the login node.
    tree.kill()
    tree.remove()
    network.remove_bridge(layout)
    layout.state_file.unlink(missing_ok=True)


def purge(layout: Layout) -> None:
    """Remove the lab's files and its user."""
    if not layout.marker.exists():
        raise LabError(f"{layout.root} bears no mark of a lab ({layout.marker.name}); remove it by hand if you must")
    remove_user(layout)
    shutil.rmtree(layout.root)


def _prepare(layout: Layout, user: User, nodes: int) -> None:
    tree = _tree(layout)
    for group in (daemons.GROUP, LOGIN_GROUP):
        tree.create(group)
    daemons.prepare_munge(layout)
    daemons.prepare_database(layout, tree)
    (layout.root / "ctld").mkdir(mode=0o700, exist_ok=True)
    for index in range(render.GPUS_PER_NODE):
        _make_null_device(layout.gpus / f"gpu{index}")
    for name, text in _files(layout, tree, user, nodes).items():
        (layout.etc / name).write_text(text)


def _files(layout: Layout, tree: CgroupTree, user: User, nodes: int) -> dict[str, str]:
    login = _login_name()
    hosts = Path("/etc/hosts").read_text()
    procs_files = list(map(str, tree.procs_files(LOGIN_GROUP)))
    return {
        "slurm.conf": render.render_slurm_conf(layout, nodes=nodes, login=login, cgroup_version=tree.version),
        "gres.conf": render.render_gres_conf(layout, nodes=nodes),
        "cgroup.conf": render.render_cgroup_conf(tree.version),
        "hosts": render.render_hosts(layout, nodes=nodes, login=login, machine_hosts=hosts),
        "node-init": render.render_node_init(layout, cgroup_version=tree.version, controllers=CONTROLLERS),
        "login-enter": render.render_login_enter(layout, procs_files=procs_files, uid=user.uid, gid=user.gid),
    }


def _start_accounting(layout: Layout, state: State) -> None:
    password = secrets.token_hex(16)
    conf = render.render_slurmdbd_conf(layout, login=_login_name(), password=password)
    daemons.write_secret(layout.etc / "slurmdbd.conf", conf.encode(), mode=0o600)
    _start_daemon(layout, state, daemons.munged(layout))
    _start_daemon(layout, state, daemons.mariadbd(layout))
    daemons.grant_database(layout, password)
    _start_daemon(layout, state, daemons.slurmdbd(layout))
    daemons.create_account(layout)


def _start_daemon(layout: Layout, state: State, daemon: Daemon) -> None:
    process = daemons.start(layout, _tree(layout), daemon)
    _record(layout, state, daemon.name, process)
    daemons.wait_until_serving(layout, daemon, process)


def _record(layout: Layout, state: State, name: str, process: Process) -> None:
    state.processes[name] = process
    save_state(layout, state)


def _tree(layout: Layout) -> CgroupTree:
    return CgroupTree(layout.cgroup, cgroup_version())


def _login_name() -> str:
    return socket.gethostname().partition(".")[0]


def _make_null_device(path: Path) -> None:
    """A pretended GPU: a device file with nothing behind it."""
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        run(["mknod", "-m", "666", str(path), "c", "1", "3"])
