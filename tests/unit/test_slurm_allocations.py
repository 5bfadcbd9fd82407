"""Worker allocations: their scripts, records, states and end, with stand-ins for Slurm's commands.

Golden scripts: HPCJET_ACCEPT=1 pytest tests/unit/test_slurm_allocations.py accepts.
"""

import json
import os
import stat
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from slurm_stubs import argv, brisk, calls, noted, on_path, stub

from hpcjet import cli, launch, start
from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.compose import compose
from hpcjet.config.root import LaunchConfig
from hpcjet.console.logs import log_files
from hpcjet.errors import ConfigError, SubmitError
from hpcjet.plan import Plan, make_plan
from hpcjet.rundir import RunDir
from hpcjet.slurm import allocations as module
from hpcjet.slurm.allocations import (
    Allocation,
    allocation_states,
    allocations,
    cancel_allocations,
    living,
    record_file,
    script_file,
    submit_allocation,
    submit_initial,
)
from hpcjet.slurm.counts import Counts
from hpcjet.slurm.script import render_worker
from hpcjet.slurm.states import Stage
from hpcjet.slurm.submission import Submission

GROUPS = (
    "+cluster.groups={head: {time_min: 600}, cpu: {nodes: 3, max: 8, nodes_per_job: 2, partition: 'spot,night', "
    "time_min: 30, cpus_per_node: 4, gpus_per_node: 0, exclusive: false, sbatch: {reservation: maint}}, "
    "big: {nodes: 1}}"
)
WORDS = ["+exp=noop", "cluster=slurm", "cluster.form=jobs", GROUPS, "cluster.gres=gpu:2", "cluster.exclusive=true",
         "cluster.account=abc", "cluster.setup=['module load x']", "cluster.job_name=mine"]  # fmt: skip


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    brisk(monkeypatch)
    folder = on_path(tmp_path / "slurm", monkeypatch)
    stub(folder, "squeue", first=noted(folder, "squeue"))
    stub(folder, "sacct", first=noted(folder, "sacct"))
    stub(folder, "scancel", first=noted(folder, "scancel"))
    number = f"{folder}/number"
    stub(folder, "sbatch", first=f"{noted(folder, 'sbatch')}\necho x >> {number}; echo $((100 + $(wc -l < {number})))")
    return folder


def planned(run: Path) -> tuple[Plan, LaunchConfig]:
    run.mkdir(exist_ok=True)
    config = compose(WORDS)
    return make_plan(config, run_dir=RunDir(run), python="/opt/venv/bin/python"), config


def queue(slurm: Path, rows: dict[str, str], *, command: str = "x") -> None:
    """What squeue says from now on, to both questions."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    by_state = "".join(f"{job}|{state}|{now}|{now}|{now}||None\n" for job, state in rows.items())
    by_token = "".join(f"{job}|{state}|{command}\n" for job, state in rows.items())
    script = f"{noted(slurm, 'squeue')}\ncase \"$*\" in *%o*) printf '{by_token}';; *) printf '{by_state}';; esac"
    stub(slurm, "squeue", first=script)


def test_the_script_of_a_worker_allocation_is_the_golden_one() -> None:
    config = compose(WORDS)
    plan = make_plan(config, run_dir=RunDir(Path("/shared/runs/noop/20260102-030405-abcdef")), python="/opt/bin/python")
    assert isinstance(config.cluster, SlurmConfig)
    script = render_worker(plan, config.cluster, "cpu", 2)
    golden = Path(__file__).parent / "golden" / "worker.sbatch"
    if os.environ.get("HPCJET_ACCEPT"):
        golden.write_text(script)
    assert script == golden.read_text()
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_each_submission_has_a_number_a_token_and_files_for_its_owner_only(slurm: Path, tmp_path: Path) -> None:
    plan, config = planned(tmp_path / "run")
    first = submit_allocation(plan, config, "cpu", 2)
    second = submit_allocation(plan, config, "cpu", 1)
    assert (first.name, first.job_id, first.nodes) == ("cpu-1", "101", 2)
    assert (second.name, second.job_id, second.nodes) == ("cpu-2", "102", 1)
    assert first.token != second.token and first.uid == os.getuid()
    assert allocations(plan.run) == [first, second]
    assert argv(slurm, "sbatch") == ["--parsable", str(script_file(plan.run, "cpu-2")), second.token]
    for file in (record_file(plan.run, "cpu-1"), script_file(plan.run, "cpu-1")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(plan.run.allocations.stat().st_mode) == 0o700
    assert sorted(path.name for path in plan.run.allocations.iterdir()) == [
        "cpu-1.json", "cpu-1.sbatch", "cpu-2.json", "cpu-2.sbatch",
    ]  # fmt: skip


def test_many_at_once_never_share_a_number(slurm: Path, tmp_path: Path) -> None:
    """The launch, the keeper on the head and `hpcjet scale` on a login node may all submit."""
    plan, _ = planned(tmp_path / "run")
    plan.run.plan.write_text(plan.to_json())
    program = (
        "import sys; from pathlib import Path; from hpcjet.plan import read_plan\n"
        "from hpcjet.slurm import allocations\n"
        "plan = read_plan(Path(sys.argv[1]).read_text())\n"
        "for _ in range(5): allocations._recorded(plan.run, 'cpu', 1)"
    )
    command = [sys.executable, "-c", program, str(plan.run.plan)]
    started = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(timeout=300) for process in started] == [0] * 4
    assert sorted(int(each.name[4:]) for each in allocations(plan.run)) == list(range(1, 21))


def test_a_request_that_slurm_refuses_leaves_no_record(slurm: Path, tmp_path: Path) -> None:
    plan, config = planned(tmp_path / "run")
    stub(slurm, "sbatch", error="sbatch: error: invalid partition specified: spot\n", code=1)
    with pytest.raises(ConfigError, match="invalid partition"):
        submit_allocation(plan, config, "cpu", 1)
    assert allocations(plan.run) == []
    with pytest.raises(ConfigError, match="the run's groups are head, cpu, big"):
        submit_allocation(plan, config, "gpu", 1)


def test_where_the_answer_is_lost_the_record_stays_and_its_token_finds_the_job(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, config = planned(tmp_path / "run")
    stub(slurm, "sbatch", error="sbatch: error: some new words\n", code=1)
    with pytest.raises(SubmitError):
        submit_allocation(plan, config, "cpu", 1)
    [left] = allocations(plan.run)
    assert left.job_id == "" and left.key == ""
    assert allocation_states(plan.run)["cpu-1"].stage is Stage.pending, "it may be under way"
    monkeypatch.setattr(module, "UNSETTLED_S", -1.0)
    queue(slurm, {"4711": "RUNNING"}, command=f"script {left.token}")
    assert allocation_states(plan.run)["cpu-1"].stage is Stage.running
    assert [each.job_id for each in allocations(plan.run)] == ["4711"]


def test_one_that_slurm_never_had_has_ended(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, config = planned(tmp_path / "run")
    stub(slurm, "sbatch", error="sbatch: error: some new words\n", code=1)
    with pytest.raises(SubmitError):
        submit_allocation(plan, config, "cpu", 1)
    monkeypatch.setattr(module, "UNSETTLED_S", -1.0)
    assert allocation_states(plan.run)["cpu-1"].stage is Stage.ended
    assert living(plan.run) == []


def test_states_come_in_one_question_and_what_ended_is_not_asked_again(slurm: Path, tmp_path: Path) -> None:
    plan, config = planned(tmp_path / "run")
    for _ in range(3):
        submit_allocation(plan, config, "cpu", 1)
    queue(slurm, {"101": "RUNNING", "102": "PENDING", "103": "COMPLETED"})
    stub(slurm, "sacct", says="103|COMPLETED|0:0|2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-01T00:00:00|n1\n")
    (slurm / "squeue.calls").unlink(missing_ok=True)
    states = allocation_states(plan.run)
    assert {name: state.stage for name, state in states.items()} == {
        "cpu-1": Stage.running, "cpu-2": Stage.pending, "cpu-3": Stage.ended,
    }  # fmt: skip
    assert len(calls(slurm, "squeue")) <= 2, "one question, and one that confirms the end"
    assert [each.ended for each in allocations(plan.run)] == ["", "", "COMPLETED"]
    (slurm / "squeue.calls").unlink()
    assert [each.name for each, _ in living(plan.run)] == ["cpu-1", "cpu-2"]
    assert len(calls(slurm, "squeue")) == 1


def test_only_its_owner_writes_a_record(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """root may look at a user's run; a record that root had written could not be read by the user."""
    plan, config = planned(tmp_path / "run")
    submit_allocation(plan, config, "cpu", 1)
    queue(slurm, {"101": "COMPLETED"})
    monkeypatch.setattr("hpcjet.slurm.allocations.os.getuid", lambda: 54321)
    assert allocation_states(plan.run)["cpu-1"].stage is Stage.ended
    assert [each.ended for each in allocations(plan.run)] == [""]


def test_cancel_ends_all_that_live_or_only_what_waits(slurm: Path, tmp_path: Path) -> None:
    plan, config = planned(tmp_path / "run")
    submit_allocation(plan, config, "cpu", 1)
    submit_allocation(plan, config, "big", 1)
    queue(slurm, {"101": "RUNNING", "102": "PENDING"})
    assert [each.name for each in cancel_allocations(plan.run, queued_only=True)] == ["big-1"]
    assert argv(slurm, "scancel") == ["--state=PENDING", "102"], "one that starts meanwhile is left alone"
    assert [each.name for each in cancel_allocations(plan.run)] == ["cpu-1", "big-1"]
    assert argv(slurm, "scancel") == ["101", "102"]
    stub(slurm, "scancel", error="scancel: error: Access/permission denied", code=1)
    with pytest.raises(SubmitError, match="permission denied"):
        cancel_allocations(plan.run)


def test_a_run_without_worker_allocations_asks_nobody(slurm: Path, tmp_path: Path) -> None:
    plan, config = planned(tmp_path / "run")
    assert cancel_allocations(plan.run) == [] and living(plan.run) == []
    assert submit_initial(replace(plan, form="het"), config) == []
    assert not calls(slurm, "squeue") and not calls(slurm, "scancel") and not calls(slurm, "sbatch")


def test_a_launch_submits_what_is_missing_in_jobs_of_the_wanted_size(slurm: Path, tmp_path: Path) -> None:
    plan, config = planned(tmp_path / "run")
    assert submit_initial(plan, config) == []
    assert [(each.group, each.nodes) for each in allocations(plan.run)] == [("cpu", 2), ("cpu", 1), ("big", 1)]
    queue(slurm, {"101": "RUNNING", "103": "PENDING"})
    stub(slurm, "sacct", says="102|CANCELLED|0:0|2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-01T00:00:00|n1\n")
    for record in plan.run.allocations.glob("cpu-2.json"):
        record.write_text(json.dumps({**json.loads(record.read_text()), "submitted": 0.0}))
    assert submit_initial(plan, config) == []
    assert [(each.name, each.job_id) for each in allocations(plan.run) if each.job_id == "104"] == [("cpu-3", "104")]


def test_a_group_that_slurm_refuses_does_not_stop_the_others(slurm: Path, tmp_path: Path) -> None:
    plan, config = planned(tmp_path / "run")
    refuses = (
        "grep -q partition=spot \"$2\" && { echo 'sbatch: error: invalid partition specified: spot' >&2; exit 1; }"
    )
    stub(slurm, "sbatch", first=f"{refuses}\necho 7")
    [fault] = submit_initial(plan, config)
    assert fault.startswith("3 nodes of group cpu are not asked for yet: Slurm refused the job")
    assert [each.group for each in allocations(plan.run)] == ["big"]


# what people see


def submitted(tmp_path: Path, slurm: Path) -> tuple[Plan, LaunchConfig]:
    """A run whose head is job 100, with three worker allocations."""
    plan, config = planned(tmp_path / "run")
    plan.run.plan.write_text(plan.to_json())
    head = Submission("slurm", "100", token="head", submitted=time.time(), uid=os.getuid())
    plan.run.submission.write_text(json.dumps(asdict(head)))
    submit_initial(plan, config)
    queue(slurm, {"100": "RUNNING", "101": "RUNNING", "102": "PENDING", "103": "COMPLETED"})
    stub(slurm, "sacct", says="103|COMPLETED|0:0|2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-01T00:00:00|n1\n")
    return plan, config


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_status_lists_the_worker_allocations(slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, _ = submitted(tmp_path, slurm)
    text = told(capsys, "status", str(plan.run))
    assert "worker allocations: 1 running, 1 queued, 1 ended\n" in text
    assert "  cpu-1: 2 nodes, Slurm job 101, running\n  cpu-2: 1 node, Slurm job 102, queued\n" in text
    facts = json.loads(told(capsys, "status", str(plan.run), "--json"))
    assert [(each["name"], each["job_id"], each["stage"]) for each in facts["allocations"]] == [
        ("cpu-1", "101", "running"), ("cpu-2", "102", "pending"), ("big-1", "103", "ended"),
    ]  # fmt: skip
    assert "token" not in facts["allocations"][0]


def test_cancel_ends_the_head_first_and_then_the_worker_allocations(
    slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, _ = submitted(tmp_path, slurm)
    assert "cancelled, with 2 worker allocations; go on with" in told(capsys, "cancel", str(plan.run))
    assert calls(slurm, "scancel") == [["100"], ["101", "102"]]


def test_worker_allocations_are_ended_where_the_head_is_gone_already(
    slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, _ = submitted(tmp_path, slurm)
    gone = "[ $1 = 100 ] && { echo 'scancel: error: Invalid job id 100' >&2; exit 1; }"
    stub(slurm, "scancel", first=f"{noted(slurm, 'scancel')}\n{gone}")
    assert "with 2 worker allocations" in told(capsys, "cancel", str(plan.run))
    assert calls(slurm, "scancel") == [["100"], ["101", "102"]]


def test_an_allocation_that_is_submitted_while_its_run_is_cancelled_ends_too(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _ = submitted(tmp_path, slurm)
    under_way = module._recorded(plan.run, "cpu", 1)

    def arrives(run: RunDir, **_: object) -> list[Allocation]:
        monkeypatch.undo()
        monkeypatch.setenv("PATH", f"{slurm}:{os.environ['PATH']}")
        module._keep(run, replace(under_way, job_id="104"))
        queue(slurm, {"100": "CANCELLED", "101": "COMPLETING", "102": "CANCELLED", "104": "PENDING"})
        return []

    monkeypatch.setattr(start, "cancel_allocations", arrives)
    head = start.read_submission(plan.run)
    assert head is not None
    assert "cpu-3" in [each.name for each in start.cancel_run(plan.run, head)]
    assert "104" in argv(slurm, "scancel")


def test_logs_can_be_those_of_a_group(slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, _ = submitted(tmp_path, slurm)
    for job, node in (("100", "n1"), ("101", "n2"), ("103", "n3")):
        log = plan.run.node_log(job, node=node)
        log.parent.mkdir(parents=True)
        log.write_text(f"log of {node}\n")
    plan.run.submit_folder.mkdir()
    (plan.run.submit_folder / "101_0_log.out").write_text("output of 101\n")
    text = told(capsys, "logs", str(plan.run))
    assert text.count("(cpu-1, ") == 2 and text.count("(big-1, ") == 1 and "log of n1" in text
    text = told(capsys, "logs", str(plan.run), "--group", "cpu")
    assert "log of n2" in text and "output of 101" in text and "log of n1" not in text and "log of n3" not in text
    with pytest.raises(ConfigError, match="--group gpu: it has no worker allocations; those that have: big, cpu"):
        log_files(plan.run, group="gpu")


def test_the_list_of_runs_counts_worker_allocations_by_the_same_question(
    slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "noop" / "20260102-030405-abcdef"
    run.parent.mkdir(parents=True)
    plan, config = planned(run)
    submit_initial(plan, config)
    plan.run.submission.write_text(json.dumps(asdict(Submission("slurm", "100", submitted=time.time()))))
    queue(slurm, {"100": "RUNNING", "101": "RUNNING", "102": "PENDING", "103": "PENDING"})
    (slurm / "squeue.calls").unlink(missing_ok=True)
    assert "\t100 +3\t" in told(capsys, "runs", "--root", str(tmp_path / "runs"))
    assert len(calls(slurm, "squeue")) == 1


def test_someone_who_watches_asks_now_and_then(slurm: Path, tmp_path: Path) -> None:
    plan, _ = submitted(tmp_path, slurm)
    (slurm / "squeue.calls").unlink(missing_ok=True)
    watched = Counts(plan.run)
    assert {watched.text() for _ in range(5)} == {"worker allocations: 1 running, 1 queued"}
    assert len(calls(slurm, "squeue")) <= 2


def launched(tmp_path: Path, *words: str) -> RunDir:
    with pytest.raises(SystemExit) as ended:
        launch.main([*WORDS, f"run.root={tmp_path}/runs", "follow=false", *words])
    assert ended.value.code == 0
    [run] = (tmp_path / "runs").glob("*/*")
    return RunDir(run)


def scripts_given(slurm: Path) -> list[str]:
    """The names of all scripts that were submitted."""
    return [Path(call[1]).name for call in calls(slurm, "sbatch") if call[0] == "--parsable"]


def test_a_launch_submits_the_head_and_then_its_groups_and_a_resume_what_is_missing(
    slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("scontrol", "sinfo", "sacctmgr"):
        stub(slurm, name, code=1)
    run = launched(tmp_path)
    assert scripts_given(slurm) == ["job.sbatch", "cpu-1.sbatch", "cpu-2.sbatch", "big-1.sbatch"]
    head = start.read_submission(run)
    said = capsys.readouterr().out
    assert head is not None and f"Slurm job {head.job_id}\n" in said
    assert "worker allocations: 3 submitted, of groups cpu and big\n" in said
    job = {each.name: each.job_id for each in allocations(run)}
    queue(
        slurm, {head.job_id: "CANCELLED", job["cpu-1"]: "RUNNING", job["cpu-2"]: "CANCELLED", job["big-1"]: "PENDING"}
    )
    old = "2026-01-01T00:00:00"
    ended = (head.job_id, job["cpu-2"])
    stub(slurm, "sacct", says="".join(f"{each}|CANCELLED|0:0|{old}|{old}|{old}|n1\n" for each in ended))
    told(capsys, "resume", str(run), "--no-follow")
    assert scripts_given(slurm)[4:] == ["job.sbatch", "cpu-3.sbatch"], "what still lives waits for the new head"


def test_a_launch_says_which_nodes_it_could_not_ask_for_and_goes_on(
    slurm: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("scontrol", "sinfo", "sacctmgr"):
        stub(slurm, name, code=1)
    refuses = (
        "grep -q reservation=maint \"$2\" && { echo 'sbatch: error: Requested reservation is invalid' >&2; exit 1; }"
    )
    stub(slurm, "sbatch", first=f"{noted(slurm, 'sbatch')}\n{refuses}\necho 7")
    launched(tmp_path)
    assert "3 nodes of group cpu are not asked for yet: Slurm refused the job" in caplog.text
    assert "the run tries again once it has begun" in caplog.text
