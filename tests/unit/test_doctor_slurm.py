"""What hpcjet doctor says of a Slurm, from real answers of several sites; and of a job that never looked at a node."""

from pathlib import Path

import pytest
from slurm_stubs import on_path, stub

from hpcjet.cluster.state import Phase, RunState
from hpcjet.config.cluster import SlurmConfig
from hpcjet.doctor import accounting, controller, job, mpi, partitions, run_root, slurm_commands
from hpcjet.doctor.line import Level, Line

CONFIG = """\
Configuration data as of 2026-01-12T10:11:12
AccountingStorageEnforce = associations,limits,qos,safe
AccountingStorageType   = accounting_storage/slurmdbd
JobAcctGatherType       = jobacct_gather/cgroup
JobRequeue              = 1
KillWait                = 30 sec
MaxArraySize            = 1001
MpiDefault              = pmix
PreemptMode             = REQUEUE
PreemptType             = preempt/qos
ProctrackType           = proctrack/cgroup
SLURM_VERSION           = 23.11.10
TmpFS                   = /tmp
Slurmctld(primary) at ctl1 is UP
"""


def levels(lines: list[Line]) -> dict[str, str]:
    return {line.subject: line.level.value for line in lines}


def of(lines: list[Line], subject: str) -> Line:
    (line,) = (each for each in lines if each.subject == subject)
    return line


def config(**changes: str) -> list[Line]:
    settings = {**controller.read_settings(CONFIG), **changes}
    return controller.assess({"complaint": "", "settings": settings})


def test_a_good_slurm() -> None:
    lines = config()
    assert set(levels(lines).values()) == {"ok"}
    assert of(lines, "Slurm").text == "version 23.11.10"
    assert "after 30 sec" in of(lines, "job end").text and of(lines, "job arrays").text == "up to 1000 elements"


@pytest.mark.parametrize(
    ("changes", "subject", "level", "text"),
    [
        ({"SLURM_VERSION": "19.05.5"}, "Slurm", "fail", "version 19.05.5 is too old"),
        ({"SLURM_VERSION": "24.05.8-1"}, "Slurm", "ok", "version 24.05.8-1"),
        ({"SLURM_VERSION": ""}, "Slurm", "warn", "does not tell"),
        ({"PreemptMode": "CANCEL"}, "preemption", "warn", "cancelled, not queued again"),
        ({"PreemptMode": "GANG,SUSPEND"}, "preemption", "warn", "stands still"),
        ({"PreemptMode": "OFF"}, "preemption", "ok", "off"),
        ({"PreemptType": "preempt/none"}, "preemption", "ok", "off"),
        ({"JobRequeue": "0"}, "requeue", "ok", "hpcjet asks for it"),
        ({"ProctrackType": "proctrack/linuxproc"}, "job end", "warn", "linuxproc"),
        ({"MaxArraySize": "0"}, "job arrays", "warn", "off"),
    ],
)
def test_settings(changes: dict[str, str], subject: str, level: str, text: str) -> None:
    line = of(config(**changes), subject)
    assert line.level.value == level and text in line.text and bool(line.do) == (level != "ok")


def test_a_controller_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = on_path(tmp_path / "bin", monkeypatch)
    error = "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)\n"
    stub(folder, "scontrol", error=error, code=1)
    (line,) = controller.assess(controller.look())
    assert line.level is Level.fail and "Unable to contact slurm controller" in line.text
    stub(folder, "scontrol", says=CONFIG)
    assert controller.look()["settings"]["SLURM_VERSION"] == "23.11.10"


def test_accounting_that_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = on_path(tmp_path / "bin", monkeypatch)
    stub(folder, "sacct", error="Slurm accounting storage is disabled\n", code=1)
    stub(folder, "sacctmgr", error="You are not running a supported accounting_storage plugin\n", code=1)
    facts = accounting.look({"AccountingStorageType": "accounting_storage/slurmdbd"})
    for found in (facts, {**facts, "kind": "accounting_storage/none", "complaint": ""}):
        (line,) = accounting.assess(found, account=None)
        assert line.level is Level.warn and line.text.startswith("off") and "squeue" in line.do
    stub(folder, "sacct", error="sacct: error: Problem talking to the database: Connection refused\n", code=1)
    (line,) = accounting.assess(accounting.look({"AccountingStorageType": "accounting_storage/slurmdbd"}), account=None)
    assert line.level is Level.warn and "Problem talking to the database" in line.text and "slurmdbd" in line.do


def test_who_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = on_path(tmp_path / "bin", monkeypatch)
    stub(folder, "sacct")
    stub(folder, "sacctmgr", says="abc123\nabc123\ndef456\n")
    facts = accounting.look({"AccountingStorageType": "x/slurmdbd", "AccountingStorageEnforce": "associations"})
    lines = accounting.assess(facts, account=None)
    assert set(levels(lines).values()) == {"ok"} and "among abc123, def456" in of(lines, "account").text
    wrong = of(accounting.assess(facts, account="xyz"), "account")
    assert wrong.level is Level.warn and "choose one of abc123, def456" in wrong.do


PARTITIONS = """\
PartitionName=debug AllowGroups=ALL Default=YES DefaultTime=NONE MaxNodes=4 MaxTime=00:30:00 State=UP TotalNodes=1200
PartitionName=batch Default=NO DefaultTime=01:00:00 MaxNodes=UNLIMITED MaxTime=2-00:00:00 State=UP TotalNodes=1200
PartitionName=old Default=NO DefaultTime=NONE MaxNodes=UNLIMITED MaxTime=UNLIMITED State=DOWN TotalNodes=0
"""


def partition_lines(*, time_given: bool = False, answer: str = PARTITIONS, name: str | None = None) -> list[Line]:
    facts = {"complaint": "", "partitions": partitions.read_partitions(answer)}
    return partitions.assess(facts, SlurmConfig(partition=name), time_given=time_given)


def test_partitions() -> None:
    lines = partition_lines()
    assert levels(lines) == {"partition": "ok", "job size": "ok", "time limit": "warn", "others": "ok"}
    assert of(lines, "partition").text == "debug: 1200 nodes, time limit 00:30:00"
    assert "without cluster.time_min" in of(lines, "time limit").text
    assert "time limit" not in levels(partition_lines(time_given=True))
    assert of(partition_lines(name="batch"), "time limit").text.startswith("01:00:00 by default in batch")
    down = of(partition_lines(name="old"), "partition")
    assert down.level is Level.warn and "old is DOWN" in down.text
    both = partition_lines(name="debug,batch")
    assert [line.text.split(":")[0] for line in both if line.subject == "partition"] == ["debug", "batch"]
    none = of(partition_lines(answer=PARTITIONS.replace("Default=YES", "Default=NO")), "partition")
    assert none.level is Level.warn and "cluster.partition=debug|batch|old" in none.do
    assert of(partition_lines(answer=""), "partition").level is Level.warn


@pytest.mark.parametrize(
    ("types", "level"),
    [(["none", "pmix", "pmi2"], "ok"), (["none", "cray_shasta"], "ok"), (["none", "openmpi"], "warn"), (None, "warn")],
)
def test_mpi(types: list[str] | None, level: str) -> None:
    (line,) = mpi.assess({"types": types, "default": "pmix"})
    assert line.level.value == level


def test_commands_that_are_missing() -> None:
    there = dict.fromkeys((*slurm_commands.NEEDED, *slurm_commands.USED), True)
    assert levels(slurm_commands.assess({"there": there})) == {"commands": "ok"}
    (line,) = slurm_commands.assess({"there": {**there, "sacct": False}})
    assert line.level is Level.warn and "sacct" in line.text
    (line,) = slurm_commands.assess({"there": {**there, "sbatch": False}})
    assert line.level is Level.fail and "no sbatch" in line.text and "module load" in line.do


def test_the_folder_of_runs(tmp_path: Path) -> None:
    assert run_root.look(tmp_path / "runs")["trouble"] == ""
    full = {"root": "/home/me/runs", "trouble": "Disk quota exceeded"}
    (line,) = run_root.assess(full)
    assert line.level is Level.fail and "Disk quota exceeded" in line.text and "run.root" in line.do
    (line,) = run_root.assess({"root": "/home/me/runs", "trouble": "", "free": 2**30, "files": None})
    assert line.level is Level.warn and "1.0 GiB free" in line.shown
    (tmp_path / "file").touch()
    assert "Not a directory" in run_root.look(tmp_path / "file" / "runs")["trouble"]


@pytest.mark.parametrize(
    ("reason", "do"),
    [
        ("Priority", "--wait"),
        ("Resources", "--wait"),
        ("", "--wait"),
        ("AssocGrpCPUMinutesLimit", "ask for less"),
        ("QOSMaxNodePerUserLimit", "ask for less"),
        ("PartitionTimeLimit", "ask for less"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-4]", "down or reserved"),
        ("JobArrayTaskLimit", "ask for less"),
        ("Licenses", "the site's documentation"),
    ],
)
def test_a_job_that_stays_in_the_queue(reason: str, do: str) -> None:
    line = job.still_queued(reason, 600)
    assert line.level is Level.fail and "after 600 s" in line.text and do in line.do
    assert (reason or "no reason told") in line.text


def test_a_job_that_is_refused_or_ends_early() -> None:
    reason = "Slurm refused the job: sbatch: error: Invalid account or account/partition (script: /r/job.sbatch; try x)"
    line = job.refused(reason)
    assert line.text == f"not submitted: {reason.partition(' (script')[0]}" and "cluster.account" in line.do
    state = RunState(Phase.failed, exit_code=3, reason="no free block of ports\nlog:\n...")
    line = job.ended(state, 3, "", run="/r")
    assert line.text.endswith("before a node told anything: no free block of ports") and line.do == "hpcjet logs /r"
    assert "see above" in job.ended(None, 3, "", run="/r").text
