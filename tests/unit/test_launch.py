"""Launch, dry run, follow and the hpcjet command, without Slurm; one prepared run is really started by its template."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from slurm_stubs import argv, on_path, stub

from hpcjet import __version__, cli, follow, launch
from hpcjet.cluster.state import Phase, RunState, read_state, write_state
from hpcjet.config.compose import choices
from hpcjet.follow import progress_text, status_text
from hpcjet.paths import templates_dir
from hpcjet.rundir import RunDir
from hpcjet.slurm.query import JobState, Stage
from hpcjet.slurm.submission import Submission, submission_state

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCJET_CLUSTER", raising=False)
    monkeypatch.chdir(tmp_path)


def launched(*words: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        launch.main(words)
    assert ended.value.code == code


def hpcjet(*words: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == code


# help, version, config, dry run


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], ["+exp=swe", "--help"]])
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    launched(*words)
    page = capsys.readouterr().out
    assert page.startswith("Turn a config into a running job")
    assert "  cluster  " in page and "slurm" in page
    assert f" exp {', '.join(choices('exp'))} " in " ".join(page.split())
    assert "dry_run=false     Print the script" in page and "submit=true" in page
    assert all(len(line) <= 82 for line in page.splitlines())


@pytest.mark.parametrize("words", [["--help", "cluster"], ["+exp=noop", "--help", "cluster"]])
def test_help_of_a_group(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    launched(*words)
    assert capsys.readouterr().out.startswith("cluster=local\n")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    launched("--version")
    assert capsys.readouterr().out == f"hpcjet {__version__}\n"


def test_a_reader_that_has_seen_enough() -> None:
    command = f"{sys.executable} -m hpcjet.launch --help | true; echo ${{PIPESTATUS[0]}}"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_the_resolved_config_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    launched("+exp=swe", "--cfg", "exp.attempts=4")
    data = yaml.safe_load(capsys.readouterr().out)
    assert data["exp"]["attempts"] == 4 and data["exp"]["limit"] == 8 and data["engine"]["mode"] == "solve"


def test_a_dry_run_shows_plan_cost_script_and_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_path(tmp_path / "empty", monkeypatch, alone=True)  # it needs no Slurm
    words = ["+exp=noop", "cluster=slurm", "cluster.nodes=4", "cluster.gpus_per_node=8", "cluster.time_min=90"]
    launched(*words, "cluster.job_name=a b", "dry_run=true")
    page = capsys.readouterr().out
    assert page.startswith("node plan (time limit 90 min; starts with 4 of 4)\n  group  nodes  CPUs")
    assert "  main   4      default  8     site's default  head and workers\n" in page
    assert "6 node-hours, CPU-hours: the site's default decides, 48 GPU-hours" in page
    assert "  #SBATCH --gpus-per-node=8\n" in page and "  #SBATCH --job-name='a b'\n" in page
    assert page.endswith(f"next\n  python -m hpcjet.launch {' '.join(words)} 'cluster.job_name=a b'\n")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"], "nothing is made"


def test_a_dry_run_shows_the_nodes_the_cost_and_the_script_of_each_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_path(tmp_path / "empty", monkeypatch, alone=True)
    cpu = "cluster.groups.cpu={nodes: 2, max: 8, partition: 'spot,night', time_min: 60, cpus_per_node: 64}"
    words = ["+exp=noop", "cluster=slurm", "cluster.form=jobs", "cluster.time_min=600", "cluster.groups.head={}", cpu]
    launched(*words, "dry_run=true")
    page = capsys.readouterr().out
    assert page.startswith("node plan (time limit 600 min; starts with 1 of 3)\n")
    assert "  head   1      default  default  site's default  head\n" in page
    assert "  cpu    2      64       default  site's default  0 to 8 nodes, in jobs of 1, 60 min each\n" in page
    assert "group cpu: for each job Slurm chooses one of the partitions spot,night" in page
    assert "  cpu   80 node-hours, 5120 CPU-hours, 0 GPU-hours\n  90 node-hours" in page
    first, second = page.partition("\nscript of each job of group cpu\n")[::2]
    assert "--time=600" in first and "--requeue" in first and "--partition" not in first
    assert "--time=60\n" in second and "--no-requeue" in second and "plan.json --worker cpu" in second
    launched(*words[:2], *words[3:5], "cluster.form=het", "cluster.groups.cpu={partition: spot}", "dry_run=true")
    page = capsys.readouterr().out
    assert "  head  10 node-hours" in page and "#SBATCH hetjob" in page and "script of each" not in page


def test_a_dry_run_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    launched("+exp=noop", "dry_run=true", "cluster.memory_gb=2")
    page = capsys.readouterr().out
    assert page.startswith("node plan (this machine; starts with 1 of 1)") and "2 GiB" in page
    assert "nothing is charged on this machine" in page and "submitit.core._submit" in page


# runs that are only prepared, and the templates


def prepared(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[RunDir, str]:
    launched("+exp=noop", "submit=false", *words)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("run ") and second.startswith("start it with: ")
    return RunDir(Path(first.removeprefix("run "))), second.removeprefix("start it with: ")


def test_a_run_that_is_only_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_path(tmp_path / "empty", monkeypatch, alone=True)
    run, command = prepared(capsys, "cluster=slurm", "cluster.nodes=2")
    assert command == f"sbatch --nodes=2 {templates_dir()}/run.sbatch {run}"
    assert run.plan.exists() and run.config.exists() and not run.submission.exists() and not run.state.exists()
    assert run.secret("ray-token").stat().st_mode & 0o077 == 0
    hpcjet("runs")
    assert "\tprepared\t" in capsys.readouterr().out
    hpcjet("status", "latest", code=2)
    assert "was never submitted; hpcjet resume runs/noop/" in capsys.readouterr().err
    assert prepared(capsys)[1].startswith("hpcjet resume ")


TEMPLATES = sorted(templates_dir().glob("*"))


@pytest.mark.parametrize("template", TEMPLATES, ids=[path.name for path in TEMPLATES])
def test_templates_are_short_and_hold_no_logic(template: Path) -> None:
    lines = template.read_text().splitlines()
    words = {word for line in lines if not line.startswith("#") for word in line.replace(";", " ").split()}
    assert template.suffix == ".sbatch" and len(lines) <= 40 and lines[0] == "#!/bin/bash"
    assert not words & {"for", "while", "until", "if", "case", "function", "&", "sleep", "ray"}
    assert "set -euo pipefail" in lines
    subprocess.run(["bash", "-n", str(template)], check=True)
    usage = subprocess.run(["bash", str(template)], capture_output=True, text=True, check=False)
    assert usage.returncode != 0 and f"usage: sbatch {template.name}" in usage.stderr


def from_template(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "subprocess.CompletedProcess[str]":
    """Run the template with a stand-in for srun, which starts the one agent with the variables of a one-node step."""
    folder = on_path(tmp_path / "slurm", monkeypatch)
    (folder / "srun").write_text(
        '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexport SLURM_NODEID=0 SLURM_JOB_NUM_NODES=1 '
        "SLURM_JOB_NODELIST=$(hostname) SLURM_CPUS_ON_NODE=1 SLURM_MEM_PER_NODE=1024\nexec \"$@\"\n"
    )  # fmt: skip
    (folder / "srun").chmod(0o755)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "activate").write_text(f"PATH={Path(sys.executable).parent}:$PATH\n")
    env = {
        **os.environ,
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NUM_NODES": "1",
        "HPCJET_VENV": str(tmp_path / "venv"),
        "PYTHONPATH": str(ROOT),
    }
    command = ["bash", str(templates_dir() / "run.sbatch"), str(run)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_the_template_starts_a_prepared_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = prepared(capsys, "cluster=slurm", "cluster.object_store_gb=0.1")
    done = from_template(run, tmp_path, monkeypatch)
    assert done.returncode == 0, done.stderr
    assert len(json.loads((run.path / "noop.json").read_text())["hosts"]) == 1
    assert json.loads(run.submission.read_text())["job_id"] == "77"
    hpcjet("status", "latest")
    assert capsys.readouterr().out.startswith("done (exit code 0)\n")


def test_too_few_nodes_in_the_template_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = prepared(capsys, "cluster=slurm", "cluster.nodes=2")
    assert from_template(run, tmp_path, monkeypatch).returncode == 3
    state = read_state(run.state)
    assert state and "the allocation has 1 nodes and the run needs 2: submit it with --nodes=2" in state.reason


# follow


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "runs" / "noop" / "20260102-030405-abcdef")
    made.submit_folder.mkdir(parents=True)
    return made


def console() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=200), text


def test_following_ends_with_the_runs_code_and_reason(run: RunDir) -> None:
    write_state(run.state, RunState(Phase.failed, exit_code=3, reason="Ray's head did not start [red]x"))
    where, text = console()
    assert follow.follow(run, Submission("slurm", "12"), where) == 3
    assert text.getvalue() == f"failed: Ray's head did not start [red]x\nlogs: {run.path}/logs\n"


def test_following_shows_queue_and_progress(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [JobState(Stage.pending, "PENDING", "Resources")] * 2 + [JobState(Stage.running)] * 2

    def job(submission: Submission) -> JobState:
        if len(states) == 1:
            write_state(run.state, RunState(Phase.done, exit_code=0))
        return states.pop(0)

    monkeypatch.setattr(follow, "submission_state", job)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    where, text = console()
    assert follow.follow(run, Submission("slurm", "12"), where) == 0
    assert text.getvalue() == "queued (Resources)\nstarting\n"


def test_an_outage_is_waited_out_and_a_vanished_job_is_told(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    write_state(run.state, RunState(Phase.running))
    (run.submit_folder / "12_0_log.out").write_text("slurmstepd: error: oom\n")
    now = iter(range(0, 100_000, 4))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    ended = JobState(Stage.ended, "OUT_OF_MEMORY")
    # It seems to end once, then Slurm does not answer, then it ended: only that counts.
    states = [ended, JobState(Stage.unknown), *[ended] * 9]
    monkeypatch.setattr(follow, "submission_state", lambda submission: states.pop(0))
    where, text = console()
    assert follow.follow(run, Submission("slurm", "12"), where) == 3
    assert "Slurm does not answer; still waiting" in text.getvalue()
    assert "failed: Slurm job 12 ended (OUT_OF_MEMORY) without a word" in text.getvalue()
    assert "slurmstepd: error: oom" in text.getvalue()
    assert len(states) >= 4


def test_ctrl_c_leaves_the_run_going_without_a_terminal(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(submission: Submission) -> JobState:
        raise KeyboardInterrupt

    monkeypatch.setattr(follow, "submission_state", interrupt)
    where, text = console()
    assert follow.follow(run, Submission("slurm", "12"), where) == 130
    assert f"The run goes on. Come back with:\n  hpcjet status {run}\n" in text.getvalue()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, "0/10 attempts, 2 at work"),
        (
            {"done": 4, "counts": {"resolved": 3, "test_failed": 1, "empty": 0}},
            "4/10 attempts (3 resolved, 1 test failed), 2 at work, 4.0/min, 1 min 30 s left",
        ),
        ({"done": 4, "done_before": 4}, "4/10 attempts, 2 at work"),
        ({"total": 1000, "done": 4}, "4/1000 attempts, 2 at work, 4.0/min, 4 h 09 min left"),
    ],
    ids=["start", "rate", "resumed", "hours"],
)
def test_progress(more: dict[str, Any], text: str) -> None:
    data = {"kind": "attempts", "total": 10, "done": 0, "in_flight": 2, "counts": {}, "began": 100.0, "done_before": 0}
    assert progress_text({**data, "updated": 160.0, **more}) == text


def test_status_of_a_job_that_is_gone(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "submission_state", lambda submission: JobState(Stage.ended, "TIMEOUT"))
    assert status_text(run, Submission("slurm", "12")) == (
        f"lost: the job ended (TIMEOUT) without a word; see hpcjet logs {run}"
    )


def test_another_process_with_the_controllers_id_is_not_the_run(run: RunDir) -> None:
    assert submission_state(Submission("local", "1", pid=os.getpid())).stage is Stage.ended
    assert submission_state(Submission("local", "1", pid=2**22 - 3)).stage is Stage.ended


# the hpcjet command


def test_commands_without_runs(capsys: pytest.CaptureFixture[str]) -> None:
    hpcjet("runs")
    assert capsys.readouterr().out == ""
    for words in (["status", "latest"], ["logs", "abc"], ["cancel", "latest"], ["resume", "latest"], ["report", "x"]):
        hpcjet(*words, code=2)
        assert capsys.readouterr().err.startswith("hpcjet: ")


def test_cancel_and_logs_of_a_slurm_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = on_path(tmp_path / "slurm", monkeypatch)
    for name in ("srun", "scancel"):
        stub(folder, name)
    stub(folder, "sinfo", says="batch\n")
    stub(folder, "sbatch", says="4711\n")
    launched("+exp=noop", "cluster=slurm", "follow=false")
    shown = capsys.readouterr().out
    assert "Slurm job 4711\n" in shown and "follow it with: hpcjet status" in shown
    hpcjet("logs", "latest")
    assert "no logs yet" in capsys.readouterr().out
    [made] = (tmp_path / "runs" / "noop").iterdir()
    (made / "logs" / "4711-0").mkdir(parents=True)
    (made / "logs" / "4711-0" / "n1.log").write_text("line\n" * 99 + "the end\n")
    hpcjet("logs", "latest", "--lines", "2")
    assert capsys.readouterr().out.endswith(")\nline\nthe end\n\n")
    hpcjet("cancel", "latest")
    assert argv(folder, "scancel") == ["4711"]
    hpcjet("resume", "latest", "--no-follow")
    assert "Slurm job 4711" in capsys.readouterr().out


def test_a_report_without_agents_and_without_slurm_has_nothing_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared(capsys)
    hpcjet("report", "latest")
    assert "nothing to report beyond hpcjet status" in capsys.readouterr().out


def test_a_wrong_word_is_argparses(capsys: pytest.CaptureFixture[str]) -> None:
    hpcjet("statsu", code=2)
    assert "invalid choice: 'statsu'" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT], ids=["SIGINT"])
def test_interrupting_the_command_is_130(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        signal.raise_signal(number)
        return 0

    assert launch.run_command(interrupted) == 130
