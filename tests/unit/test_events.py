"""events.jsonl: many writers, torn lines, and a disk that takes nothing."""

import json
import logging
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hpcjet.cluster.events import Entry, Event, Events, read_events
from hpcjet.rundir import RunDir


def events(folder: Path) -> Events:
    return Events(RunDir(folder).events, allocation="4711", restart=1)


def test_what_is_noted_is_read(tmp_path: Path) -> None:
    writer = events(tmp_path)
    writer.note(Event.agent_up, at=12.3456, host="n1", rank=0)
    writer.note_each(Event.ray_up, [(13.0, {"host": "n1"}), (14.0, {"host": "n2\n"})])
    writer.note(Event.ready)
    *noted, live = read_events(RunDir(tmp_path).events)
    assert [live.t - float(entry.facts.pop("noted")) < 60 for entry in noted] == [True] * 3
    assert noted == [
        Entry(12.346, "agent_up", "4711", 1, {"host": "n1", "rank": 0}),
        Entry(13.0, Event.ray_up, "4711", 1, {"host": "n1"}),
        Entry(14.0, "ray_up", "4711", 1, {"host": "n2\n"}),
    ]
    first = (tmp_path / "events.jsonl").read_text().splitlines()[0]
    assert json.loads(first) == {
        "t": 12.346, "event": "agent_up", "allocation": "4711", "restart": 1, "host": "n1", "rank": 0,
        "noted": pytest.approx(live.t, abs=60),
    }  # fmt: skip
    assert live.facts == {}, "without a time it is noted as it happens"


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        events(tmp_path).note(Event.ready, nodes=3)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "events.jsonl").stat().st_mode) == 0o600


def test_without_a_time_it_is_now_and_odd_facts_do_no_harm(tmp_path: Path) -> None:
    writer = events(tmp_path)
    writer.note(Event.node_lost, host="\udcff", reason="x" * 10_000, allocation="mine", t=3)  # type: ignore[arg-type]
    (entry,) = read_events(tmp_path / "events.jsonl")
    assert entry.allocation == "4711" and entry.t > 1e9 and entry.host == "\udcff"
    assert len(str(entry.facts["reason"])) == 500 and str(entry.facts["reason"]).endswith("x...")


def test_no_file_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path / "events.jsonl") == []


GOOD = b'{"t": 1.5, "event": "ready", "allocation": "7", "restart": 0, "nodes": 2}'


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (GOOD + b"\n" + GOOD[:30], ["ready"]),
        (GOOD[:30] + GOOD + b"\n", ["ready"]),
        (GOOD + b"\n" + GOOD, ["ready", "ready"]),
        (b"\0" * 100 + b"\n\xff\xfe\n[1]\n7\n{}\n" + GOOD, ["ready"]),
        (GOOD.replace(b"1.5", b"NaN") + b"\n" + GOOD.replace(b"1.5", b"null"), []),
        (GOOD.replace(b"1.5", b"1" + b"0" * 400) + b"\n" + GOOD.replace(b'"7"', b"7"), []),
        (GOOD.replace(b"ready", b"node_joined"), ["node_joined"]),
        (GOOD.replace(b"2}", b'"{\\"t\\": 3}"}'), ["ready"]),
    ],
    ids=[
        "torn end",
        "glued to a torn one",
        "no last newline",
        "rubbish",
        "no time",
        "kinds",
        "future",
        "start in text",
    ],
)
def test_reading_goes_around_what_is_broken(tmp_path: Path, data: bytes, found: list[str]) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(data)
    assert [entry.event for entry in read_events(file)] == found


WRITER = """
import sys
from pathlib import Path
from hpcjet.cluster.events import Event, Events
me = int(sys.argv[2])
events = Events(Path(sys.argv[1]), allocation="4711", restart=0)
sys.stdin.readline()
for number in range(400):
    events.note(Event.agent_up, host=f"{me}-{number}", rank=me, reason="x" * (number % 500))
events.note_each(Event.ray_up, [(1.0, {"host": f"{me}-{n}", "reason": "y" * 200}) for n in range(400)])
"""


def test_many_writers_at_once_tear_no_line(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    command = [sys.executable, "-c", WRITER, str(file)]
    writers = [subprocess.Popen([*command, str(me)], stdin=subprocess.PIPE) for me in range(4)]
    for writer in writers:
        assert writer.stdin
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    assert [writer.wait(300) for writer in writers] == [0] * 4
    for writer in writers:
        assert writer.stdin
        writer.stdin.close()
    lines = file.read_text().splitlines()
    assert all(json.loads(line)["allocation"] == "4711" for line in lines)
    hosts = {f"{me}-{number}" for me in range(4) for number in range(400)}
    for event in (Event.agent_up, Event.ray_up):
        there = [entry.host for entry in read_events(file) if entry.event == event]
        assert len(there) == len(hosts) and set(there) == hosts


@pytest.mark.parametrize("place", ["no/folder/events.jsonl", ".", "full"], ids=["no folder", "a folder", "full disk"])
def test_what_cannot_be_written_is_said_once_and_ends_nothing(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = Path("/dev/full") if place == "full" else tmp_path / place
    writer = Events(file, allocation="4711", restart=0)
    with caplog.at_level(logging.WARNING):
        writer.note(Event.submitted)
        writer.note(Event.allocated)
        writer.note_each(Event.agent_up, [(1.0, {"host": "n1"})])
    assert len(caplog.records) == 1
    assert str(file) in caplog.text and "cannot be written" in caplog.text


FILLS_UP = """
import logging, resource, signal, sys
from pathlib import Path
from hpcjet.cluster.events import Event, Events
logging.basicConfig(format="%(message)s")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (250, resource.RLIM_INFINITY))
events = Events(Path(sys.argv[1]), allocation="4711", restart=0)
for number in range(5):
    events.note(Event.agent_up, host=f"n{number}", rank=number)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
events.note(Event.ready, nodes=5)
"""


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_FSIZE)[1] != resource.RLIM_INFINITY, reason="files are limited")
def test_a_disk_that_fills_up_and_is_freed_costs_only_what_did_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    done = subprocess.run([sys.executable, "-c", FILLS_UP, str(file)], capture_output=True, text=True, check=True)
    assert done.stderr.count("cannot be written") == 1
    entries = read_events(file)
    assert [entry.host for entry in entries[:-1]] == ["n0", "n1"] and entries[-1].event == Event.ready


def test_ten_thousand_nodes(tmp_path: Path) -> None:
    writer = events(tmp_path)
    for event in (Event.agent_up, Event.ray_up):
        writer.note_each(event, [(1_700_000_000.123 + n, {"host": f"nid{n:06}", "rank": n}) for n in range(10_000)])
    file = tmp_path / "events.jsonl"
    assert file.stat().st_size < 3 << 20
    assert len(read_events(file)) == 20_000


def test_worker_allocations_that_found_no_head_are_read_before_the_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    events(tmp_path).note(Event.ready, nodes=1)
    Events(tmp_path / "events-4712.jsonl", allocation="4712", restart=0).note(Event.gave_up, reason="no head")
    apart, own = read_events(run.events)
    assert (apart.allocation, apart.event, apart.apart) == ("4712", "gave_up", True)
    assert (own.allocation, own.event, own.apart) == ("4711", "ready", False)


def test_of_which_allocation_a_node_is() -> None:
    def entry(**facts: str) -> Entry:
        return Entry(1.0, "ray_up", "a-1", 0, {"host": "n1.site", **facts})

    assert not entry().joined_later and entry().member == "n1"
    assert not entry(member="a-1-0:3").joined_later and entry(member="a-1-0:3").member == "a-1-0:3"
    assert entry(member="4712-0:3").joined_later
