"""The daemons beside the nodes: munge, the accounting database, slurmdbd and slurmctld, all with files of their own."""

import os
import secrets
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hpcjet.errors import LabError
from hpcjet.lab.cgroups import CgroupTree
from hpcjet.lab.layout import ACCOUNT, USER, Layout
from hpcjet.lab.process import Process, clean_environment, holds, in_groups, is_alive, run, start_daemon
from hpcjet.lab.render import CLUSTER, render_database_sql

GROUP = "host"
READY_S = 30
DATABASE_OPTIONS = ("--skip-test-db", "--auth-root-authentication-method=socket", "--innodb-log-file-size=16M")
TAIL_LINES = 15


@dataclass(frozen=True)
class Daemon:
    """A command that serves until it is stopped, and a probe that prints `answer` once it serves."""

    name: str
    argv: tuple[str, ...]
    probe: tuple[str, ...]
    answer: str


def munged(layout: Layout) -> Daemon:
    """A munged with a key that no other munge domain shares."""
    files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "seed-file": "seed"}
    argv = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "/usr/sbin/munged", "--foreground"]
    argv += [f"--{option}={layout.munge / file}" for option, file in files.items()]
    probe = ("munge", "--no-input", f"--socket={layout.munge_socket}")
    return Daemon("munged", tuple(argv), probe, "MUNGE:")


def mariadbd(layout: Layout) -> Daemon:
    """A MariaDB that listens on a socket file only."""
    argv = ["/usr/sbin/mariadbd", "--no-defaults", "--user=mysql", "--skip-networking"]
    argv += [f"--datadir={layout.database}", f"--socket={layout.database_socket}"]
    argv += [f"--pid-file={layout.database_socket.with_name('pid')}"]
    # What slurmdbd asks for; and the lab may lose a second of accounting in a power cut, for a quicker start.
    argv += ["--innodb-buffer-pool-size=128M", "--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=2"]
    probe = ("mariadb-admin", "--no-defaults", f"--socket={layout.database_socket}", "ping")
    return Daemon("mariadbd", tuple(argv), probe, "alive")


def slurmdbd(layout: Layout) -> Daemon:
    probe = ("sacctmgr", "--noheader", "--parsable2", "show", "user", "root", "format=user")
    return Daemon("slurmdbd", ("/usr/sbin/slurmdbd", "-D"), probe, "root")


def slurmctld(layout: Layout, *, fresh: bool = False) -> Daemon:
    """The controller; a `fresh` one drops the jobs and node states of an earlier lab."""
    argv = ("/usr/sbin/slurmctld", "-D", *(("-c",) if fresh else ()))
    return Daemon("slurmctld", argv, ("scontrol", "ping"), "is UP")


def prepare_munge(layout: Layout) -> None:
    """Make the key, once per lab root."""
    layout.munge.mkdir(exist_ok=True)
    shutil.chown(layout.munge, "munge", "munge")
    key = layout.munge / "key"
    if key.exists():
        return
    fresh = key.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    write_secret(fresh, secrets.token_bytes(1024), mode=0o400)
    shutil.chown(fresh, "munge", "munge")
    fresh.rename(key)


def prepare_database(layout: Layout, tree: CgroupTree) -> None:
    """Make the empty database, once per lab root; it is renamed into place, so half of one is never used."""
    layout.database_socket.parent.mkdir(exist_ok=True)
    shutil.chown(layout.database_socket.parent, "mysql", "mysql")
    if layout.database.is_dir():
        return
    for stale in layout.root.glob("mysql-new-*"):
        shutil.rmtree(stale, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix="mysql-new-", dir=layout.root))
    shutil.chown(fresh, "mysql", "mysql")
    install = ["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={fresh}", *DATABASE_OPTIONS]
    # In the lab's group, since it lives on if the `up` that started it is killed.
    run(in_groups(tree.procs_files(GROUP), install))
    fresh.rename(layout.database)


def grant_database(layout: Layout, password: str) -> None:
    """Let slurmdbd in; the password goes through a pipe, not through argv."""
    run(["mariadb", "--no-defaults", f"--socket={layout.database_socket}"], stdin=render_database_sql(password))


def create_account(layout: Layout) -> None:
    """Give the lab's user an account, without which the controller takes no job of theirs."""
    env = slurm_environment(layout)
    show = [
        "sacctmgr",
        "--noheader",
        "--parsable2",
        "show",
        "assoc",
        f"cluster={CLUSTER}",
        f"user={USER}",
        "format=user",
    ]
    if run(show, env=env).strip():
        return
    for words in (["cluster", CLUSTER], ["account", ACCOUNT], ["user", USER, f"account={ACCOUNT}"]):
        # It fails where the thing exists; whether all is there in the end is asked below.
        subprocess.run(["sacctmgr", "--immediate", "--quiet", "add", *words], env=env, capture_output=True)
    if not run(show, env=env).strip():
        raise LabError(f"slurmdbd did not take account {ACCOUNT} for user {USER}; {tail(layout, 'slurmdbd')}")


def slurm_environment(layout: Layout) -> dict[str, str]:
    """For Slurm's commands and daemons on this machine itself."""
    # slurmdbd has no setting for the database's socket file; the client library takes it from here.
    return clean_environment(SLURM_CONF=str(layout.slurm_conf), MYSQL_UNIX_PORT=str(layout.database_socket))


def start(layout: Layout, tree: CgroupTree, daemon: Daemon) -> Process:
    output = layout.output_of(daemon.name)
    return start_daemon(daemon.argv, procs_files=tree.procs_files(GROUP), output=output, env=slurm_environment(layout))


def serves(layout: Layout, daemon: Daemon) -> bool:
    done = subprocess.run(daemon.probe, env=slurm_environment(layout), capture_output=True, text=True, cwd="/")
    return daemon.answer in done.stdout


def wait_until_serving(layout: Layout, daemon: Daemon, process: Process) -> None:
    """Return once the daemon serves; LabError with the end of its log if it ends or takes too long."""
    if holds(lambda: serves(layout, daemon) or not is_alive(process), within_s=READY_S) and is_alive(process):
        return
    what = f"does not serve after {READY_S} s" if is_alive(process) else "ended while the lab waited for it"
    raise LabError(f"{daemon.name} {what}; {tail(layout, daemon.name)}")


def tail(layout: Layout, name: str) -> str:
    """Which log of this daemon to read, and its last lines."""
    for path in (layout.log_of(name), layout.output_of(name)):
        if path.exists() and (lines := path.read_text(errors="replace").splitlines()):
            return "\n    ".join([f"{path} ends with", *lines[-TAIL_LINES:]])
    return f"{layout.output_of(name)} is empty"


def write_secret(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file that was never readable for anybody else, not even while it was empty."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    path.chmod(mode)
