"""Exactly one job for one submission, whatever becomes of sbatch's answer."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_stubs import argv, brisk, calls, noted, on_path, stub
from test_slurm_script import request

from hpcjet.cluster.node import NodeAgent
from hpcjet.errors import ConfigError, SubmitError
from hpcjet.slurm import sbatch as module
from hpcjet.slurm.call import Answer, submit_env
from hpcjet.slurm.failures import TABLE, Kind, classify
from hpcjet.slurm.jobid import JobId
from hpcjet.slurm.sbatch import find, sbatch
from hpcjet.slurm.submit import submit


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm whose queue is the file `jobs`; an sbatch that works puts a job there."""
    folder = on_path(tmp_path / "slurm", monkeypatch)
    brisk(monkeypatch)
    (folder / "jobs").touch()
    stub(folder, "squeue", first=f"{noted(folder, 'squeue')}; cat {folder}/jobs; exit 0")
    stub(folder, "sacct", error="Invalid field requested: SubmitLine\n", code=1)
    stub(folder, "scancel", first=noted(folder, "scancel"))
    return folder


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "my job.sh"
    file.write_text("#!/bin/bash\n#SBATCH --time=5\n#SBATCH --partition=batch\ntrue\n")
    return file


def takes(folder: Path, *, number: int = 41) -> str:
    """A shell line: the controller takes the job."""
    return f'echo "{number}|PENDING|${{@: -2:1}} ${{@: -1}}" >> {folder}/jobs'


def failing(folder: Path, *steps: str) -> None:
    """An sbatch that does one of the steps each time, the last one for ever."""
    cases = "\n".join(f"{number}) {step};;" for number, step in enumerate(steps[:-1]))
    turn = f"n=$(cat {folder}/turn 2>/dev/null || echo 0); echo $((n+1)) > {folder}/turn"
    stub(folder, "sbatch", first=f"{noted(folder, 'sbatch')}\n{turn}\ncase $n in\n{cases}\n*) {steps[-1]};;\nesac")


def jobs(folder: Path) -> list[str]:
    return (folder / "jobs").read_text().splitlines()


def test_an_answer_is_an_answer(slurm: Path, script: Path) -> None:
    failing(slurm, f"{takes(slurm)}; echo 41")
    assert sbatch(script, token="tok", options=["--array=0-3%2"]) == JobId("41")
    assert calls(slurm, "sbatch") == [["--parsable", "--array=0-3%2", str(script), "tok"]]
    assert calls(slurm, "squeue") == [], "no question where there is no doubt"


@pytest.mark.parametrize(
    "after",
    [
        'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1',
        'echo "HTTP 502 Bad Gateway" >&2; exit 1',
        "exit 1",
        "kill -9 $$",
        "exit 0",
        "echo Submitted batch job 41 on cluster alpha; exit 0",
        "printf '2026\\n41\\n'; exit 0",
        "echo 41; exit 1",
    ],
    ids=["time-out", "proxy", "silent", "killed", "no answer", "words", "two numbers", "id and failure"],
)
def test_a_lost_reply_is_no_second_job(after: str, slurm: Path, script: Path) -> None:
    failing(slurm, f"{takes(slurm)}; {after}")
    assert sbatch(script, token="tok") == JobId("41")
    assert len(jobs(slurm)) == 1 and len(calls(slurm, "sbatch")) == 1


def test_a_reply_that_takes_too_long(slurm: Path, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SBATCH_TIMEOUT_S", 3.0)
    failing(slurm, f"{takes(slurm)}; exec sleep 900")
    assert sbatch(script, token="tok") == JobId("41")
    assert len(calls(slurm, "sbatch")) == 1


LOST = 'echo "sbatch: error: Unable to contact slurm controller (connect failure)" >&2; exit 1'


def test_what_was_not_taken_is_tried_again(slurm: Path, script: Path, caplog: pytest.LogCaptureFixture) -> None:
    failing(slurm, LOST, LOST, f"{takes(slurm)}; echo 41")
    assert sbatch(script, token="tok") == JobId("41")
    assert len(calls(slurm, "sbatch")) == 3 and len(jobs(slurm)) == 1
    assert "Slurm did not take the job" in caplog.text and "Unable to contact" in caplog.text


def test_jobs_of_others_and_of_other_tokens_are_not_ours(slurm: Path, script: Path) -> None:
    (slurm / "jobs").write_text(
        "7|RUNNING|/x/job.sh tok2\n8|RUNNING|/x/job.sh tok more\n9|RUNNING|(null)\nbanner tok\n"
    )
    assert find("tok") == []
    assert argv(slurm, "squeue")[0] == f"--user={os.getuid()}"
    failing(slurm, LOST, f"{takes(slurm)}; echo 41")
    assert sbatch(script, token="tok") == JobId("41")


def test_a_request_that_was_only_late_is_ended(slurm: Path, script: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first one arrives when the second is on its way."""
    failing(slurm, LOST, f"{takes(slurm, number=40)}; {takes(slurm, number=41)}; echo 41")
    assert sbatch(script, token="tok") == JobId("40")
    assert calls(slurm, "scancel") == [["41"]]
    assert "twice" in caplog.text


def test_a_controller_that_stays_away(slurm: Path, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GIVE_UP_S", 0.3)
    failing(slurm, LOST)
    stub(slurm, "squeue", error="squeue: error: Unable to contact slurm controller\n", code=1)
    with pytest.raises(SubmitError, match=r"does not answer .*whether it has the job is not known.*grep tok, finds it"):
        sbatch(script, token="tok")
    assert len(calls(slurm, "sbatch")) == 1, "nothing is tried again in doubt"


def test_a_controller_that_stays_busy(slurm: Path, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GIVE_UP_S", 0.3)
    failing(slurm, LOST)
    with pytest.raises(SubmitError, match=r"Slurm did not take the job for .* Unable to contact .*later"):
        sbatch(script, token="tok")


@pytest.mark.parametrize(
    ("words", "error", "step"),
    [
        ("sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid partition "
         "name specified", ConfigError, "cluster.partition"),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
         ConfigError, "cluster.account"),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", ConfigError, "cluster.qos"),
        ("sbatch: error: Memory specification can not be satisfied\nsbatch: error: Batch job submission failed: "
         "Requested node configuration is not available", ConfigError, "fewer nodes"),
        ("sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification", ConfigError,
         "cluster.gres"),
        ("sbatch: error: Batch job submission failed: Invalid feature specification", ConfigError,
         "cluster.constraint"),
        ("sbatch: error: Batch job submission failed: Invalid node name specified", ConfigError, "cluster.exclude"),
        ("sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
         ConfigError, "cluster.time_min"),
        ("sbatch: error: Batch job submission failed: Invalid job array specification", ConfigError, "MaxArraySize"),
        ("sbatch: error: Batch job submission failed: Requested reservation is invalid", ConfigError, "reservation"),
        ("sbatch: unrecognized option '--foo'\nTry \"sbatch --help\" for more information", ConfigError, "sbatch"),
        ("sbatch: error: Invalid --time specification", ConfigError, "cluster.time_min"),
        ("sbatch: error: Batch job submission failed: Job's account not permitted to use this partition (debug allows "
         "ops not lab)", ConfigError, "may use it"),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates "
         "accounting/QOS policy (job submit limit, user's size and/or time limits)", SubmitError, "wait for jobs"),
        ("sbatch: error: the site says no on Fridays", SubmitError, "squeue --me"),
    ],
    ids=lambda value: str(value)[-30:] if isinstance(value, str) else "",
)  # fmt: skip
def test_a_refusal_has_slurms_words_and_the_next_step(
    words: str, error: type[Exception], step: str, slurm: Path, script: Path
) -> None:
    stub(slurm, "sbatch", error=words + "\n", code=1, first=noted(slurm, "sbatch"))
    with pytest.raises(error) as caught:
        sbatch(script, token="tok")
    text = str(caught.value)
    assert text.startswith("Slurm refused the job: ") and step in text and str(script) in text
    assert words.splitlines()[-1] in text or "unrecognized option" in text
    assert type(caught.value) is error and len(calls(slurm, "sbatch")) == 1


def test_no_sbatch_is_told(tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = on_path(tmp_path / "empty", monkeypatch, alone=True)
    brisk(monkeypatch)
    monkeypatch.setattr(module, "GIVE_UP_S", 0.1)
    with pytest.raises(SubmitError, match="sbatch"):
        sbatch(script, token="tok")
    assert list(folder.iterdir()) == []


def test_an_answer_without_an_id_and_without_a_job(slurm: Path, script: Path) -> None:
    stub(slurm, "sbatch", says="Welcome to the cluster\n")
    with pytest.raises(SubmitError, match="sbatch answered without a job id: 'Welcome to the cluster', and no job"):
        sbatch(script, token="tok")


def test_the_job_of_a_launch_that_died_is_taken(slurm: Path, script: Path) -> None:
    (slurm / "jobs").write_text("39|COMPLETED|/x/job.sh tok\n40|RUNNING|/x/job.sh tok\n")
    failing(slurm, f"{takes(slurm)}; echo 41")
    assert sbatch(script, token="tok", look_first=True) == JobId("40")
    assert calls(slurm, "sbatch") == []
    (slurm / "jobs").write_text("39|COMPLETED|/x/job.sh tok\n")
    assert sbatch(script, token="tok", look_first=True) == JobId("41"), "one that has ended is of no use"


def test_the_clusters_of_a_submission_are_asked(slurm: Path, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "CLUSTER: alpha\n7|RUNNING|/x/a.sh other\nCLUSTER: beta\n41|PENDING|/x/a.sh tok\n"
    (slurm / "jobs").write_text(listed)
    failing(slurm, LOST)
    assert sbatch(script, token="tok", options=["--clusters=alpha,beta"]) == JobId("41", "beta")
    assert calls(slurm, "squeue")[0][0] == "--clusters=alpha,beta"
    monkeypatch.setenv("SLURM_CLUSTERS", "beta")
    assert sbatch(script, token="tok") == JobId("41", "beta")
    assert calls(slurm, "squeue")[-1][0] == "--clusters=beta"


def test_a_job_that_the_controller_forgot_already_is_found_in_accounting(slurm: Path, script: Path) -> None:
    stub(slurm, "sacct", says="40|sbatch --parsable /x/job.sh other\n41_7|sbatch --parsable /x/job.sh tok\n")
    failing(slurm, LOST)
    assert sbatch(script, token="tok") == JobId("41")


@pytest.mark.parametrize("token", ["", "two words", "a\nb", "ü", "$x"])
def test_a_token_is_one_plain_word(token: str, slurm: Path, script: Path) -> None:
    with pytest.raises(ConfigError, match="is not one plain word"):
        sbatch(script, token=token)


def test_the_environment_of_sbatch() -> None:
    env = {
        "PATH": "/bin", "SBATCH_ACCOUNT": "mine", "SBATCH_PARTITION": "other", "SBATCH_TIMELIMIT": "1",
        "SBATCH_ARRAY_INX": "0-9", "SLURM_CONF": "/etc/s.conf", "SLURM_CPUS_PER_TASK": "3", "SLURM_MPI_TYPE": "pmix",
    }  # fmt: skip
    text = "#SBATCH --partition=batch\n#SBATCH --time=5\n"
    assert set(submit_env(env, text)) == {"PATH", "SBATCH_ACCOUNT", "SLURM_CONF", "SLURM_CPUS_PER_TASK",
                                          "SLURM_MPI_TYPE"}  # fmt: skip
    inside = submit_env({**env, "SLURM_JOB_ID": "7"}, text)
    assert set(inside) == {"PATH", "SBATCH_ACCOUNT", "SLURM_CONF"}, "a job hands none of its numbers on"


def test_every_pattern_of_the_table_can_be_reached() -> None:
    kinds = {kind for _, kind, _ in TABLE}
    assert kinds == {Kind.transient, Kind.request, Kind.limit}
    assert classify(Answer(1, err="sbatch: error: Zero Bytes were transmitted or received\n")).kind is Kind.transient
    assert classify(Answer(-9)).kind is Kind.transient


# one launch, its run directory, and one that comes after it


def test_a_resume_finds_the_job_of_a_launch_that_was_killed(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    plan, config = request(run=tmp_path / "run")
    failing(slurm, f"{takes(slurm)}; {LOST}")
    stub(slurm, "squeue", error="down\n", code=1)
    monkeypatch.setattr(module, "GIVE_UP_S", 0.1)
    with pytest.raises(SubmitError, match="not known"):
        submit(plan, config, NodeAgent(plan.run.plan))
    stub(slurm, "squeue", first=f"cat {slurm}/jobs; exit 0")
    began = time.time()
    submission = submit(plan, config, NodeAgent(plan.run.plan))
    assert submission.job_id == "41" and len(jobs(slurm)) == 1 and submission.uid == os.getuid()
    assert submission.submitted is not None and submission.submitted >= began - 1
    assert (plan.run.submit_folder / "41_submitted.pkl").exists(), "what the job unpickles"


def test_after_a_refusal_nothing_is_looked_for(slurm: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    plan, config = request(run=tmp_path / "run")
    stub(slurm, "sbatch", error="sbatch: error: Batch job submission failed: Invalid qos specification\n", code=1)
    with pytest.raises(ConfigError):
        submit(plan, config, NodeAgent(plan.run.plan))
    failing(slurm, f"{takes(slurm)}; echo 41")
    assert submit(plan, config, NodeAgent(plan.run.plan)).job_id == "41"
    assert calls(slurm, "squeue") == []


# any order of faults

EVENTS = st.lists(st.sampled_from(["lost", "taken and lost", "late", "away", "taken, no id", "two lines"]), max_size=5)


class Controller:
    """A Slurm in which one thing after the other goes wrong."""

    def __init__(self, events: list[str]) -> None:
        self.events, self.jobs, self.late, self.away, self.next = list(events), [], 0, 0, 100  # type: ignore[var-annotated]

    def take(self) -> int:
        self.next += 1
        self.jobs.append(self.next)
        return self.next

    def run(self, command: tuple[str, ...], **_: object) -> Answer:
        assert command[0] == "sbatch"
        event = self.events.pop(0) if self.events else "works"
        while self.late:
            self.late -= 1
            self.take()
        lost = Answer(1, err="sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
        if event in ("lost", "away", "late"):
            self.away += event == "away"
            self.late += event == "late"
            return lost
        number = self.take()
        if event == "works":
            return Answer(0, f"{number}\n")
        return {"taken, no id": Answer(0, "ok\n"), "two lines": Answer(0, f"{number}\n7\n")}.get(event, lost)

    def ask(self, command: str, *words: str, **_: object) -> Answer:
        if command == "squeue":
            if self.away:
                self.away -= 1
                return Answer(1, err="squeue: error: Unable to contact slurm controller")
            return Answer(0, "".join(f"{number}|PENDING|/x/job.sh tok\n" for number in self.jobs))
        return Answer(1)


@given(EVENTS)
def test_one_job_whatever_happens(events: list[str]) -> None:
    for controller in patched(events):
        job = sbatch(Path("/x/job.sh"), token="tok")
        assert [str(job)] == [str(number) for number in controller.jobs]


def patched(events: list[str]) -> Iterator[Controller]:
    with pytest.MonkeyPatch.context() as patch:
        controller = Controller(events)
        patch.setattr(module, "run", controller.run)
        patch.setattr(module, "ask", controller.ask)
        patch.setattr(module, "cancel_job", lambda key: controller.jobs.remove(int(key)))
        patch.setattr(module.time, "sleep", lambda _: None)
        yield controller


def test_the_components_of_a_heterogeneous_job_are_no_twins(slurm: Path, script: Path) -> None:
    """As squeue of 22.05 lists them: one line each, with the script of the first."""
    parts = f"printf '41+0|RUNNING|%s\\n41+1|RUNNING|%s\\n' 'x tok' 'x tok' > {slurm}/jobs"
    failing(slurm, LOST, f"{parts}; echo 41")
    assert sbatch(script, token="tok") == JobId("41")
    assert calls(slurm, "scancel") == [], "cancelling the second would end the first"
