"""hpcjet doctor on the lab: two nodes that are well, and what it says of one that is not."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from launching import Launched, Login

from hpcjet.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

BLOCKS = "10000-32767"
"""From where hpcjet takes its ports."""


def examine(login: Login, *words: str) -> Launched:
    return login.hpcjet("doctor", "cluster=lab", "cluster.nodelist='n[1-2]'", "cluster.cpus_per_node=2", *words)


def lines_of(done: Launched) -> dict[str, list[dict[str, Any]]]:
    """Subject -> lines, of the report that was kept."""
    assert done.run, done.output
    found: dict[str, list[dict[str, Any]]] = {}
    for line in json.loads((done.run.path / "doctor.json").read_text())["lines"]:
        found.setdefault(line["subject"], []).append(line)
    return found


def test_two_nodes_that_are_well(lab: Lab, login: Login) -> None:
    done = examine(login)
    assert done.code == 0, done.output
    lines = lines_of(done)
    # What the machine under the lab allows, such as few open files or little time, may be worth a warning.
    ill = {subject for subject, found in lines.items() if any(line["level"] != "ok" for line in found)}
    assert ill <= {"limits", "job end", "temp folder", "CPUs, memory", "/dev/shm", "all-reduce"}, done.output
    assert set(lines) >= {"commands", "runs", "Slurm", "preemption", "job arrays", "partition", "accounting", "MPI"}
    assert set(lines) >= {"sandboxes", "GPUs", "interface", "ports", "temp folder", "Ray", "Slurm there", "proxies"}
    assert "n1 (10.77.0.11:" in lines["ports"][1]["text"] and "reach each other" in lines["ports"][1]["text"]
    assert "n1 and n2: the same" in lines["clocks"][0]["text"]
    assert "n1 and n2 see what the other writes" in lines["shared files"][0]["text"]
    assert "16 MiB over 2 nodes" in lines["all-reduce"][0]["text"]
    assert lines["sandboxes"][0]["nodes"] == ["n1", "n2"]
    assert "python -m hpcjet.launch +exp=noop cluster=lab" in done.output
    assert done.run and done.run.path.stat().st_uid == lab.user.uid


@contextmanager
def firewall(lab: Lab, node: int) -> Iterator[None]:
    """What comes in for hpcjet's ports is dropped, in silence; Slurm's own ports stay open."""
    drop = ["iif", "eth0", "ipproto", "tcp", "dport", BLOCKS, "blackhole", "pref", "50"]
    rules = [["add", "pref", "100", "lookup", "local"], ["del", "pref", "0"], ["add", *drop]]
    undone = [["del", "pref", "50"], ["add", "pref", "0", "lookup", "local"], ["del", "pref", "100"]]
    try:
        for rule in rules:
            done = lab.on_node(node, ["ip", "rule", *rule])
            assert done.returncode == 0, done.stderr
        yield
    finally:
        for rule in undone:
            lab.on_node(node, ["ip", "rule", *rule])


@pytest.mark.parametrize(("closed", "other"), [(1, 2), (2, 1)], ids=["before the head", "before the other"])
def test_a_firewall_between_the_nodes_is_named(lab: Lab, login: Login, closed: int, other: int) -> None:
    with firewall(lab, closed):
        done = examine(login)
    assert done.code == 3, done.output
    (ports,) = (line for line in lines_of(done)["ports"] if line["level"] == "fail")
    assert f"n{other} does not reach n{closed} at 10.77.0.1{closed}:" in ports["text"] and "no answer" in ports["text"]
    assert f"n{closed} does not reach" not in ports["text"] and "firewall" in ports["do"]
    assert "FAIL  ports" in done.output and "Not everything works: ports." in done.output
    assert lines_of(done)["shared files"][0]["level"] == "ok", "the run directory is shared all the same"


def test_a_full_temp_folder_on_one_node_is_named(lab: Lab, login: Login) -> None:
    size = "size=1m,mode=1777"
    mounted = lab.on_node(2, ["mount", "-t", "tmpfs", "-o", size, "tmpfs", "/tmp"])
    assert mounted.returncode == 0, mounted.stderr
    try:
        done = examine(login, "exp.transfer_mb=1")
    finally:
        lab.on_node(2, ["umount", "/tmp"])
    lines = lines_of(done)["temp folder"]
    (ill,) = (line for line in lines if line["nodes"] == ["n2"])
    assert ill["level"] == "warn" and "passed over: /tmp: only" in ill["text"], done.output


def test_a_job_that_slurm_refuses_or_does_not_start(lab: Lab, login: Login, tmp_path: Path) -> None:
    refused = examine(login, "+cluster.sbatch.reservation=nobodys")
    assert refused.code == 3 and "FAIL  job           not submitted: " in refused.output, refused.output
    assert "ok    commands" in refused.output, "what can be seen from here is told all the same"
    early = examine(login, "cluster.python=/nowhere/python")
    assert early.code == 3 and "/nowhere/python: No such file or directory" in " ".join(early.output.split())
    # Tomorrow is soon enough.
    waiting = examine(login, "+cluster.sbatch.begin=now+1day", "--wait", "1")
    assert waiting.code == 3 and "still in the queue after 1 s (BeginTime); cancelled" in waiting.output
    assert login.run("squeue", "-h", "--me").output.strip() == ""
