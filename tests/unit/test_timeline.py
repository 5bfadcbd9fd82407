"""The timeline of a run: from events made by hand to lines of text, with clocks that agree and clocks that do not."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hpcjet import cli, follow
from hpcjet.cluster.clocks import on_one_clock
from hpcjet.cluster.events import Entry, Event, Events
from hpcjet.cluster.state import Phase, RunState, write_state
from hpcjet.config.compose import compose
from hpcjet.console import status as shown_status
from hpcjet.plan import make_plan
from hpcjet.rundir import RunDir
from hpcjet.slurm import submission
from hpcjet.slurm.query import JobState, Stage
from hpcjet.timeline import timeline_lines, timeline_text

T0 = 1_700_000_000.0


def entry(t: float, event: str, *, restart: int = 0, allocation: str = "4711", **facts: str | int | float) -> Entry:
    return Entry(T0 + t, event, allocation, restart, facts)


def boot(num_nodes: int, *, queue_s: float = 41.0, begin: float = 0.0, restart: int = 0) -> list[Entry]:
    """As the head notes it: agents 1 s after the queue, Ray 2 s later, each node a little after the one before."""
    given, step = begin + queue_s, min(0.01, 1 / num_nodes)
    end = given + 3 + num_nodes * step

    def note(t: float, event: str, **facts: str | int | float) -> Entry:
        return entry(t, event, restart=restart, **facts)

    late, nodes = T0 + given + 2.5, range(num_nodes)
    return [
        *([] if restart else [note(begin, "submitted", noted=late)]),
        note(given, "allocated", noted=late),
        *(note(given + 1 + n * step, "agent_up", host=f"n{n}", rank=n, noted=late) for n in nodes),
        *(note(given + 3 + n * step, "ray_up", host=f"n{n}") for n in nodes),
        note(end, "ready", nodes=num_nodes),
        note(end, "workload_start"),
    ]


def shown(entries: list[Entry], *, now: float = 10_000.0, going_on: bool = False, num_nodes: int = 0) -> list[str]:
    lines = timeline_lines(entries, now=T0 + now, going_on=going_on, num_nodes=num_nodes)
    assert all(len(line) <= 80 for line in lines)
    assert not any(re.search(r"(^|\s)-\d", line) for line in lines), "a negative time"
    return lines


def rows(lines: list[str]) -> list[str]:
    """Without bars and runs of blanks."""
    return [" ".join(line.rstrip("# ").split()) for line in lines[1 : lines.index("")]]


def done(at: float, *, code: int = 0) -> list[Entry]:
    return [entry(at, "workload_end", exit_code=code), entry(at + 0.5, "released", exit_code=code)]


def test_nothing_noted_nothing_shown() -> None:
    assert shown([]) == []


def test_a_run_on_one_node() -> None:
    lines = shown(boot(1) + done(3644.01))
    assert lines[0].startswith("allocation 4711, from submission at 2023-11-1")
    assert rows(lines) == [
        "0.00 s submitted",
        "41.0 s 41.0 s nodes allocated",
        "42.0 s 1.00 s agent on n0",
        "44.0 s 2.00 s Ray on n0",
        "44.0 s 0.01 s ready with 1 of the nodes",
        "44.0 s 0.00 s work began",
        "1 h 00 min 1 h 00 min work ended, exit code 0",
        "1 h 00 min 0.50 s all nodes released, exit code 0",
    ]
    assert lines[-1] == "44.0 s from submission to work; the longest step: 41.0 s in the queue"
    bars = [line.count("#") for line in lines]
    assert bars[2] == max(bars) == 17 and bars[4] == 1, "bars compare steps of the start"
    assert bars[7] == 0, "the work itself would make all others vanish"


def test_the_slow_node_is_named() -> None:
    entries = [replace(e, t=e.t + 9) if e.event == "ray_up" and e.host == "n2" else e for e in boot(4, queue_s=2.0)]
    entries = [replace(e, t=e.t + 9) if e.event in ("ready", "workload_start") else e for e in entries]
    lines = shown(sorted(entries, key=lambda e: e.t) + done(100))
    assert "14.0 s 9.01 s Ray on 4 of 4: n2" in rows(lines)
    assert lines[-2] == "slowest from agent to Ray: n2 (11.0 s) and n3 (2.00 s); the median node 2.00 s"
    assert lines[-1] == "14.0 s from submission to work; the longest step: 9.01 s for Ray on n2"


def test_ten_thousand_nodes_in_a_few_lines() -> None:
    lines = shown(boot(10_000), now=300, going_on=True, num_nodes=10_000)
    assert len(lines) < 20
    found = rows(lines)
    for row in ("agent on 1 of 10,000: n0", "agent on 5,000 of 10,000", "agent on 10,000 of 10,000: n9999",
                "Ray on 1 of 10,000: n0", "Ray on 5,000 of 10,000", "Ray on 10,000 of 10,000: n9999"):  # fmt: skip
        assert len([each for each in found if each.endswith(row)]) == 1, row


def until(event: str, *, host: str = "") -> Callable[[list[Entry]], list[Entry]]:
    def cut(entries: list[Entry]) -> list[Entry]:
        last = max(n for n, e in enumerate(entries) if e.event == event and host in ("", e.host))
        return entries[: last + 1]

    return cut


@pytest.mark.parametrize(
    ("cut", "says"),
    [
        (until("submitted"), "now: in the queue"),
        (until("allocated"), "now: the node agents"),
        (until("agent_up", host="n1"), "now: 2 agents"),
        (until("agent_up"), "now: the nodes to join"),
        (until("ray_up", host="n1"), "now: Ray on n2 and n3"),
        (until("ray_up", host="n0"), "now: Ray on n1, n2 and 1 more"),
        (until("ready"), "now: the work to begin"),
        (until("workload_start"), "now: at work"),
        (lambda e: [*e, entry(50, "stop_asked", reason="time limit")], "now: the end of the work"),
        (lambda e: [*e, *done(50)[:1]], "now: the release of the nodes"),
        (lambda e: [*e, *done(50), entry(51, "requeued")], "now: in the queue"),
    ],
    ids=[
        "queue",
        "agents",
        "some agents",
        "no Ray",
        "some Ray",
        "much Ray",
        "work",
        "at work",
        "stop",
        "end",
        "requeue",
    ],
)
def test_what_is_awaited_now(cut: Callable[[list[Entry]], list[Entry]], says: str) -> None:
    lines = shown(cut(boot(4)), now=62.5, going_on=True, num_nodes=4)
    assert rows(lines)[-1].endswith(says) and rows(lines)[-1].startswith("1 min 02 s")
    assert "now" not in "".join(shown(cut(boot(4)), now=60, going_on=False, num_nodes=4))


def test_the_queue_so_far_is_the_longest_step() -> None:
    assert shown([entry(0, "submitted")], now=100, going_on=True)[-1] == (
        "no work yet after 1 min 40 s; the longest step: 1 min 40 s in the queue"
    )


def test_who_looks_may_have_a_clock_that_is_behind() -> None:
    assert rows(shown(boot(1), now=-500, going_on=True))[-1] == "44.0 s 0.00 s now: at work"


def test_a_start_that_failed_names_who_is_missing() -> None:
    entries = [e for e in boot(4)[:-2] if not (e.event == "ray_up" and e.host == "n3")]
    lines = shown([*entries, entry(641, "released", exit_code=3)], num_nodes=4)
    assert "never in Ray: n3" in lines
    assert " ".join(lines[-2:]).startswith("no work began in 10 min 41 s; the longest step: 9 min 57 s until")


def test_a_run_without_ray_misses_no_ray() -> None:
    entries = [e for e in boot(2) if e.event != "ray_up"]
    assert "Ray" not in "".join(shown(entries[:-2] + done(100, code=3)))


def test_an_end_without_a_word_is_said() -> None:
    assert "it ended without a word after: work began" in shown(boot(2))


def test_restarts_newest_last_and_older_ones_in_a_line() -> None:
    preempted = [entry(100, "stop_asked", reason="preempted"), entry(110, "workload_end", exit_code=130),
                 entry(110, "requeued"), entry(111, "released", exit_code=130)]  # fmt: skip
    lines = shown([*boot(2), *preempted, *boot(2, begin=110, queue_s=300, restart=1)], now=460, going_on=True)
    assert lines[0] == "allocation 4711: started in 44.0 s, worked 1 min 06 s, preempted, requeued"
    assert lines[1] == "" and lines[2].startswith("allocation 4711, restart 1, from requeue at ")
    assert " ".join(lines[4].split()).startswith("5 min 00 s 5 min 00 s nodes allocated")
    assert lines[-1] == "5 min 03 s from requeue to work; the longest step: 5 min 00 s in the queue"


def test_of_many_restarts_the_last_ten() -> None:
    entries = [each for n in range(40) for each in boot(1, begin=n * 100.0, restart=n)]
    lines = shown(entries)
    assert lines[0] == "29 earlier ones" and len(lines) < 30
    assert lines[1] == "allocation 4711, restart 29: started in 3.01 s, ended without a word"


def test_thousands_of_lost_nodes_and_a_terminal_that_obeys() -> None:
    lost = [entry(100 + n / 100, "node_lost", host=f"n{n}.site.org", reason="gone\n\x1b[2J") for n in range(3000)]
    found = rows(shown([*boot(3), *lost]))
    assert [row.split(" s ")[-1] for row in found[-3:]] == [
        "n0 lost: gone [2J", "n1 lost: gone [2J", "2,998 more nodes lost, last n2999",
    ]  # fmt: skip


def test_events_of_a_later_version_are_shown() -> None:
    assert rows(shown([*boot(1), entry(99, "node_joined", host="n9")]))[-1].endswith("node_joined n9")


# clocks


def clocks_of(entries: list[Entry]) -> dict[str, float]:
    moved, clocks = on_one_clock(entries)
    at = {(e.event, e.host): e.t for e in moved}
    agents = [t for (event, _), t in at.items() if event == "agent_up"]
    assert at["submitted", "?"] <= at["allocated", "?"] <= min(agents)
    assert max(agents) <= at["ready", "?"]
    assert all(at["agent_up", host] <= t for (event, host), t in at.items() if event == "ray_up")
    return {who: round(by) for who, by in clocks.items()}


def off(who: str, by: float) -> Callable[[Entry], Entry]:
    return lambda e: replace(e, t=e.t + by) if who == e.event or (who == e.host and e.event == "agent_up") else e


@pytest.mark.parametrize(
    ("who", "by", "found"),
    [
        ("n2", 0.0, {}),
        ("n2", -100.0, {"n2": -100}),
        ("n2", 100.0, {"n2": 100}),
        ("n2", 0.5, {}),
        ("allocated", -0.9, {}),
        ("allocated", 20.0, {"Slurm": 19}),
        ("allocated", -50.0, {}),
        ("submitted", 60.0, {"the login node": 18, "Slurm": 0}),
        ("n0", 1.5, {}),
    ],
    ids=["right", "behind", "ahead", "a bit", "whole seconds", "Slurm ahead", "Slurm behind", "login ahead", "head"],
)
def test_no_step_takes_less_than_no_time(who: str, by: float, found: dict[str, float]) -> None:
    entries = [off(who, by)(each) for each in boot(4)]
    assert clocks_of(entries) == {name: value for name, value in found.items() if value}
    lines = shown(entries + done(1000))
    assert any("clocks differ" in line for line in lines) is bool(clocks_of(entries))


def late(t: float, number: int, *, group: str = "cpu", started: float | None = None) -> list[Entry]:
    """A node of a worker allocation: its agent, by its own clock, and Ray."""
    facts = {"host": f"w{number}", "member": f"{5000 + number}-0:0", "group": group, "job": str(5000 + number)}
    begin = t - 4 if started is None else started
    return [
        entry(begin, "agent_up", rank=0, noted=T0 + t - 3, **facts),
        entry(t, "ray_up", noted=T0 + t, **facts),
    ]


def ended(t: float, event: str, number: int, **facts: str) -> Entry:
    return entry(t, event, noted=T0 + t, host=f"w{number}", member=f"{5000 + number}-0:0", group="cpu", **facts)


def test_nodes_of_other_allocations_have_rows_of_their_own() -> None:
    entries = [
        *boot(1), *late(60, 1), *late(70, 2), *late(80, 3, group="gpu"),
        ended(200, "leaving", 1, reason="preempted"), ended(201, "node_lost", 1, reason="preempted"),
        ended(300, "drain", 2, reason="idle"), ended(301, "left", 2, reason="idle"),
        entry(400, "refused", peer="10.0.0.9", reason="wrong secret"),
        entry(401, "allocation_submitted", group="cpu", nodes=2, name="cpu-3", job=9),
    ]  # fmt: skip
    lines = shown(entries, now=500, going_on=True, num_nodes=1)
    assert [row.split(" s ")[-1] for row in rows(lines)][4:] == [
        "ready with 1 of the nodes", "work began", "w1 of cpu joined", "w2 of cpu joined", "w3 of gpu joined",
        "w1 lost: preempted", "w2 given back: idle", "10.0.0.9 refused: wrong secret", "asked for 2 of cpu",
        "now: at work",
    ]  # fmt: skip
    assert "nodes of other allocations: 3 joined, 1 there, 1 given back, 1 lost" in lines


def test_thousands_of_nodes_of_other_allocations_stay_short() -> None:
    joins = [each for n in range(4000) for each in late(60 + n, n)]
    gone = [ended(5000 + n, "left", n, reason="idle") for n in range(3000)]
    lines = shown([*boot(2), *joins, *gone, *done(9000)])
    assert len(lines) < 25
    assert any("3,998 more nodes of cpu joined, la.." in line for line in lines)
    assert "nodes of other allocations: 4,000 joined, 1,000 there, 3,000 given back" in lines


def test_an_allocation_that_started_before_the_head_moves_nothing() -> None:
    """Its agent waited for an hour; its clock, and its rank 0, say nothing of the head."""
    entries = [*boot(2), *late(60, 1, started=-3600.0)]
    assert rows(shown(entries))[:-1] == rows(shown(boot(2)))
    moved, clocks = on_one_clock(entries)
    assert not clocks and moved[-2].t == T0 - 3600


def test_a_late_node_with_a_clock_that_is_ahead_is_moved_by_itself() -> None:
    entries = [*boot(2), *late(60, 1, started=5000.0)]
    moved, clocks = on_one_clock(entries)
    assert clocks == {"w1": pytest.approx(5000.0 - 57)} and moved[-2].t == T0 + 57


def test_allocations_without_a_head_are_a_sentence() -> None:
    apart = [replace(entry(5.0, "gave_up", allocation=name, reason="no head"), apart=True) for name in ("7", "8")]
    lines = shown([*apart, *boot(1), *done(60)])
    assert lines[0].startswith("allocation 4711")
    assert lines[-1] == "2 worker allocations found no head and gave the nodes back"


def test_a_wrong_clock_is_told_with_its_name() -> None:
    entries = [off("n2", 100.0)(each) for each in boot(4)]
    assert "clocks differ from the head's, and these times were moved: n2 about 1 min 40 s ahead" in " ".join(
        shown(entries)
    ).replace("  ", " ")
    assert "agent on 4 of 4: n3" in rows(shown(entries))[4], "it is not taken for the last"


def test_a_node_from_the_future_is_seen_before_all_is_ready() -> None:
    entries = [off("n2", 100.0)(each) for each in boot(4)][:6]
    assert rows(shown(entries, now=44, going_on=True, num_nodes=4))[-1].startswith("44.0 s")


def test_the_heads_clock_may_be_set_back() -> None:
    entries = [*boot(2), entry(1000, "stop_asked", reason="cancelled"), *done(990)]
    assert [row.split(" s ")[-1] for row in rows(shown(entries))[-3:]] == [
        "asked to stop: cancelled", "work ended, exit code 0", "all nodes released, exit code 0",
    ]  # fmt: skip


def test_where_slurm_does_not_tell_when_it_gave_the_nodes() -> None:
    """Then `allocated` is the start of the head's agent, and another's may be earlier."""
    entries = [off("n1", -0.5)(off("allocated", 1.0)(each)) for each in boot(2)]
    assert clocks_of(entries) == {}
    assert rows(shown(entries))[1:3] == ["41.5 s 41.5 s nodes allocated", "41.5 s 0.00 s agent on 1 of 2: n1"]


# rich, and the command


def test_rich_says_the_same_with_other_bars() -> None:
    entries = boot(3) + done(1000)
    text = timeline_text(entries, now=T0, going_on=False).plain.replace("█", "#")
    assert [line.rstrip() for line in text.split("\n")] == shown(entries)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "runs" / "noop" / "20260102-030405-abcdef")
    made.path.mkdir(parents=True)
    made.plan.write_text(make_plan(compose(["+exp=noop"]), run_dir=made, python=sys.executable).to_json())
    made.submission.write_text(json.dumps({"cluster": "local", "job_id": "1", "pid": 2**22 - 3}))
    write_state(made.state, RunState(Phase.done, exit_code=0))
    events = Events(made.events, allocation="local-1", restart=0)
    events.note(Event.submitted, at=T0)
    events.note(Event.agent_up, at=T0 + 1, host="here", rank=0)
    return made


def status(run: RunDir, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(["status", str(run), *words])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_status_shows_the_timeline_below_its_line(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third, *rest = status(run, capsys).splitlines()
    assert (first, second) == ("done (exit code 0)", "") and third.startswith("allocation local-1, from submission")
    assert rest[1].split("#")[0].split() == ["1.00", "s", "1.00", "s", "agent", "on", "here"]
    run.events.unlink()
    assert status(run, capsys) == "done (exit code 0)\n"


def test_status_of_a_run_that_is_lost_does_not_wait(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    write_state(run.state, RunState(Phase.running))
    shown = status(run, capsys)
    assert shown.startswith("lost: ") and "now:" not in shown and "it ended without a word after: agent on" in shown


@pytest.mark.parametrize(
    ("event", "phase", "stage", "says"),
    [
        (Event.requeued, Phase.interrupted, Stage.pending, "now: in the queue"),
        (Event.workload_start, Phase.running, Stage.running, "now: at work"),
        (Event.workload_start, Phase.running, Stage.unknown, "now: at work"),
        (Event.workload_start, Phase.running, Stage.pending, "it ended without a word after: work began"),
        (Event.workload_start, Phase.failed, Stage.running, "it ended without a word after: work began"),
    ],
    ids=["requeued", "at work", "no answer", "node lost and requeued", "failed"],
)
def test_status_says_what_is_awaited_only_of_a_run_that_goes_on(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    event: Event, phase: Phase, stage: Stage, says: str,
) -> None:  # fmt: skip
    for module in (follow, submission, shown_status):
        monkeypatch.setattr(module, "submission_state", lambda submission: JobState(stage))
    write_state(run.state, RunState(phase))
    Events(run.events, allocation="local-1", restart=0).note(event)
    text = status(run, capsys)
    assert says in text and text.count("now: ") == says.count("now: ")


def test_status_prints_the_raw_events(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(run, capsys, "--events") == run.events.read_text()
    run.events.unlink()
    assert status(run, capsys, "--events") == ""


def test_status_where_only_ascii_can_be_shown(run: RunDir) -> None:
    command = [sys.executable, "-m", "hpcjet.cli", "status", str(run)]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(cli.__file__).parents[1]), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    assert done.stdout.isascii() and b"agent on here" in done.stdout
