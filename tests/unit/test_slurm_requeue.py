"""Why a job was told to stop, from texts of scontrol and squeue; and how it is queued again."""

import time
from pathlib import Path

import pytest
import slurm_stubs

from hpcjet.slurm import requeue
from hpcjet.slurm.requeue import Cause, cause_in, cause_of_sigterm, element_id, time_left_s
from hpcjet.slurm.times import elapsed_s

RUNNING = (
    "JobId=185 JobName=hpcjet-ray UserId=hpcjet(999) GroupId=hpcjet(995) MCS_label=N/A Priority=4294901672 Nice=0 "
    "Account=lab QOS=normal JobState={state} Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 "
    "ExitCode=0:0 RunTime=00:00:08 TimeLimit=00:10:00 TimeMin=N/A SubmitTime=2026-11-30T08:46:02 "
    "StartTime=2026-11-30T08:46:02 EndTime=2026-11-30T08:56:02 Deadline=N/A {preempt}SuspendTime=None SecsPreSuspend=0 "
    "Comment=JobState is a word of this comment"
)
"""As Slurm 22.05 prints it, in one line."""


def show(state: str, preempt: str = "PreemptEligibleTime=2026-11-30T08:46:02 PreemptTime=None ") -> str:
    return RUNNING.format(state=state, preempt=preempt)


NOW = "PreemptEligibleTime=2026-11-30T08:46:02 PreemptTime=2026-11-30T08:46:09 "


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (show("RUNNING", NOW), Cause.preempted),
        (show("PREEMPTED"), Cause.preempted),
        (show("TIMEOUT"), Cause.time_limit),
        (show("DEADLINE"), Cause.time_limit),
        (show("CANCELLED"), Cause.cancelled),
        (show("COMPLETING"), Cause.cancelled),
        (show("RUNNING"), Cause.cancelled),
        (show("RUNNING", ""), Cause.cancelled),
        (show("RUNNING", "PreemptTime=Unknown "), Cause.cancelled),
        (show("NODE_FAIL"), Cause.unknown),
        ("", Cause.unknown),
        ("slurm_load_jobs error: Invalid job id specified", Cause.unknown),
    ],
    ids=["grace", "preempted", "time", "deadline", "scancel", "completing", "signal", "old Slurm", "unknown time",
         "node", "nothing", "error"],
)  # fmt: skip
def test_the_cause(answer: str, cause: Cause) -> None:
    assert cause_in(answer) is cause


def test_a_job_that_is_put_back_into_the_queue_was_not_cancelled() -> None:
    again = show("COMPLETING").replace("Restarts=0", "Restarts=1")
    assert cause_in(again) is Cause.requeued
    assert cause_in(again, restart=1) is Cause.cancelled, "its second start, and it is cancelled"
    assert cause_in(show("RUNNING", NOW).replace("Restarts=0", "Restarts=1")) is Cause.preempted


def test_the_time_limit_without_a_warning_is_no_cancel() -> None:
    over = show("COMPLETING").replace("RunTime=00:00:08", "RunTime=00:10:00")
    assert cause_in(over) is Cause.time_limit
    assert cause_in(over.replace("TimeLimit=00:10:00", "TimeLimit=UNLIMITED")) is Cause.cancelled


def test_the_controller_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = slurm_stubs.on_path(tmp_path / "slurm", monkeypatch)
    slurm_stubs.stub(folder, "scontrol", says=show("RUNNING", NOW), first=slurm_stubs.noted(folder, "scontrol"))
    assert cause_of_sigterm("185") is Cause.preempted
    assert slurm_stubs.calls(folder, "scontrol") == [["show", "job", "--oneliner", "185"]]


@pytest.mark.parametrize("how", ["missing", "fails", "hangs"])
def test_without_an_answer_the_cause_is_unknown(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requeue, "CALL_TIMEOUT_S", 0.5)
    folder = slurm_stubs.on_path(tmp_path / "slurm", monkeypatch, alone=how == "missing")
    if how != "missing":
        first = "exec sleep 5" if how == "hangs" else ""
        slurm_stubs.stub(folder, "scontrol", says=show("RUNNING"), code=1, first=first)
    assert cause_of_sigterm("185") is Cause.unknown


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:59", 59), ("1:00", 60), ("12:34", 754), ("1:02:03", 3723), ("2-03:04:05", 183_845), ("1-00:00:00", 86_400),
        ("0:00\n", 0), ("UNLIMITED", None), ("NOT_SET", None), ("INVALID", None), ("", None), ("N/A", None),
        ("-1:00", None), ("x-1:00", None),
    ],
)  # fmt: skip
def test_the_time_left(text: str, seconds: float | None) -> None:
    assert elapsed_s(text) == seconds


def test_the_end_of_the_job_is_known_without_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_stubs.on_path(tmp_path / "slurm", monkeypatch, alone=True)
    left_s = time_left_s({"SLURM_JOB_END_TIME": str(int(time.time()) + 100), "SLURM_JOB_ID": "185"})
    assert left_s is not None and 50 <= left_s <= 100


def test_an_older_slurm_is_asked_for_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = slurm_stubs.on_path(tmp_path / "slurm", monkeypatch)
    slurm_stubs.stub(folder, "squeue", says="1:30\n")
    assert time_left_s({"SLURM_JOB_ID": "185"}) == 90
    assert slurm_stubs.argv(folder, "squeue") == ["--noheader", "--jobs", "185", "--format", "%L"]
    slurm_stubs.stub(folder, "squeue", says="1:30\n", code=1)
    assert time_left_s({"SLURM_JOB_ID": "185"}) is None


def test_within_an_array_only_the_element_is_meant() -> None:
    assert element_id({"SLURM_JOB_ID": "187"}) == "187"
    assert element_id({"SLURM_JOB_ID": "188", "SLURM_ARRAY_JOB_ID": "187", "SLURM_ARRAY_TASK_ID": "3"}) == "187_3"


def test_requeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = slurm_stubs.on_path(tmp_path / "slurm", monkeypatch)
    slurm_stubs.stub(folder, "scontrol")
    assert requeue.requeue("187_3") == ""
    assert slurm_stubs.argv(folder, "scontrol") == ["requeue", "187_3"]


@pytest.mark.parametrize(
    "refusal",
    [
        "Requested operation is presently disabled for job 187",
        "Invalid job id specified for job 187",
        "Access/permission denied for job 187",
    ],
)
def test_a_refusal_is_final(refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = slurm_stubs.on_path(tmp_path / "slurm", monkeypatch)
    slurm_stubs.stub(folder, "scontrol", error=refusal + "\n", code=1, first=slurm_stubs.noted(folder, "scontrol"))
    assert requeue.requeue("187") == refusal
    assert len(slurm_stubs.calls(folder, "scontrol")) == 1


def test_a_job_that_is_just_ending_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = slurm_stubs.on_path(tmp_path / "slurm", monkeypatch)
    again = f"[ -e {folder}/before ] && exit 0; touch {folder}/before"
    slurm_stubs.stub(folder, "scontrol", error="Job is pending execution\n", code=1, first=again)
    assert requeue.requeue("187") == ""


def test_no_scontrol_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_stubs.on_path(tmp_path / "slurm", monkeypatch, alone=True)
    assert requeue.requeue("187") == "scontrol is not on this node, or does not answer"


def test_one_component_of_a_heterogeneous_job_is_the_cause_for_all() -> None:
    assert cause_in(f"{show('RUNNING')}\n{show('RUNNING', NOW)}\n") is Cause.preempted
    assert cause_in(f"{show('NODE_FAIL')}\n{show('RUNNING')}\n") is Cause.cancelled


def test_a_heterogeneous_job_has_the_number_of_its_first_component() -> None:
    assert element_id({"SLURM_JOB_ID": "13", "SLURM_JOB_ID_HET_GROUP_0": "12"}) == "12"


def test_the_time_left_of_a_heterogeneous_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = slurm_stubs.on_path(tmp_path / "slurm", monkeypatch)
    slurm_stubs.stub(folder, "squeue", says="10:00\n10:00\n")
    assert time_left_s({"SLURM_JOB_ID": "12"}) == 600
