"""Node lists, and what Slurm says of a job. Stubs of its commands print recorded text."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
from slurm_stubs import argv, brisk, calls, noted, on_path, stub

from hpcjet.errors import ConfigError, SubmitError
from hpcjet.slurm import call
from hpcjet.slurm.nodelist import expand
from hpcjet.slurm.query import Stage, cancel_job, job_state, job_states, partitions
from hpcjet.slurm.submission import Submission, submission_state
from hpcjet.slurm.times import moment
from hpcjet.slurm.watch import Watch


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login1", ["login1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("rack[1-2]n[01-02]", ["rack1n01", "rack1n02", "rack2n01", "rack2n02"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("n[1-2],m[3-4]", ["n1", "n2", "m3", "m4"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[3,1,7-8]", ["n3", "n1", "n7", "n8"]),
        ("n[098-101].cluster", ["n098.cluster", "n099.cluster", "n100.cluster", "n101.cluster"]),
        ("b,a", ["b", "a"]),
        ("r[1-2]s[1,3]-n[0-1]", [f"r{r}s{s}-n{n}" for r in (1, 2) for s in (1, 3) for n in (0, 1)]),
    ],
)
def test_node_lists(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize("text", ["n[1-2", "n1-2]", "n[a-b]", "n[1-]", "n[]", "n[1--2]"])
def test_what_is_no_node_list(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a Slurm node list"):
        expand(text)


DOWN = "error: Unable to contact slurm controller (connect failure)\n"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands while the controller is down."""
    folder = on_path(tmp_path / "slurm", monkeypatch)
    brisk(monkeypatch)
    for name in ("squeue", "sacct", "scontrol", "scancel", "sinfo"):
        stub(folder, name, error=f"{name}: {DOWN}", code=1)
    return folder


def queue(folder: Path, *rows: str, **more: str) -> None:
    stub(folder, "squeue", says="".join(f"{row}\n" for row in rows), first=noted(folder, "squeue"), **more)


def accounting(folder: Path, *rows: str) -> None:
    stub(folder, "sacct", says="".join(f"{row}\n" for row in rows), first=noted(folder, "sacct"))


PENDING = "12|PENDING|2026-11-30T08:35:08|2026-11-30T09:00:00|2026-11-30T10:00:00||Resources"
RUNNING = "12|RUNNING|2026-11-30T08:35:08|2026-11-30T08:36:00|2026-11-30T10:00:00|n[1-2]|None"
COMPLETED = "12|COMPLETED|2026-11-30T08:35:08|2026-11-30T08:36:00|2026-11-30T08:40:00|n[1-2]|None"
RECORD = "12|COMPLETED|0:0|2026-11-30T08:35:08|2026-11-30T08:36:00|2026-11-30T08:40:00|n[1-2]|None"


def test_a_job_that_waits(slurm: Path) -> None:
    queue(slurm, PENDING)
    state = job_state("12")
    assert (state.stage, state.state, state.reason, state.nodes) == (Stage.pending, "PENDING", "Resources", "")
    assert state.expected_start == moment("2026-11-30T09:00:00")
    assert state.submitted == moment("2026-11-30T08:35:08")
    assert argv(slurm, "squeue")[0] == f"--user={os.getuid()}"
    assert not (slurm / "sacct.argv").exists()


def test_a_start_that_nobody_has_planned(slurm: Path) -> None:
    queue(slurm, "12|PENDING|2026-11-30T08:35:08|N/A|N/A||(launch failed | requeued held)")
    state = job_state("12")
    assert state.expected_start is None and state.reason == "(launch failed | requeued held)"


def test_an_end_that_both_sources_tell_is_asked_once_each(slurm: Path) -> None:
    queue(slurm, COMPLETED)
    accounting(slurm, RECORD)
    state = job_state("12")
    assert (state.stage, state.state, state.exit_code, state.signal) == (Stage.ended, "COMPLETED", 0, None)
    assert state.nodes == "n[1-2]" and state.ended == moment("2026-11-30T08:40:00") and state.restarts == 0
    assert (len(calls(slurm, "squeue")), len(calls(slurm, "sacct"))) == (1, 1)


@pytest.mark.parametrize(
    ("word", "code", "state", "signal"),
    [
        ("COMPLETED", "0:0", "COMPLETED", None),
        ("CANCELLED by 1000", "0:15", "CANCELLED", 15),
        ("CANCELLED+", "0:0", "CANCELLED", None),
        ("OUT_OF_MEMORY", "0:125", "OUT_OF_MEMORY", 125),
        ("NODE_FAIL", "1:0", "NODE_FAIL", None),
    ],
)
def test_a_job_that_the_controller_forgot(slurm: Path, word: str, code: str, state: str, signal: int | None) -> None:
    stub(slurm, "squeue", error="slurm_load_jobs error: Invalid job id specified\n", code=1)
    accounting(slurm, f"12|{word}|{code}|2026-11-30T08:35:08|2026-11-30T08:36:00|2026-11-30T08:40:00|n1|None")
    found = job_state("12")
    assert (found.stage, found.state, found.signal) == (Stage.ended, state, signal)


def test_a_queue_that_has_it_waiting_again_beats_an_old_record(slurm: Path) -> None:
    queue(slurm, PENDING)
    accounting(slurm, "12|NODE_FAIL|0:0|2026-11-30T08:00:00|2026-11-30T08:01:00|2026-11-30T08:30:00|n1|None")
    assert job_state("12").stage is Stage.pending


def test_an_end_that_nothing_confirms_is_asked_again(slurm: Path) -> None:
    """J12: the first answer is of a moment before the job was queued again."""
    first = "12|NODE_FAIL|2026-11-30T08:35:08|2026-11-30T08:36:00|2026-11-30T08:40:00|n1|NodeDown"
    (slurm / "first").touch()
    turn = f'if [ -e {slurm}/first ]; then rm {slurm}/first; echo "{first}"; else echo "{PENDING}"; fi; exit 0'
    stub(slurm, "squeue", first=turn)
    assert job_state("12").stage is Stage.pending


def test_without_accounting_an_end_is_seen_twice(slurm: Path) -> None:
    queue(slurm, COMPLETED)
    stub(slurm, "sacct", error="Slurm accounting storage is disabled\n", code=1)
    state = job_state("12")
    assert (state.stage, state.state, state.exit_code) == (Stage.ended, "COMPLETED", None)
    assert [words[0] for words in calls(slurm, "squeue")] == [f"--user={os.getuid()}", "--jobs=12"]


def test_without_accounting_a_forgotten_job_has_ended_somehow(slurm: Path) -> None:
    queue(slurm)
    stub(slurm, "sacct", error="Slurm accounting storage is disabled\n", code=1)
    state = job_state("12")
    assert (state.stage, state.state, state.exit_code) == (Stage.ended, "PURGED", None)


def test_a_record_that_was_never_closed_does_not_keep_a_forgotten_job_alive(slurm: Path) -> None:
    queue(slurm)
    accounting(slurm, "12|RUNNING|0:0|2026-11-30T08:35:08|2026-11-30T08:36:00|Unknown|n1|None")
    assert (job_state("12").stage, job_state("12").state) == (Stage.ended, "PURGED")


def test_another_users_job_may_be_hidden(slurm: Path) -> None:
    queue(slurm)
    stub(slurm, "sacct")
    mine = job_states(["12"], uid=os.getuid())["12"]
    other = job_states(["12"], uid=os.getuid() + 1)["12"]
    # root sees all jobs
    assert mine.stage is Stage.ended and other.stage is (Stage.ended if os.getuid() == 0 else Stage.unknown)


@pytest.mark.parametrize("word", ["COMPLETED", "CANCELLED by 7", "TIMEOUT", "OUT_OF_MEMORY"])
def test_while_the_controller_is_away_accounting_tells_of_certain_ends(slurm: Path, word: str) -> None:
    accounting(slurm, f"12|{word}|0:0|2026-11-30T08:35:08|2026-11-30T08:36:00|2026-11-30T08:40:00|n1|None")
    assert job_state("12").stage is Stage.ended


@pytest.mark.parametrize("word", ["NODE_FAIL", "PREEMPTED", "FAILED", "RUNNING", "REQUEUED", "BRAND_NEW"])
def test_and_of_nothing_that_may_have_been_queued_again(slurm: Path, word: str) -> None:
    accounting(slurm, f"12|{word}|0:0|2026-11-30T08:35:08|2026-11-30T08:36:00|2026-11-30T08:40:00|n1|None")
    assert job_state("12").stage is Stage.unknown


def test_a_controller_that_is_down_leaves_it_unknown(slurm: Path) -> None:
    assert job_state("12").stage is Stage.unknown
    assert partitions() is None


def test_a_command_that_hangs_is_left(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "QUERY_TIMEOUT_S", 0.3)
    stub(slurm, "squeue", first="exec sleep 30")
    assert job_state("12").stage is Stage.unknown


def test_without_slurm_it_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path / "empty", monkeypatch, alone=True)
    assert job_state("12").stage is Stage.unknown


def test_a_state_of_a_later_release_is_unknown(slurm: Path) -> None:
    queue(slurm, "12|TELEPORTING|2026-11-30T08:35:08|N/A|N/A||None")
    assert job_state("12").stage is Stage.unknown and job_state("12").state == "TELEPORTING"


def test_banners_and_other_lines_are_passed_over(slurm: Path) -> None:
    queue(slurm, "*** Welcome ***", "CLUSTER: alpha", PENDING, "13|PENDING")
    assert job_state("12").stage is Stage.pending


def test_elements_in_short_and_in_long_form(slurm: Path) -> None:
    """J2: running elements have lines of their own, those that wait may share one."""
    queue(slurm, "9_[4-5%2]" + PENDING[2:], "9_3" + RUNNING[2:])
    accounting(
        slurm,
        "9_0" + RECORD[2:],
        "9_1" + RECORD[2:].replace("COMPLETED|0:0", "FAILED|7:0"),
        "9_[4-5%2]|PENDING|0:0||||",
    )
    states = job_states([f"9_{number}" for number in range(6) if number != 2])
    assert {key: state.state for key, state in states.items()} == {
        "9_0": "COMPLETED", "9_1": "FAILED", "9_3": "RUNNING", "9_4": "PENDING", "9_5": "PENDING",
    }  # fmt: skip
    assert states["9_1"].exit_code == 7
    assert argv(slurm, "sacct")[-2] == "--jobs=9"


def test_a_job_that_had_the_number_before_is_another(slurm: Path) -> None:
    """J6: ids are used again."""
    queue(slurm)
    accounting(slurm, RECORD.replace("2026", "2024"))
    now = moment("2026-11-30T08:35:08")
    assert now is not None
    assert job_states(["12"])["12"].state == "COMPLETED"
    assert job_states(["12"], submitted={"12": now})["12"].state == "PURGED"
    accounting(slurm, RECORD.replace("2026", "2024"), RECORD.replace("COMPLETED|0:0", "FAILED|3:0"))
    assert job_states(["12"], submitted={"12": now})["12"].exit_code == 3


def test_restarts_are_counted(slurm: Path) -> None:
    queue(slurm)
    accounting(
        slurm,
        RECORD.replace("COMPLETED", "PREEMPTED"),
        RECORD.replace("COMPLETED", "NODE_FAIL").replace("T08", "T09"),
        RECORD.replace("T08", "T10"),
    )
    state = job_state("12")
    assert (state.state, state.restarts, state.submitted) == ("COMPLETED", 2, moment("2026-11-30T10:35:08"))


@pytest.mark.parametrize("scene", ["alive", "ended", "gone", "away"])
def test_calls_for_a_thousand_points(slurm: Path, scene: str) -> None:
    arrays = [f"{job}_{number}" for job in (7, 8) for number in range(500)]
    single = [str(job) for job in range(10_000, 11_000)]
    rows = [key + RUNNING[2:] for key in arrays + single]
    records = [key + RECORD[2:] for key in arrays + single]
    queue(slurm, *(rows if scene == "alive" else []))
    accounting(slurm, *(records if scene in ("ended", "away") else []))
    if scene == "away":
        stub(slurm, "squeue", error=DOWN, code=1, first=noted(slurm, "squeue"))
    stages = {state.stage for state in job_states(arrays + single).values()}
    assert stages == {Stage.running if scene == "alive" else Stage.ended}
    number = len(calls(slurm, "squeue")) + len(calls(slurm, "sacct"))
    assert number == {"alive": 1, "ended": 2, "gone": 3, "away": 2}[scene]


def test_jobs_of_two_clusters(slurm: Path) -> None:
    queue(slurm, PENDING)
    assert set(job_states(["12;alpha", "12", "12;beta"])) == {"12;alpha", "12", "12;beta"}
    assert sorted(words[0] for words in calls(slurm, "squeue")) == [
        "--clusters=alpha", "--clusters=beta", f"--user={os.getuid()}",
    ]  # fmt: skip


def test_the_users_own_formats_change_nothing(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SQUEUE_FORMAT", "SQUEUE_FORMAT2", "SLURM_CLUSTERS", "SACCT_FORMAT", "SLURM_TIME_FORMAT"):
        monkeypatch.setenv(name, "relative")
    stub(slurm, "squeue", first=f"env > {slurm}/env", says=f"{PENDING}\n")
    job_state("12")
    seen = dict(line.partition("=")[::2] for line in (slurm / "env").read_text().splitlines())
    assert not {"SQUEUE_FORMAT", "SQUEUE_FORMAT2", "SLURM_CLUSTERS", "SACCT_FORMAT"} & set(seen)
    assert (seen["SLURM_TIME_FORMAT"], seen["SLURM_BITSTR_LEN"]) == ("standard", "0")


def test_cancel_is_by_id_and_tells_what_scancel_said(slurm: Path) -> None:
    stub(slurm, "scancel")
    cancel_job("12")
    assert argv(slurm, "scancel") == ["12"]
    cancel_job("12;alpha")
    assert argv(slurm, "scancel") == ["--clusters=alpha", "12"]
    stub(slurm, "scancel", error="scancel: error: Kill job error on job id 12: Access/permission denied\n", code=1)
    with pytest.raises(SubmitError, match=r"scancel 12 failed: .*permission denied; see squeue --me"):
        cancel_job("12")


def test_partitions_are_listed_once(slurm: Path) -> None:
    stub(slurm, "sinfo", says="gpu\nbatch\ngpu\n")
    assert partitions() == ["batch", "gpu"]


def test_what_was_submitted_is_asked_about_on_its_cluster_and_since_then(slurm: Path) -> None:
    queue(slurm)
    accounting(slurm, RECORD)
    since = moment("2026-11-30T08:35:00")
    submission = Submission("slurm", "12", slurm_cluster="alpha", token="t", submitted=since, uid=os.getuid())
    assert submission_state(submission).state == "COMPLETED"
    assert argv(slurm, "sacct")[0] == "--clusters=alpha"
    assert since is not None
    assert submission_state(dataclasses.replace(submission, submitted=since + 9999)).state == "PURGED"


def test_a_submission_of_an_earlier_version_is_read() -> None:
    old = Submission(**json.loads('{"cluster": "slurm", "job_id": "12", "pid": 0}'))
    assert (old.key, old.token, old.submitted) == ("12", "", None)


def test_a_watch_keeps_the_last_state_while_nobody_answers(slurm: Path) -> None:
    watch = Watch(["12"])
    queue(slurm, RUNNING)
    assert watch.poll()["12"].stage is Stage.running
    stub(slurm, "squeue", error=DOWN, code=1)
    for _ in range(30):
        assert watch.poll() == {}
    assert watch.states["12"].stage is Stage.running and watch.silent_since is not None and watch.pause_s == 30
    queue(slurm, COMPLETED)
    accounting(slurm, RECORD)
    assert watch.poll()["12"].stage is Stage.ended
    assert (watch.open, watch.silent_since, watch.pause_s) == ([], None, 1)
    queue(slurm, RUNNING)
    assert watch.poll() == {} and watch.states["12"].stage is Stage.ended, "an end stays"
    watch.again("12")
    assert watch.poll()["12"].stage is Stage.running


def test_a_heterogeneous_job_is_told_by_its_first_component(slurm: Path) -> None:
    queue(slurm, RUNNING.replace("12|", "12+0|"), RUNNING.replace("12|", "12+1|").replace("RUNNING", "COMPLETED"))
    assert job_state("12").stage is Stage.running
    assert job_states(["12+0"])["12+0"].stage is Stage.running
    queue(slurm, RUNNING.replace("12|", "12+0|"), RUNNING.replace("12|", "12+1|").replace("n[1-2]", "m4"))
    assert job_state("12").nodes == "n[1-2],m4" and job_states(["12+1"])["12+1"].nodes == "m4"
    queue(slurm)
    accounting(slurm, RECORD.replace("12|", "12+0|"), RECORD.replace("12|", "12+1|").replace("COMPLETED", "FAILED"))
    assert job_state("12").state == "COMPLETED"
