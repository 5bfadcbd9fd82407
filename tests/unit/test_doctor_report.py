"""The report of hpcjet doctor: what is alike is said once, nodes that differ are named, all fits into 80 columns."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from hpcjet import checkup
from hpcjet.config.cluster import SlurmConfig
from hpcjet.doctor.line import Facts, Level, fail, ok, warn
from hpcjet.doctor.node import SUBJECTS
from hpcjet.doctor.render import quoted, render
from hpcjet.doctor.report import (
    Examined,
    Section,
    as_json,
    between_section,
    merged,
    missing_lines,
    node_section,
    shortened,
    worst,
)
from hpcjet.errors import ConfigError
from hpcjet.rundir import RunDir

HOSTS = ("n1", "n2")
GIB = 1024**3


def looks(**changes: Facts) -> dict[str, Facts]:
    """What a good node tells."""
    link = {"name": "ib0", "address": "10.3.0.1", "network": "10.3.0.0/16", "kind": "infiniband", "mbit": 200_000}
    temp = {"base": "/tmp", "why": "", "free": 80 * GIB, "inodes": None, "remote": False, "noexec": False}
    return {
        "system": {"kernel": "5.14.0", "name": "RHEL 9.4", "machine": "x86_64"},
        "python": {"version": "3.11.2", "hpcjet": "0.1.0", "prefix": "/home/me/venv"},
        "sandboxes": {"kind": "bwrap", "version": "0.11.0", "overlay": True, "reason": "", "denial": ""},
        "resources": {"cgroup": 2, "cpus": 64, "memory": 256 * GIB, "warnings": []},
        "gpus": {"count": 0, "warnings": [], "tool": "", "names": [], "said": ""},
        "interface": {"links": [], "alone": False, "link": {**link, "device": None}, "doubts": []},
        "names": {"host": "n1", "slurm": "n1", "nodes": 2, "address": "10.1.0.1"},
        "ports": {"base": 12_000, "floor": 32_768},
        "temp": {"chosen": "/tmp", "bases": [temp]},
        "shared_memory": {"total": 128 * GIB, "free": 120 * GIB},
        "limits": {"files": 131_072, "files_hard": 524_288, "processes": None},
        "folders": {"run": "", "home": "", "path": "/home/me"},
        "slurm_on_node": {"scontrol": True, "srun": True, "said": ""},
        "proxies": {"names": [], "left": []},
        "ray_options": {"version": "2.60.0", "unknown": []},
        **changes,
    }


def way(**changes: Any) -> Facts:
    return {
        "where": "10.3.0.1:12011",
        "reached": {"reached": True},
        "clock": {"offset_s": 0.00001, "round_trip_s": 0.0001},
        "files": {"there": 0.01, "back": 0.02},
        **changes,
    }


def node(rank: int, between: Facts | None = None, **changes: Facts) -> Facts:
    reduce = {"kind": "TCP", "mbit": 200_000, "bytes": 16 * 2**20, "seconds": 0.02}
    other = "0" if rank else "1"
    usual = {"met": [0, 1], "ways": {other: way()}, "allreduce": reduce}
    return {"host": f"n{rank + 1}", "rank": rank, "looks": looks(**changes), "between": {**usual, **(between or {})}}


def examined(*nodes: Facts, **more: Any) -> Examined:
    return Examined(HOSTS, {each["rank"]: each for each in nodes}, **more)


def text_of(*sections: Section, overrides: tuple[str, ...] = ("cluster=slurm",), colour: bool = False) -> str:
    text = render(sections, hosts=HOSTS, overrides=overrides, colour=colour)
    if not colour:
        assert max(map(len, text.splitlines())) <= 80, text
    return text


def test_every_look_has_its_facts_here() -> None:
    assert set(looks()) == set(SUBJECTS)


def test_two_nodes_that_are_alike() -> None:
    sections = [node_section(examined(node(0), node(1))), between_section(examined(node(0), node(1)))]
    assert worst(sections) is Level.ok
    text = text_of(*sections)
    assert text.startswith("nodes: n1, n2\n  ok    system        Linux 5.14.0, RHEL 9.4, x86_64\n")
    assert "  ok    temp folder   /tmp, at least 80 GiB free\n" in text
    assert "n1: " not in text.split("between")[0], "what is alike is said once, without names"
    assert "  ok    clocks        n1 and n2: the same (known to 50 µs)\n" in text
    assert text.endswith(
        "\n\nEverything that runs need works here. Next, a run that only starts Ray, then\nagents:\n"
        "  python -m hpcjet.launch +exp=noop cluster=slurm\n  python -m hpcjet.launch +exp=swe cluster=slurm\n"
    )


def test_a_node_that_differs_is_named() -> None:
    denied = {"kind": "none", "version": "0.11.0", "overlay": False, "denial": "apparmor",
              "reason": "no sandbox can be opened: bwrap: setting up uid map: denied (apparmor); ask X"}  # fmt: skip
    text = text_of(node_section(examined(node(0), node(1, sandboxes=denied))))
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if "FAIL" in line)
    assert lines[at] == "  FAIL  sandboxes     n2: no sandbox can be opened: bwrap: setting up uid map:"
    assert lines[at + 2].startswith("        do: ask X (without sandboxes")
    assert "  ok    sandboxes     n1: user namespaces, bubblewrap 0.11.0, overlays" in lines
    assert "Not everything works: sandboxes." in text and lines[-1] == "  hpcjet doctor cluster=slurm"


def test_amounts_that_differ_are_one_line() -> None:
    lines = [ok("temp", "/tmp, {} free", amount=GIB * free) for free in (80, 30)]
    (line,) = merged(lines)
    assert line.amount == 30 * GIB


def test_a_look_that_came_to_nothing_is_a_warning() -> None:
    section = node_section(examined(node(0), node(1, temp={"error": "no end within 30 s"})))
    (line,) = (each for each in section.lines if each.level is Level.warn)
    assert (line.subject, line.nodes) == ("temp folder", ("n2",)) and "no end within 30 s" in line.text


def test_a_node_that_does_not_answer() -> None:
    said = "srun: error: n2: task 1: Exited with exit code 2\n.venv/bin/python: No module named hpcjet"
    (line,) = missing_lines(examined(node(0), said=said, lost=("n2",)))
    assert line.level is Level.fail and "n2 told nothing of itself: its node agent was lost" in line.text
    assert "n2: task 1: Exited" in line.text
    (line,) = missing_lines(examined(node(0), node(1), lost=("n2",)))
    assert line.level is Level.fail and "n2: its node agent was lost" in line.text
    assert missing_lines(examined(node(0), node(1))) == []


def test_a_firewall_between_the_nodes() -> None:
    silent = {"reached": False, "how": "silent", "error": "timed out"}
    blocked = {"where": "10.3.0.1:12011", "reached": silent}
    heads = node(0, {"allreduce": {"error": "x"}})
    del heads["between"]["allreduce"]
    other = node(1, {"ways": {"0": blocked}})
    del other["between"]["allreduce"]
    section = between_section(examined(heads, other))
    assert [(line.level.value, line.subject) for line in section.lines] == [
        ("ok", "shared files"),
        ("fail", "ports"),
        ("warn", "all-reduce"),
    ]
    assert "n2 does not reach n1 at 10.3.0.1:12011: no answer" in section.lines[1].text
    assert "firewall" in section.lines[1].do


def test_nodes_that_do_not_share_the_run_directory() -> None:
    alone = {"met": [1], "ways": {}, "allreduce": {"kind": "TCP", "mbit": None, "error": "x"}}
    section = between_section(examined(node(0, {"met": [0], "ways": {}}), node(1, alone)))
    found = {line.subject: line for line in section.lines}
    assert found["shared files"].level is Level.fail and "n2 saw nothing that n1 wrote" in found["shared files"].text


def test_a_node_that_could_not_take_part() -> None:
    section = between_section(examined(node(0), {**node(1), "between": {"error": "BootstrapError: no route"}}))
    assert "n2: BootstrapError: no route" in section.lines[0].text and section.lines[0].level is Level.warn


def test_a_head_that_told_nothing() -> None:
    """The other node is reported all the same."""
    found = examined(node(1))
    assert [line.subject for line in missing_lines(found)] == ["answer"]
    section = between_section(found)
    assert {line.subject: line.level.value for line in section.lines}["ports"] == "fail"


def test_of_many_nodes_that_are_well_one_is_shown() -> None:
    lines = [ok("clocks", f"n1 and n{number}: the same") for number in range(2, 33)]
    ill = warn("clocks", "n40 is 7.0 s ahead of n1", "set it")
    assert [line.text for line in shortened([*lines, ill])] == [
        "n40 is 7.0 s ahead of n1",
        "n1 and n2: the same; likewise 30 more nodes",
    ]


def test_colour_is_for_terminals() -> None:
    section = Section("nodes", (fail("ports", "n1 does not reach n2", "ask"), ok("GPUs", "none")))
    assert "\033" not in text_of(section)
    coloured = text_of(section, colour=True)
    assert "\033[1;31mFAIL\033[0m" in coloured and "\033[32mok  \033[0m" in coloured


def test_for_scripts() -> None:
    section = Section("nodes", (warn("limits", "{} free", "ask", amount=2**20),))
    data = json.loads(as_json([section], run="/r", facts={"nodes": []}))
    assert data["verdict"] == "warn" and data["run"] == "/r"
    assert data["lines"] == [
        {"section": "nodes", "level": "warn", "subject": "limits", "text": "1 MiB free", "do": "ask",
         "amount": 2**20, "nodes": []}
    ]  # fmt: skip


def test_next_commands_can_be_pasted() -> None:
    text = render(
        [Section("x", (ok("a", "b"),))],
        hosts=(),
        overrides=["cluster=slurm", "cluster.setup=['module load x']"],
        colour=False,
    )
    assert """python -m hpcjet.launch +exp=noop cluster=slurm "cluster.setup=['module load x']\"""" in text
    text = render([Section("x", (ok("a", "b"),))], hosts=(), overrides=["exp.transfer_mb=1"], colour=False)
    assert "transfer_mb" not in text, "a key of the doctor's own"
    for word in ("~cluster.env", "cluster.setup=['echo $HOME']", 'run.root="a b"', "a='b\"c'"):
        assert shlex.split(quoted(word)) == [word]


def test_what_a_doctor_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCJET_CLUSTER", raising=False)
    cluster = checkup.with_defaults(["cluster=slurm", "cluster.account=abc"]).cluster
    assert isinstance(cluster, SlurmConfig)
    assert (cluster.nodes, cluster.time_min, cluster.min_nodes, cluster.requeue) == (2, 5, 1, False)
    cluster = checkup.with_defaults(["cluster=slurm", "cluster.nodes=4", "cluster.time_min=30"]).cluster
    assert isinstance(cluster, SlurmConfig) and (cluster.nodes, cluster.time_min) == (4, 30)
    assert not checkup.with_defaults([]).exp.wants_ray
    for wrong in (
        "dry_run=true",
        "submit=false",
        "follow=false",
        "+exp=noop",
        "cluster.nope=1",
        "exp.transfer_mb=1025",
    ):
        with pytest.raises(ConfigError):
            checkup.with_defaults(["cluster=slurm", wrong])


def test_answers_are_read_where_they_are(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert checkup.read_answers(run) == Examined((), {})
    folder = tmp_path / "doctor"
    folder.mkdir()
    (folder / "step.json").write_text(json.dumps({"hosts": HOSTS, "lost": ["n2"], "said": "srun: error"}))
    (folder / "node-0.json").write_text(json.dumps(node(0)))
    found = checkup.read_answers(run)
    assert (found.hosts, list(found.nodes), found.lost, found.said) == (HOSTS, [0], ("n2",), "srun: error")
