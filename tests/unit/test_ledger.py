"""The ledger, on histories made by hand: restarts of the head, ends that nobody noted, clocks that differ."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcjet.cluster.events import Entry, Event, Events
from hpcjet.config.compose import compose
from hpcjet.ledger import KINDS, Ledger, ledger_lines, read_ledger
from hpcjet.ledger.account import Size, Work, account
from hpcjet.ledger.picture import pictures
from hpcjet.ledger.spans import spans
from hpcjet.plan import Plan, make_plan
from hpcjet.rundir import RunDir

T0 = 1_700_000_000.0
GROUPS = "+cluster.groups={head: {nodes: 1, cpus_per_node: 2}, cpu: {nodes: 0, max: 4, gpus_per_node: 2}}"


def plan(*words: str, run: Path = Path("/r")) -> Plan:
    config = compose([*(words or ("+exp=swe", "engine=oracle")), "cluster=slurm", "cluster.form=jobs", GROUPS])
    return make_plan(config, run_dir=RunDir(run), python="python3")


def note(t: float, event: str, member: str = "", *, restart: int = 0, **facts: str | int | float) -> Entry:
    about: dict[str, str | int | float] = {}
    if member:
        about = {
            "host": "h" + member.replace("-", "x").replace(":", "x"),
            "member": member,
            "group": "cpu",
            "noted": T0 + t,
        }
    return Entry(T0 + t, event, "9", restart, {**about, **facts})


def head(begin: float, end: float | None, *, restart: int = 0, requeued: bool = False) -> list[Entry]:
    """Allocated, 5 s later in Ray and at work until 5 s before the end."""
    member = f"9-{restart}:0"
    entries = [
        note(begin, "allocated", restart=restart),
        note(begin + 1, "agent_up", member, restart=restart, rank=0),
        note(begin + 5, "ray_up", member, restart=restart),
        note(begin + 5, "workload_start", restart=restart),
    ]
    if end is not None:
        entries.append(note(end - 5, "workload_end", restart=restart))
        entries.append(note(end, "requeued" if requeued else "released", restart=restart))
    return entries


def worker(up: float, joined: float, *, name: str = "10-0:0", restart: int = 0) -> list[Entry]:
    return [
        note(up, "agent_up", name, restart=restart, rank=0, noted=T0 + joined),
        note(joined, "ray_up", name, restart=restart),
    ]


def as_written(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: (entry.restart, float(entry.facts.get("noted", entry.t))))


def ledger(
    entries: list[Entry], usage: dict[str, dict[str, Any]] | None = None, *, now: float = 0.0, by_attempts: bool = True,
    **work: Any,
) -> Ledger:  # fmt: skip
    found = spans(as_written(entries), plan(), now=T0 + now)
    sizes = {"head": Size(cpus=2, gpus=0), "cpu": Size(gpus=2)}
    return account(found, Work(usage=usage or {}, by_attempts=by_attempts, **work), sizes=sizes)


def of(found: Ledger, group: str) -> dict[str, float]:
    [use] = [each for each in found.groups if each.name == group]
    return {kind: round(seconds, 1) for kind, seconds in use.seconds.items() if seconds}


def test_one_node_that_joins_works_and_is_given_back() -> None:
    entries = [*head(0, 1000), *worker(100, 110), note(400, "drain", "10-0:0"), note(410, "left", "10-0:0")]
    found = ledger(entries, {"10-0:0": {"group": "cpu", "busy_s": 250.0, "wasted_s": 20.0, "lost": 1}})
    assert of(found, "cpu") == {"busy": 250, "idle": 20, "booting": 10, "draining": 10, "wasted": 20}
    assert of(found, "head") == {"busy": 990, "idle": 5, "booting": 5}, "the driver is its work"
    assert found.total_s == 1310 and found.share("wasted") == pytest.approx(20 / 1310)
    cpu = found.to_json()["groups"]["cpu"]
    assert cpu["gpu_hours"]["busy"] == pytest.approx(500 / 3600, abs=1e-4) and cpu["cpu_hours"] is None
    assert (cpu["nodes"], cpu["most_at_once"], cpu["attempts_lost"]) == (1, 1, 1)


def test_a_node_boots_until_a_process_there_can_begin() -> None:
    entries, usage = [*head(0, 1000), *worker(100, 110)], {"group": "cpu", "busy_s": 700.0, "ready": T0 + 125}
    assert of(ledger(entries, {"10-0:0": usage}), "cpu") == {"busy": 700, "idle": 175, "booting": 25}
    never = {"group": "cpu", "ready": 0.0}
    assert of(ledger(entries, {"10-0:0": never}), "cpu") == {"booting": 900}
    late = {**usage, "ready": T0 + 5000}
    assert of(ledger(entries, {"10-0:0": late}), "cpu") == {"busy": 700, "booting": 200}


def test_a_node_that_is_preempted_is_had_until_then() -> None:
    entries = [*head(0, 1000), *worker(100, 110), note(300, "leaving", "10-0:0"), note(300, "node_lost", "10-0:0")]
    found = ledger(entries, {"10-0:0": {"group": "cpu", "busy_s": 100.0, "wasted_s": 90.0}})
    assert of(found, "cpu") == {"busy": 100, "booting": 10, "wasted": 90}


def test_a_node_of_the_head_allocation_that_dies_is_had_to_the_end() -> None:
    one = make_plan(
        compose(["+exp=swe", "engine=oracle", "cluster=slurm", "cluster.nodes=3"]),
        run_dir=RunDir(Path("/r")),
        python="p",
    )
    entries = [
        *head(0, 1000), note(2, "agent_up", "9-0:1", rank=1), note(10, "ray_up", "9-0:1"),
        note(300, "node_lost", "9-0:1"), note(301, "node_lost", "9-0:1"),
    ]  # fmt: skip
    found = account(spans(as_written(entries), one, now=0), Work(by_attempts=True), sizes={"main": Size()})
    [use] = found.groups
    assert use.seconds == pytest.approx(
        {"busy": 990, "idle": 5 + 290, "booting": 5 + 10 + 1000, "draining": 0, "wasted": 700}
    ), "the third one never said a word"
    assert (use.members, use.most) == (3, 3)


def test_a_restart_of_the_head_has_its_workers_wait() -> None:
    """The agent tells again when it started, which was in the life before."""
    entries = [
        *head(0, 500, requeued=True), *head(600, 1000, restart=1), *worker(100, 110),
        *worker(100, 620, restart=1), note(900, "left", "10-0:0", restart=1),
    ]  # fmt: skip
    found = ledger(entries, {"10-0:0": {"group": "cpu", "busy_s": 600.0}})
    assert of(found, "cpu") == {"busy": 600, "idle": 390 + 280 - 600, "booting": 10 + 120}
    assert of(found, "head")["booting"] == 10 and found.groups[0].most == 1


def test_a_worker_that_finds_no_other_head_waited_until_it_gave_up() -> None:
    apart = replace(note(700, "gave_up"), allocation="10", apart=True)
    entries = [*head(0, 500, requeued=True), *head(2000, 2100, restart=1), *worker(100, 110)]
    assert of(ledger([apart, *entries]), "cpu") == {"idle": 390, "booting": 210}
    assert of(ledger(entries), "cpu") == {"idle": 390, "booting": 10}, "nobody knows how long it waited"


def test_a_head_that_was_killed_was_had_until_its_last_word() -> None:
    entries = [*head(0, None), note(400, "stop_asked"), *head(600, 700, restart=1)]
    assert of(ledger(entries), "head") == {"busy": 395 + 90, "idle": 5, "booting": 10}
    alone = [*head(0, None)]
    assert of(ledger(alone, now=300), "head") == {"busy": 295, "booting": 5}
    assert of(ledger(alone, now=2), "head") == {"booting": 5}, "no time passes backwards"


def test_a_clock_that_is_ahead_makes_no_time() -> None:
    ahead = [replace(entry, t=entry.t + 5000) if entry.event == "agent_up" else entry for entry in worker(100, 110)]
    found = ledger([*head(0, 1000), *ahead, note(400, "left", "10-0:0")], {"10-0:0": {"group": "cpu", "busy_s": 99.0}})
    assert sum(of(found, "cpu").values()) <= 301 and of(found, "cpu")["busy"] == 99


def test_more_use_than_time_is_cut() -> None:
    found = ledger([*head(0, 1000), *worker(100, 110)], {"10-0:0": {"busy_s": 5000.0, "wasted_s": 5000.0}})
    assert of(found, "cpu") == {"busy": 890, "booting": 10}


def test_what_is_under_way_is_work_while_the_run_goes_on() -> None:
    entries, usage = [*head(0, None), *worker(100, 110)], {"10-0:0": {"busy_s": 100.0, "running_s": 50.0}}
    assert of(ledger(entries, usage, now=300, is_over=False), "cpu")["busy"] == 150
    assert of(ledger(entries, usage, now=300), "cpu")["wasted"] == 50


def test_without_attempts_a_node_works_as_long_as_the_workload_runs() -> None:
    found = ledger([*head(0, 1000), *worker(100, 110)], by_attempts=False, whole={"head", "cpu"})
    assert of(found, "cpu") == {"busy": 885, "idle": 5, "booting": 10}
    served = ledger([*head(0, 1000), *worker(100, 110)], whole={"cpu"})
    assert of(served, "cpu") == of(found, "cpu"), "an engine is there"
    none = ledger([*head(0, 1000), *worker(100, 110)], by_attempts=False, whole={"head"})
    assert of(none, "cpu") == {"idle": 890, "booting": 10}


def test_nothing_happened() -> None:
    found = ledger([])
    assert found.total_s == 0 and found.share("busy") == 0 and ledger_lines(found) == []
    assert ledger([note(0, "submitted")]).total_s == 0


def test_the_table_is_narrow_and_adds_up() -> None:
    entries = [*head(0, 100_000)]
    for number in range(50):
        entries += worker(100, 110, name=f"{number + 10}-0:0")
    found = ledger(entries, {f"{n + 10}-0:0": {"group": "cpu", "busy_s": 90_000.0, "lost": 2} for n in range(50)})
    lines = ledger_lines(found)
    assert all(len(line) <= 80 for line in lines)
    assert [line.split() for line in lines[:4]] == [
        ["node-h", "GPU-h", *KINDS],
        ["head", "27.8", "0.0", "100", "%", "<1", "%", "<1", "%", "0", "%", "0", "%"],
        ["cpu", "1,388", "2,775", "90", "%", "10", "%", "<1", "%", "0", "%", "0", "%"],
        ["all", "1,415", "2,775", "90", "%", "10", "%", "<1", "%", "0", "%", "0", "%"],
    ]
    assert lines[4] == "100 attempts were lost with their nodes or processes"


def test_thousands_of_nodes_are_quick() -> None:
    entries = [*head(0, 100_000)]
    for number in range(4000):
        name = f"{number + 10}-0:0"
        entries += [*worker(100 + number, 110 + number, name=name), note(9000 + number, "left", name)]
    begin = time.process_time()
    assert ledger(sorted(entries, key=lambda entry: entry.t)).groups[1].members == 4000
    assert time.process_time() - begin < 10


def test_the_picture_shows_the_nodes_of_each_group_over_time() -> None:
    entries = [*head(0, 1000), *worker(500, 500.0), *worker(500, 750, name="11-0:0")]
    drawn = pictures(ledger(entries).spans, ["head", "cpu", "none"])
    assert [(each.name, each.most) for each in drawn] == [("head", 1), ("cpu", 2)]
    joined, booting = drawn[1].areas
    assert (joined.stand, joined.path) == ("joined", "M0 60L480 60L480 30L720 30L720 0L960 0L960 60L0 60Z")
    assert (booting.stand, booting.path) == (
        "booting",
        "M0 60L480 60L480 0L960 0L960 0L720 0L720 30L480 30L480 60L0 60Z",
    )
    assert pictures([], ["head"]) == []


@pytest.mark.parametrize(
    ("words", "groups"),
    [
        (("+exp=noop",), {"head", "cpu"}),
        (("+exp=ray", "exp.command=x", "exp.group=cpu"), {"cpu"}),
    ],
    ids=["noop", "ray on one group"],
)
def test_which_nodes_work_as_a_whole(tmp_path: Path, words: tuple[str, ...], groups: set[str]) -> None:
    made = plan(*words, run=tmp_path)
    made.run.plan.write_text(made.to_json())
    events = Events(made.run.events, allocation="9", restart=0)
    for entry in [*head(0, None), *worker(100, 110)]:
        events.note(Event(entry.event), at=entry.t, **{k: v for k, v in entry.facts.items() if k != "noted"})
    found = read_ledger(made.run, now=T0 + 500)
    assert {group.name for group in found.groups if group.seconds["busy"] > 300} == groups


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"10-0:0": 7}'])
def test_torn_files_say_nothing(tmp_path: Path, text: str) -> None:
    made = plan(run=tmp_path)
    made.run.plan.write_text(made.to_json())
    for file in (made.run.usage, made.run.members):
        file.write_text(text)
    assert read_ledger(made.run).total_s == 0
    assert json.dumps(read_ledger(made.run).to_json())
