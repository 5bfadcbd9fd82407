"""What the lab writes for its daemons."""

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from hpcjet.lab import render
from hpcjet.lab.layout import Layout

LAYOUT = Layout(root=Path("/srv/lab"), subnet=IPv4Network("10.78.0.0/24"))


def test_slurm_conf_names_every_node_with_its_address() -> None:
    lines = render.render_slurm_conf(LAYOUT, nodes=2, login="here", cgroup_version=1).splitlines()
    assert "SlurmctldHost=here(10.78.0.1)" in lines
    assert [line for line in lines if line.startswith("NodeName=")] == [
        "NodeName=n1 NodeAddr=10.78.0.11 CPUs=8 CoresPerSocket=8 RealMemory=16000 Gres=gpu:4 State=UNKNOWN",
        "NodeName=n2 NodeAddr=10.78.0.12 CPUs=8 CoresPerSocket=8 RealMemory=16000 Gres=gpu:4 State=UNKNOWN",
    ]
    assert [line.split()[1] for line in lines if line.startswith("PartitionName=")] == ["Nodes=n[1-2]"] * 2


@pytest.mark.parametrize(
    ("version", "expected", "absent"),
    [
        pytest.param(1, ["ProctrackType=proctrack/cgroup", "TaskPlugin=task/cgroup"], "OverMemoryKill", id="v1"),
        pytest.param(2, ["ProctrackType=proctrack/linuxproc", "JobAcctGatherParams=OverMemoryKill"], "cgroup", id="v2"),
    ],
)
def test_slurm_conf_follows_the_cgroup_version(version: int, expected: list[str], absent: str) -> None:
    text = render.render_slurm_conf(LAYOUT, nodes=1, login="here", cgroup_version=version)
    assert set(expected) <= set(text.splitlines())
    assert absent not in text


def test_everything_slurm_keeps_lies_below_the_root() -> None:
    text = render.render_slurm_conf(LAYOUT, nodes=1, login="here", cgroup_version=1)
    paths = [line.rpartition("=")[2] for line in text.splitlines() if "=/" in line]
    assert [path for path in paths if not path.startswith("/srv/lab/")] == ["/bin/true"]


def test_hosts_puts_the_lab_first_and_takes_its_names_from_the_rest() -> None:
    machine = "127.0.0.1 localhost\n127.0.0.1 here\n# n1 was here\n192.0.2.7 other n1 # a comment\n\n::1 localhost\n"
    text = render.render_hosts(LAYOUT, nodes=1, login="here", machine_hosts=machine)
    assert text.splitlines() == [
        "10.78.0.1 here",
        "10.78.0.11 n1",
        "127.0.0.1 localhost",
        "192.0.2.7 other",
        "::1 localhost",
    ]


def test_only_version_1_mounts_controllers() -> None:
    first = render.render_node_init(LAYOUT, cgroup_version=1, controllers=["freezer", "memory"])
    second = render.render_node_init(LAYOUT, cgroup_version=2, controllers=[])
    assert "for controller in freezer memory; do" in first
    assert "mount -t cgroup2 cgroup /sys/fs/cgroup" in second
    assert "controller" not in second


def test_the_password_stands_in_the_secret_file_only() -> None:
    assert "StoragePass=sesame" in render.render_slurmdbd_conf(LAYOUT, login="here", password="sesame")
    assert "identified by 'sesame'" in render.render_database_sql("sesame")
