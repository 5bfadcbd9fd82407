"""The files that the lab's daemons read, as text. Pure: settings in, text out."""

import re
from collections.abc import Sequence

from hpcjet.lab.layout import Layout, node_name

CLUSTER = "hpcjetlab"
DATABASE = "slurm_acct_db"
DATABASE_USER = "slurm"
GPUS_PER_NODE = 4
# Not Slurm's own ports: a Slurm that this machine may have keeps working.
CONTROLLER_PORT = 7817
NODE_PORT = 7818
ACCOUNTING_PORT = 7819

SLURM_CONF = """\
ClusterName={cluster}
SlurmctldHost={login}({login_address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
CommunicationParameters=NoInAddrAny
SlurmctldPort={controller_port}
SlurmdPort={node_port}
MailProg=/bin/true
StateSaveLocation={layout.root}/ctld
SlurmdSpoolDir={layout.root}/nodes/%n/spool
SlurmctldPidFile={layout.run}/slurmctld.pid
SlurmdPidFile={layout.root}/nodes/%n/slurmd.pid
SlurmctldLogFile={layout.log}/slurmctld.log
SlurmdLogFile={layout.log}/%n.log
ProctrackType={proctrack}
TaskPlugin={task}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
MinJobAge=300
KillWait=15
JobRequeue=1
GresTypes=gpu
SlurmdParameters=config_overrides
MpiDefault=pmi2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=1,bf_interval=1
MaxJobCount=50000
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={login_address}
AccountingStoragePort={accounting_port}
AccountingStoragePass={layout.munge_socket}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
{extra}{nodes}
PartitionName=batch Nodes={node_list} Default=YES MaxTime=1-0 DefaultTime=10 State=UP PriorityTier=10
PartitionName=spot Nodes={node_list} MaxTime=1-0 DefaultTime=10 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
"""

SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
DbdHost={login}
DbdAddr={layout.login_address}
DbdPort={accounting_port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StoragePass={password}
StorageLoc={database}
LogFile={layout.log}/slurmdbd.log
PidFile={layout.run}/slurmdbd.pid
"""

CGROUP_CONF_V1 = """\
CgroupAutomount=no
CgroupPlugin=cgroup/v1
ConstrainCores=no
ConstrainRAMSpace=yes
ConstrainDevices=no
"""

# Slurm 22.05 cannot do without a plugin, and its cgroup/v2 wants systemd; this one is loaded and used for nothing.
CGROUP_CONF_V2 = """\
CgroupAutomount=no
CgroupPlugin=cgroup/v1
"""

DATABASE_SQL = """\
create database if not exists {database};
create user if not exists '{user}'@'localhost';
alter user '{user}'@'localhost' identified by '{password}';
grant all on {database}.* to '{user}'@'localhost';
"""

# The first process of a node. It reaps orphans, and all of the node ends with it. The wait for the cable has a limit in
# case the lab's own process died in between.
NODE_INIT = """\
#!/bin/sh
# The first process of a node of the hpcjet lab: node-init NAME ADDRESS/PREFIX
set -eu
name=$1 address=$2
hostname "$name"
mount -t sysfs sysfs /sys
{cgroup_mounts}mount --bind {layout.root}/nodes/"$name"/tmp /tmp
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm
mount --bind {layout.etc}/hosts /etc/hosts
mount --bind {layout.etc} /etc/slurm
tries=0
until ip link show eth0 >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 500 ] || {{ echo "$name: no network cable after 10 s" >&2; exit 1; }}
    sleep 0.02
done
ip link set lo up
ip address add "$address" dev eth0
ip link set eth0 up
slurmd -D -N "$name" &
wait $!
"""

CGROUP_MOUNTS_V1 = """\
mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
for controller in {controllers}; do
    mkdir /sys/fs/cgroup/$controller
    mount -t cgroup -o $controller cgroup /sys/fs/cgroup/$controller
done
"""

CGROUP_MOUNT_V2 = """\
mount -t cgroup2 cgroup /sys/fs/cgroup
"""

# A command on the login node: the machine itself, with the lab's /etc/hosts and /etc/slurm in a mount namespace.
LOGIN_ENTER = """\
#!/bin/sh
# Runs a command as the lab's user on the login node of the hpcjet lab: unshare --mount login-enter COMMAND ...
set -eu
for procs in {procs}; do echo $$ >"$procs"; done
mount --bind {layout.etc}/hosts /etc/hosts
mount --bind {layout.etc} /etc/slurm
exec setpriv --reuid {uid} --regid {gid} --clear-groups -- /usr/bin/env -- "$@"
"""


def render_slurm_conf(layout: Layout, *, nodes: int, login: str, cgroup_version: int) -> str:
    """slurm.conf for `nodes` pretended nodes; `login` is the short hostname of this machine."""
    tracked = cgroup_version == 1
    return SLURM_CONF.format(
        layout=layout,
        cluster=CLUSTER,
        login=login,
        login_address=layout.login_address,
        controller_port=CONTROLLER_PORT,
        node_port=NODE_PORT,
        accounting_port=ACCOUNTING_PORT,
        proctrack="proctrack/cgroup" if tracked else "proctrack/linuxproc",
        task="task/cgroup" if tracked else "task/none",
        extra="" if tracked else "JobAcctGatherParams=OverMemoryKill\n",
        nodes="\n".join(_node_line(layout, index) for index in range(1, nodes + 1)),
        node_list=f"n[1-{nodes}]",
    )


def render_slurmdbd_conf(layout: Layout, *, login: str, password: str) -> str:
    """slurmdbd.conf; it holds the database password, so it must be written for root alone."""
    return SLURMDBD_CONF.format(
        layout=layout,
        login=login,
        accounting_port=ACCOUNTING_PORT,
        user=DATABASE_USER,
        password=password,
        database=DATABASE,
    )


def render_database_sql(password: str) -> str:
    return DATABASE_SQL.format(database=DATABASE, user=DATABASE_USER, password=password)


def render_gres_conf(layout: Layout, *, nodes: int) -> str:
    return f"NodeName=n[1-{nodes}] Name=gpu File={layout.gpus}/gpu[0-{GPUS_PER_NODE - 1}]\n"


def render_cgroup_conf(cgroup_version: int) -> str:
    return CGROUP_CONF_V1 if cgroup_version == 1 else CGROUP_CONF_V2


def render_node_init(layout: Layout, *, cgroup_version: int, controllers: Sequence[str]) -> str:
    mounts = CGROUP_MOUNTS_V1.format(controllers=" ".join(controllers)) if cgroup_version == 1 else CGROUP_MOUNT_V2
    return NODE_INIT.format(layout=layout, cgroup_mounts=mounts)


def render_login_enter(layout: Layout, *, procs_files: Sequence[str], uid: int, gid: int) -> str:
    return LOGIN_ENTER.format(layout=layout, procs=" ".join(procs_files), uid=uid, gid=gid)


def render_hosts(layout: Layout, *, nodes: int, login: str, machine_hosts: str) -> str:
    """The lab's names first, then the machine's own lines without those names (it may call itself 127.0.0.1)."""
    names = {login, *(node_name(index) for index in range(1, nodes + 1))}
    lab = [f"{layout.login_address} {login}"]
    lab += [f"{layout.node_address(index)} {node_name(index)}" for index in range(1, nodes + 1)]
    kept = [line for line in (_without(line, names) for line in machine_hosts.splitlines()) if line]
    return "\n".join([*lab, *kept]) + "\n"


def _without(line: str, names: set[str]) -> str:
    address, *aliases = re.sub(r"#.*", "", line).split() or [""]
    left = [alias for alias in aliases if alias not in names]
    return " ".join([address, *left]) if left else ""


def _node_line(layout: Layout, index: int) -> str:
    return (
        f"NodeName={node_name(index)} NodeAddr={layout.node_address(index)} "
        f"CPUs=8 CoresPerSocket=8 RealMemory=16000 Gres=gpu:{GPUS_PER_NODE} State=UNKNOWN"
    )
