"""Node lists, and what Slurm says of a job. Stubs of its commands print recorded text."""

from pathlib import Path

import pytest
from slurm_stubs import argv, on_path, stub

from hpcjet.errors import ConfigError, SubmitError
from hpcjet.slurm import query
from hpcjet.slurm.nodelist import expand
from hpcjet.slurm.query import STAGES, JobState, Stage, cancel_job, job_state, partitions


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


ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT",
    "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL",
}  # fmt: skip
ALIVE = {
    "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "POWER_UP_NODE", "PENDING",
    "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "EXPEDITING",
}  # fmt: skip


def test_every_state_is_classified() -> None:
    assert {state for state, stage in STAGES.items() if stage is Stage.ended} == ENDED
    assert {state for state, stage in STAGES.items() if stage is not Stage.ended} == ALIVE
    assert Stage.unknown not in STAGES.values()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands while the controller is down."""
    folder = on_path(tmp_path / "slurm", monkeypatch)
    for name in ("squeue", "sacct", "scontrol", "scancel", "sinfo"):
        down = f"{name}: error: Unable to contact slurm controller (connect failure)\n"
        stub(folder, name, error=down, code=1)
    return folder


def test_the_queue_is_asked_first(slurm: Path) -> None:
    stub(slurm, "squeue", says="PENDING|Resources\n")
    stub(slurm, "sacct", says="COMPLETED\n")
    assert job_state("12") == JobState(Stage.pending, "PENDING", "Resources")
    assert argv(slurm, "squeue") == ["-h", "-j", "12", "-o", "%T|%r"]
    assert not (slurm / "sacct.argv").exists()


@pytest.mark.parametrize("answer", [{"says": ""}, {"code": 1, "error": "Invalid job id specified"}], ids=["empty", "1"])
@pytest.mark.parametrize(
    ("word", "stage", "state"),
    [
        ("COMPLETED\n", Stage.ended, "COMPLETED"),
        ("CANCELLED by 1000\n", Stage.ended, "CANCELLED"),
        ("CANCELLED+\n", Stage.ended, "CANCELLED"),
        ("NODE_FAIL\nRUNNING\n", Stage.running, "RUNNING"),
        ("BRAND_NEW_STATE\n", Stage.unknown, "BRAND_NEW_STATE"),
    ],
)
def test_then_accounting(slurm: Path, answer: dict[str, object], word: str, stage: Stage, state: str) -> None:
    stub(slurm, "squeue", **answer)  # type: ignore[arg-type]
    stub(slurm, "sacct", says=word)
    assert job_state("12") == JobState(stage, state)


def test_then_the_controllers_memory(slurm: Path) -> None:
    stub(slurm, "squeue")
    stub(slurm, "sacct", error="Slurm accounting storage is disabled\n", code=1)
    stub(slurm, "scontrol", says="JobId=12 JobName=hpcjet UserId=u(1000) JobState=OUT_OF_MEMORY Reason=OutOfMemory \n")
    assert job_state("12") == JobState(Stage.ended, "OUT_OF_MEMORY")


def test_a_controller_that_is_down_leaves_it_unknown(slurm: Path) -> None:
    assert job_state("12") == JobState(Stage.unknown)
    assert partitions() is None


def test_no_answer_anywhere_is_unknown_and_not_ended(slurm: Path) -> None:
    for name in ("squeue", "sacct", "scontrol"):
        stub(slurm, name)
    assert job_state("12").stage is Stage.unknown


def test_a_command_that_hangs_is_left(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "QUERY_TIMEOUT_S", 0.3)
    stub(slurm, "squeue", first="exec sleep 30")
    stub(slurm, "sacct", says="RUNNING\n")
    assert job_state("12") == JobState(Stage.running, "RUNNING")


def test_without_slurm_it_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path / "empty", monkeypatch, alone=True)
    assert job_state("12").stage is Stage.unknown


def test_cancel_is_by_id_and_tells_what_scancel_said(slurm: Path) -> None:
    stub(slurm, "scancel")
    cancel_job("12")
    assert argv(slurm, "scancel") == ["12"]
    stub(slurm, "scancel", error="scancel: error: Kill job error on job id 12: Access/permission denied\n", code=1)
    with pytest.raises(SubmitError, match=r"scancel 12 failed: .*permission denied; see squeue --me"):
        cancel_job("12")


def test_partitions_are_listed_once(slurm: Path) -> None:
    stub(slurm, "sinfo", says="gpu\nbatch\ngpu\n")
    assert partitions() == ["batch", "gpu"]
