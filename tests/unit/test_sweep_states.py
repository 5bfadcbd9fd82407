"""Where points stand, what the table says of them, and which share of a node each gets."""

import csv
import io
import json
from pathlib import Path

import pytest

from hpcjet.cluster.state import Phase, RunState
from hpcjet.errors import ConfigError
from hpcjet.rundir import RunDir
from hpcjet.slurm.query import JobState, Stage
from hpcjet.slurm.requeue import Cause
from hpcjet.sweep.folder import About, Array, SweepDir, earlier, find_sweep, sweeps
from hpcjet.sweep.follow import exit_code, lines
from hpcjet.sweep.points import Point
from hpcjet.sweep.results import flat, results
from hpcjet.sweep.share import share_env, share_of
from hpcjet.sweep.states import Place, Standing, Where, _resumed, counts, counts_text, places_of, standing, standings
from hpcjet.sweep.table import duration, rows, table, to_csv, to_json

RUN = RunDir(Path("/runs/0"))
ALONE = Array(number=0, token="t", points=[5, 6, 7], job="12", submitted=100.0)
PACKED = Array(number=0, token="t", points=[5, 6, 7], pack=2, job="12;alpha", submitted=100.0)


def word(phase: Phase, reason: str = "", *, code: int | None = None, job: str = "12_1", then: str = "") -> RunState:
    return RunState(phase, job, code, reason, then, started=110.0, updated=115.0)


DONE = word(Phase.done, code=0)
FAILED = word(Phase.failed, "it broke", code=7)
RUNNING = word(Phase.running)
OLD = word(Phase.failed, code=1, job="9_1")
WARNED = word(Phase.interrupted, f"it got SIGUSR2 ({Cause.time_limit.value})", code=130)
STOPPED = word(Phase.interrupted, f"it got SIGTERM ({Cause.cancelled.value})", code=130)
SUBMITTED = RunState(Phase.submitted, updated=100.0)

CASES = {
    "no word, waits": (None, JobState(Stage.pending, "PENDING", "Priority"), Where.queued),
    "no word, starts": (None, JobState(Stage.running, "RUNNING"), Where.running),
    "no word, cancelled": (None, JobState(Stage.ended, "CANCELLED"), Where.cancelled),
    "no word, over": (None, JobState(Stage.ended, "FAILED"), Where.lost),
    "no word, no node": (None, JobState(Stage.ended, "NODE_FAIL"), Where.lost),
    "no word, forgotten": (None, JobState(Stage.ended, "PURGED"), Where.lost),
    "no word, no answer": (None, JobState(Stage.unknown), Where.unknown),
    "submitted, runs": (SUBMITTED, JobState(Stage.running, "RUNNING"), Where.running),
    "at work": (RUNNING, JobState(Stage.running, "RUNNING"), Where.running),
    "at work, then killed": (RUNNING, JobState(Stage.ended, "FAILED"), Where.lost),
    "at work, out of memory": (RUNNING, JobState(Stage.ended, "OUT_OF_MEMORY"), Where.memory),
    "at work, out of time": (RUNNING, JobState(Stage.ended, "TIMEOUT"), Where.timeout),
    "at work, no answer": (RUNNING, JobState(Stage.unknown), Where.unknown),
    "done, still cleaning": (DONE, JobState(Stage.running, "COMPLETING"), Where.done),
    "done, no answer": (DONE, JobState(Stage.unknown), Where.done),
    "failed": (FAILED, JobState(Stage.ended, "FAILED"), Where.failed),
    "failed, forgotten": (FAILED, JobState(Stage.ended, "PURGED"), Where.failed),
    "failed, no answer": (FAILED, JobState(Stage.unknown), Where.failed),
    "failed for memory": (word(Phase.failed, code=137), JobState(Stage.ended, "OUT_OF_MEMORY"), Where.memory),
    "warned in time": (WARNED, JobState(Stage.ended, "FAILED"), Where.timeout),
    "cancelled at work": (STOPPED, JobState(Stage.ended, "CANCELLED"), Where.cancelled),
    "to go on": (word(Phase.interrupted, then="requeued"), JobState(Stage.pending, "PENDING"), Where.queued),
    "goes on": (word(Phase.interrupted, then="requeued"), JobState(Stage.running, "RUNNING"), Where.running),
    "failed before, waits": (OLD, JobState(Stage.pending, "PENDING"), Where.queued),
    "failed before, runs": (OLD, JobState(Stage.running, "RUNNING"), Where.running),
    "failed before, cancelled": (OLD, JobState(Stage.ended, "CANCELLED"), Where.cancelled),
}


@pytest.mark.parametrize(("said", "job", "wanted"), CASES.values(), ids=CASES)
def test_where_a_point_stands(said: RunState | None, job: JobState, wanted: Where) -> None:
    assert standing(RUN, Place(ALONE, 1), said, job, now=120.0).where is wanted


PACKS = {
    "before its turn": (None, JobState(Stage.running, "RUNNING"), Where.queued),
    "its turn never came": (None, JobState(Stage.ended, "TIMEOUT"), Where.missing),
    "cancelled before its turn": (None, JobState(Stage.ended, "CANCELLED"), Where.cancelled),
    "failed, others go on": (FAILED, JobState(Stage.running, "RUNNING"), Where.failed),
    "failed, others wait": (FAILED, JobState(Stage.pending, "PENDING"), Where.failed),
    "stopped, waits with others": (WARNED, JobState(Stage.pending, "PENDING"), Where.queued),
    "failed, another out of time": (FAILED, JobState(Stage.ended, "TIMEOUT"), Where.failed),
    "at work": (RUNNING, JobState(Stage.running, "RUNNING"), Where.running),
}


@pytest.mark.parametrize(("said", "job", "wanted"), PACKS.values(), ids=PACKS)
def test_where_a_point_of_several_stands(said: RunState | None, job: JobState, wanted: Where) -> None:
    assert standing(RUN, Place(PACKED, 1), said, job, now=120.0).where is wanted


def test_points_without_a_job() -> None:
    open_array = Array(number=0, token="t", points=[0])
    assert standing(RUN, None, None, None, now=0).where is Where.missing
    assert standing(RUN, Place(open_array, 0), None, None, now=0).where is Where.unknown


def test_run_again_on_purpose_what_was_done_does_not_count() -> None:
    again = Array(number=1, token="t", points=[5, 6], job="13", submitted=200.0, rerun=True)
    found = standing(RUN, Place(again, 1), DONE, JobState(Stage.pending, "PENDING"), now=210.0)
    assert found.where is Where.queued
    new = RunState(Phase.done, "13_1", 0, started=205.0, updated=206.0)
    assert standing(RUN, Place(again, 1), new, JobState(Stage.ended, "COMPLETED"), now=210.0).where is Where.done


def test_elements_and_their_points() -> None:
    assert [PACKED.element(0), PACKED.element(1), PACKED.num_elements] == [[5, 6], [7], 2]
    later = Array(number=1, token="u", points=[7], job="20", submitted=200.0)
    refused = Array(number=2, token="v", points=[5], refused="no")
    places = places_of([PACKED, later, refused])
    assert {index: place.key for index, place in places.items()} == {5: "12_0;alpha", 6: "12_0;alpha", 7: "20_0"}
    assert places[6].name == "12_0"


def about(*axes: str, columns: tuple[str, ...] = (), **more: object) -> About:
    facts = {"exp": "mpi", "cluster": "slurm", "key": "k", "words": ["seed=1"], "python": "p", "version": "1"}
    base = {"sweep": {"columns": list(columns)}}
    return About(**{**facts, "axes": list(axes), "base": base, "created": 1.0, **more})  # type: ignore[arg-type]


def points(count: int, *, like: str = "hash") -> list[Point]:
    return [Point(index, f"{index:020x}", (f"seed={index}",), {"seed": index}) for index in range(count)]


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDir:
    made = SweepDir(tmp_path / "runs" / "sweeps" / "mpi-1")
    made.make()
    made.write_points(points(20))
    made.write_about(about("seed"))
    return made


def test_chosen_points_are_read_without_the_others(sweep: SweepDir) -> None:
    assert sweep.read_chosen([1, 11, 99]) == {1: points(20)[1], 11: points(20)[11]}
    assert sweep.read_points() == points(20) and len(sweep.hashes()) == 20


def test_an_array_comes_back(sweep: SweepDir) -> None:
    for number in (1, 0):
        sweep.write_array(Array(number=number, token="t", points=[1, 2], job="7", submitted=1.5))
    assert [array.number for array in sweep.arrays()] == [0, 1]


def test_sweeps_are_found_by_parts_of_their_names(sweep: SweepDir) -> None:
    root = sweep.path.parent.parent
    other = SweepDir(sweep.path.with_name("swe-1"))
    other.make()
    other.write_about(about())
    assert len(sweeps(root)) == 2
    assert find_sweep("mpi", root) == find_sweep(str(sweep), root) == find_sweep("sweeps/mpi-1", root) == sweep
    for text, said in {"1": "not unique", "x": "was not found", "": "not unique"}.items():
        with pytest.raises(ConfigError, match=said):
            find_sweep(text, root)
    with pytest.raises(ConfigError, match="there are none"):
        find_sweep("x", root / "none")


def test_points_that_an_earlier_sweep_has_are_found(sweep: SweepDir) -> None:
    root = sweep.path.parent.parent
    ((found, shared),) = earlier(root, {f"{3:020x}": 0, f"{99:020x}": 1})
    assert found == sweep and shared == {3: 0}


def test_a_point_of_another_sweep_is_shown_as_it_stands_there(sweep: SweepDir) -> None:
    later = SweepDir(sweep.path.with_name("mpi-2"))
    later.make()
    run = sweep.run(3)
    run.path.mkdir()
    run.state.write_text(json.dumps({"phase": "done", "exit_code": 0, "started": 1.0, "updated": 3.0}))
    sweep.write_array(Array(number=0, token="t", points=[3], job="local", pid=1, submitted=1.0))
    later.write_about(about("seed", cluster="local", found={"0": str(run)}))
    (first, second) = standings(later, later.read_about(), 2, now=5.0)
    assert (first.where, first.run, first.seconds) == (Where.done, run, 2.0)
    assert second.where is Where.missing


def test_a_point_that_was_resumed_by_itself(sweep: SweepDir) -> None:
    sweep.write_array(Array(number=0, token="t", points=[3], job="12", submitted=1.0))
    run = sweep.run(3)
    run.path.mkdir()
    run.state.write_text(json.dumps({"phase": "submitted", "updated": 9.0}))
    mine = {"cluster": "slurm", "job_id": "12_0", "token": "t", "submitted": 1.0}
    run.submission.write_text(json.dumps(mine))
    places = places_of(sweep.arrays())
    assert _resumed(sweep, places, {3: None}) == {}
    run.submission.write_text(json.dumps({**mine, "job_id": "40", "token": "u", "submitted": 8.0}))
    assert {index: place.key for index, place in _resumed(sweep, places, {3: None}).items()} == {3: "40"}


@pytest.mark.parametrize("torn", ["", "{", '{"phase": "wrong"}', "[]", "\0"])
def test_a_torn_state_is_no_state(sweep: SweepDir, torn: str) -> None:
    sweep.run(0).path.mkdir()
    sweep.run(0).state.write_text(torn)
    assert standings(sweep, sweep.read_about(), 1, now=0)[0].where is Where.missing


def shown(tmp_path: Path) -> tuple[About, list[Point], list[Standing]]:
    made = [
        Point(0, "a", ("+cluster.env.LR=0.1", "engine.temperature=0"), {}),
        Point(1, "b", ("+cluster.env.LR=0.2", "engine.temperature=0"), {}),
        Point(10, "c", ("+cluster.env.LR='a, b'", "engine.temperature=null"), {}),
    ]
    stand = []
    for point, where in zip(made, (Where.done, Where.failed, Where.queued), strict=True):
        run = RunDir(tmp_path / str(point.index))
        run.path.mkdir()
        stand.append(Standing(where, run, "12_0", {Where.done: 0, Where.failed: 3}.get(where), "", 61.2))
    (tmp_path / "0" / "result.json").write_text('{"loss": {"train": 0.123456, "test": 1}, "note": "good"}')
    (tmp_path / "1" / "summary.json").write_text('{"resolved": 4, "attempts": 8}')
    return about("+cluster.env.LR", "engine.temperature"), made, stand


def test_the_table_fits_a_terminal_and_is_whole_in_a_pipe(tmp_path: Path) -> None:
    what, made, stand = shown(tmp_path)
    found = rows(made, stand)
    whole = table(what, found, width=None).splitlines()
    heads = ["point", "LR", "temperature", "state"]
    assert whole[0].split() == [*heads, "train", "test", "note", "resolved", "attempts", "time"]
    assert whole[1].split() == ["0", "0.1", "0", "done", "0.1235", "1", "good", "1:01"]
    assert "failed (3)" in whole[2] and "'a, b'" in whole[3]
    narrow = table(what, found, width=46).splitlines()
    assert max(map(len, narrow)) <= 46 and narrow[0].split() == [*heads, "time"]


def test_columns_that_are_asked_for(tmp_path: Path) -> None:
    _, made, stand = shown(tmp_path)
    head = table(about("+cluster.env.LR", "x", columns=("loss.test",)), rows(made, stand), width=None).splitlines()[0]
    assert head.split() == ["point", "LR", "x", "state", "test", "time"]


def test_csv_and_json_hold_everything(tmp_path: Path) -> None:
    what, made, stand = shown(tmp_path)
    found = rows(made, stand)
    lines = list(csv.DictReader(io.StringIO(to_csv(what, found))))
    assert lines[0]["loss.train"] == "0.123456" and lines[0]["state"] == "done" and lines[1]["resolved"] == "4"
    assert lines[2]["cluster.env.LR"] == "'a, b'" and lines[2]["exit_code"] == ""
    assert to_json(found[0])["results"] == {"loss.train": 0.123456, "loss.test": 1, "note": "good"}
    assert json.loads(json.dumps(to_json(found[1])))["exit_code"] == 3


def test_results_of_any_shape(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert results(run) == {}
    (tmp_path / "result.json").write_text("[1, 2]")
    assert results(run) == {"result": [1, 2]}
    (tmp_path / "result.json").write_text("{torn")
    assert results(run) == {}
    assert flat({"a": {"b": {"c": 1}, "d": [1]}, "e": None}) == {"a.b.c": 1, "a.d": [1], "e": None}


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (0.4, "0 s"), (59.6, "1:00"), (75, "1:15"), (3725, "1:02:05"), (-3, "0 s")]
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_counts_and_the_end_of_a_sweep() -> None:
    def found(*where: Where) -> list[Standing]:
        return [Standing(each, RUN) for each in where]

    assert counts_text(counts(found(Where.failed, Where.queued, Where.queued))) == "2 queued, 1 failed"
    assert len(lines(counts(found(Where.done, Where.failed)), 2).renderables) == 2
    ends = [exit_code(found(Where.done, each)) for each in (Where.done, Where.failed, Where.timeout, Where.lost)]
    assert [*ends, exit_code(found(Where.done, Where.cancelled))] == [0, 1, 1, 3, 130]


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_shares_are_equal_and_apart(slots: int) -> None:
    shares = [share_of(list(range(8)), slot, slots) for slot in range(slots)]
    assert {len(share) for share in shares} == {8 // slots}
    assert len({cpu for share in shares for cpu in share}) == slots * (8 // slots)


def test_too_few_are_shared_one_by_one() -> None:
    assert [share_of([4, 9], slot, 3) for slot in range(3)] == [[4], [9], [4]]


def test_a_share_of_a_job() -> None:
    env = {"SLURM_MEM_PER_NODE": "8000", "SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1,2,3", "KEPT": "1"}
    made = share_env({**env, "SLURM_STEP_GPUS": "0-3"}, cpus=2, slot=1, slots=2)
    assert made == {
        "SLURM_MEM_PER_NODE": "4000", "SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "2,3", "KEPT": "1",
        "SLURM_CPUS_ON_NODE": "2", "SLURM_JOB_CPUS_PER_NODE": "2",
    }  # fmt: skip
    alone = share_env({"SLURM_GPUS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "GPU-a"}, cpus=1, slot=1, slots=2)
    assert (alone["SLURM_GPUS_ON_NODE"], alone["CUDA_VISIBLE_DEVICES"]) == ("0", "")
