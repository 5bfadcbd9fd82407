"""A batch script of one's own: the one srun, the exit code of the head, and what is tidied after agents were killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import slurm_stubs

from hpcjet.cluster import aftermath
from hpcjet.cluster.batch import main, run_agents, srun_command
from hpcjet.cluster.leftovers import OWNER, held
from hpcjet.cluster.rendezvous import exit_file, lost_file
from hpcjet.cluster.state import Phase, RunState, read_state, write_state
from hpcjet.config.compose import compose
from hpcjet.paths import templates_dir
from hpcjet.plan import Plan, make_plan
from hpcjet.rundir import RunDir
from hpcjet.slurm.allocations import allocations

JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "2", "SLURMD_NODENAME": "n1"}


def plan_in(run: Path, *words: str) -> Plan:
    (run / "rendezvous").mkdir(parents=True)
    config = compose(["+exp=noop", "cluster=slurm", *(words if GROUPS[0] in words else ["cluster.nodes=2", *words])])
    return make_plan(config, run_dir=RunDir(run), python=sys.executable)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for stubs, in the environment of a job whose only temp folder is the test's own."""
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(aftermath, "bases", lambda env: [str(tmp_path / "tmp")])
    return slurm_stubs.on_path(tmp_path / "slurm", monkeypatch)


def left_folder(base: Path) -> Path:
    """The temp folder of an agent that was killed."""
    folder = base / "hj-killed"
    folder.mkdir()
    with held(folder):
        (folder / "log").write_text("x")
    return folder


def test_the_srun_of_a_job(tmp_path: Path) -> None:
    plan = plan_in(tmp_path / "run")
    words = srun_command(plan, JOB)
    assert words[:6] == ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--wait=0"]
    assert words[-2:] == ["hpcjet.cluster.node", str(plan.run.plan)] and "--no-kill" not in words
    assert "--cpus-per-task=8" in srun_command(plan, {**JOB, "SLURM_CPUS_PER_TASK": "8"})


def test_a_run_that_goes_on_keeps_its_step(tmp_path: Path) -> None:
    assert "--no-kill" in srun_command(plan_in(tmp_path / "run", "cluster.on_node_loss=continue"), JOB)


def test_the_heads_code_counts_not_srun(slurm: Path, tmp_path: Path) -> None:
    plan = plan_in(tmp_path / "run")
    slurm_stubs.stub(slurm, "srun", first=f"echo 7 > '{exit_file(plan.run, JOB)}'", code=137)
    folder = left_folder(tmp_path / "tmp")
    assert run_agents(plan) == 7
    assert folder.exists(), "nobody was killed: it may be another job's, and is the next agent's to remove"


def test_a_code_of_an_earlier_try_does_not_count(slurm: Path, tmp_path: Path) -> None:
    plan = plan_in(tmp_path / "run")
    exit_file(plan.run, JOB).write_text("0")
    slurm_stubs.stub(slurm, "srun")
    assert run_agents(plan) == 3


def test_a_head_that_was_killed(slurm: Path, tmp_path: Path) -> None:
    plan = plan_in(tmp_path / "run")
    write_state(plan.run.state, RunState(Phase.running, allocation="4711", started=5.0))
    log = plan.run.node_log("4711", restart=0, node="n1")
    log.parent.mkdir(parents=True)
    log.write_text("the last line\n")
    slurm_stubs.stub(slurm, "srun", code=137)
    folder = left_folder(tmp_path / "tmp")
    assert run_agents(plan) == 3
    state = read_state(plan.run.state)
    assert state and (state.phase, state.exit_code, state.allocation, state.started) == (Phase.failed, 3, "4711", 5.0)
    assert state.reason.startswith("the node agent of the head, n1, was killed; ") and "the last line" in state.reason
    assert not folder.exists()


def test_a_head_that_never_came_up(slurm: Path, tmp_path: Path) -> None:
    plan = plan_in(tmp_path / "run")
    write_state(plan.run.state, RunState(Phase.submitted))
    slurm_stubs.stub(slurm, "srun", code=1)
    assert run_agents(plan) == 3
    state = read_state(plan.run.state)
    assert state and "the node agent of the head, n1, did not come up" in state.reason


def test_a_last_word_that_the_head_left_is_kept(slurm: Path, tmp_path: Path) -> None:
    plan = plan_in(tmp_path / "run")
    write_state(plan.run.state, RunState(Phase.failed, allocation="4711", exit_code=3, reason="Ray ended"))
    slurm_stubs.stub(slurm, "srun", code=1)
    assert run_agents(plan) == 3
    state = read_state(plan.run.state)
    assert state and state.reason == "Ray ended"


def test_an_srun_that_waits_for_a_lost_node_is_ended_and_that_node_is_swept(slurm: Path, tmp_path: Path) -> None:
    plan = plan_in(tmp_path / "run")
    lost_file(plan.run, JOB).write_text("n2\n")
    wait = f'case "$*" in *overlap*) ;; *) echo 3 > "{exit_file(plan.run, JOB)}"; exec sleep 900;; esac'
    slurm_stubs.stub(slurm, "srun", first=f"{slurm_stubs.noted(slurm, 'srun')}\n{wait}")
    began = time.monotonic()
    assert run_agents(plan) == 3
    assert time.monotonic() - began < 300
    _, sweep = slurm_stubs.calls(slurm, "srun")
    assert "--overlap" in sweep and "--nodelist=n2" in sweep and sweep[-2:] == ["-m", "hpcjet.cluster.aftermath"]


def test_a_node_that_never_answers_is_not_waited_for(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(aftermath, "SWEEP_S", 0.5)
    plan = plan_in(tmp_path / "run")
    lost_file(plan.run, JOB).write_text("n2\n")
    exit_file(plan.run, JOB).write_text("3")
    slurm_stubs.stub(slurm, "srun", first="exec sleep 900")
    aftermath.aftermath(plan)
    assert "temp folders may be left on n2" in capfd.readouterr().err


def test_only_folders_of_agents_that_are_gone_are_swept(slurm: Path, tmp_path: Path) -> None:
    gone = left_folder(tmp_path / "tmp")
    lives, unmarked = tmp_path / "tmp" / "hj-lives", tmp_path / "tmp" / "hj-unmarked"
    lives.mkdir()
    unmarked.mkdir()
    with held(lives):
        aftermath.sweep_here()
        assert (lives / OWNER).exists()
    assert not gone.exists() and unmarked.exists()


# nodes that are added to a run

GROUPS = ["cluster.form=jobs", "cluster.groups.head={}", "cluster.groups.cpu={nodes: 0, max: 4}", "cluster.nodes=1"]


def added(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, *, srun: int = 0) -> int:
    """What `python -m hpcjet.cluster.batch RUN GROUP` ends with."""
    run = tmp_path / "run"
    if not run.exists():
        plan = plan_in(run, *GROUPS)
        plan.run.plan.write_text(plan.to_json())
    slurm_stubs.stub(slurm, "srun", code=srun)
    monkeypatch.setattr(sys, "argv", ["batch", str(run), group])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_worker_allocation_of_ones_own_starts_workers_and_is_known_to_the_run(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    assert added(slurm, tmp_path, monkeypatch, "cpu", srun=5) == 5
    words = slurm_stubs.argv(slurm, "srun")
    assert words[-2:] == ["--worker", "cpu"] and {"--nodes=2", "--cpus-per-task=8", "--no-kill"} <= set(words)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert added(slurm, tmp_path, monkeypatch, "cpu") == 0
    [known] = allocations(RunDir(tmp_path / "run"))
    assert (known.name, known.nodes, known.job_id, known.uid) == ("cpu-1", 2, "4711", os.getuid())


@pytest.mark.parametrize("group", ["head", "gpu"])
def test_a_group_that_takes_no_nodes_is_told(
    group: str, slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert added(slurm, tmp_path, monkeypatch, group) == 2
    assert f"GROUP={group} is not allowed: the run's groups with jobs of their own are cpu" in capsys.readouterr().err


def test_the_worker_template_is_a_script_that_passes_its_words_on(tmp_path: Path) -> None:
    bin_folder = tmp_path / "venv" / "bin"
    bin_folder.mkdir(parents=True)
    slurm_stubs.stub(bin_folder, "python")
    (bin_folder / "activate").write_text(f'PATH="{bin_folder}:$PATH"\n')
    env = {**os.environ, "HPCJET_VENV": str(tmp_path / "venv")}
    template = templates_dir() / "worker.sbatch"
    subprocess.run(["bash", str(template), "a run", "cpu"], env=env, check=True)
    assert slurm_stubs.argv(bin_folder, "python") == ["-m", "hpcjet.cluster.batch", "a run", "cpu"]
    done = subprocess.run(["bash", str(template), "run"], env=env, check=False, capture_output=True, text=True)
    assert done.returncode and "usage: sbatch worker.sbatch RUN GROUP" in done.stderr
    assert len(template.read_text().splitlines()) <= 40
