"""run.max_hours: what the starts of a head took together, from the events of a run."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcjet.cluster import hours
from hpcjet.cluster.events import Entry, Event, Events, read_events
from hpcjet.cluster.place import Place
from hpcjet.config.compose import compose
from hpcjet.plan import Plan, make_plan
from hpcjet.rundir import RunDir

PLACE = Place(allocation="7", restart=2, rank=0, num_nodes=1, host="n1", cpus=1, gpus=0, memory_bytes=1 << 30,
              first_host="n1")  # fmt: skip


def entry(event: Event, t: float, restart: int = 0, *, allocation: str = "7", apart: bool = False) -> Entry:
    return Entry(t, event.value, allocation, restart, {}, apart)


def planned(tmp_path: Path, max_hours: float | None) -> Plan:
    plan = make_plan(compose(["+exp=noop", "cluster=slurm"]), run_dir=RunDir(tmp_path), python="python")
    return replace(plan, max_hours=max_hours, signal_delay_s=90)


@pytest.mark.parametrize(
    ("entries", "seconds"),
    [
        ([], 0),
        ([entry(Event.allocated, 100), entry(Event.released, 160)], 60),
        ([entry(Event.submitted, 1), entry(Event.allocated, 100), entry(Event.ray_up, 130)], 30),
        ([entry(Event.allocated, 100), entry(Event.released, 160), entry(Event.allocated, 500, 1),
          entry(Event.released, 540, 1), entry(Event.allocated, 900, allocation="8"),
          entry(Event.released, 901, allocation="8")], 101),
        ([entry(Event.allocated, 100, 2), entry(Event.released, 160, 2)], 0),
        ([entry(Event.gave_up, 900, allocation="9", apart=True)], 0),
        ([entry(Event.requeued, 900)], 0),
    ],
    ids=["none", "one", "killed", "a chain", "this start", "a worker allocation", "without a begin"],
)  # fmt: skip
def test_what_is_used(entries: list[Entry], seconds: float) -> None:
    assert hours.used_s(entries, but=PLACE) == seconds


def test_what_is_left(tmp_path: Path) -> None:
    file = RunDir(tmp_path).events
    for restart in (0, 1):
        events = Events(file, allocation="7", restart=restart)
        events.note(Event.allocated, at=1000.0 * restart)
        events.note(Event.released)
    begun = 2 * max(entry.t for entry in read_events(file)) - 1000
    plan = planned(tmp_path, begun / 3600 + 1)
    left = hours.left_s(plan, PLACE)
    assert left is not None and 3590 < left <= 3601
    assert hours.left_s(planned(tmp_path, 1), PLACE) == 0
    assert hours.left_s(planned(tmp_path, None), PLACE) is None


@pytest.mark.parametrize(("max_hours", "warning_s"), [(10, 90), (0.05, 60)])
def test_the_warning_is_no_more_than_a_third(tmp_path: Path, max_hours: float, warning_s: float) -> None:
    assert hours.warning_s(planned(tmp_path, max_hours)) == pytest.approx(warning_s)
