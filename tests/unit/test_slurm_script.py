"""The batch script and its submission. Golden scripts: HPCJET_ACCEPT=1 pytest tests/unit/test_slurm_script.py accepts.

The stubbed sbatch keeps the script that it was given and prints recorded answers; what a real one makes of a script
is tested on the lab's Slurm.
"""

import difflib
import os
import shlex
import stat
import subprocess
import time
from pathlib import Path

import pytest
from slurm_stubs import argv, on_path, stub

from hpcjet.cluster.child import session_members
from hpcjet.cluster.node import NodeAgent
from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.compose import compose
from hpcjet.config.root import LaunchConfig
from hpcjet.dryrun import dry_run_text
from hpcjet.errors import ConfigError
from hpcjet.plan import Plan, make_plan
from hpcjet.rundir import RunDir
from hpcjet.slurm.script import finished, render, submitit_command
from hpcjet.slurm.submit import submit

GOLDEN = Path(__file__).parent / "golden"
RUN = Path("/shared/runs/noop/20260102-030405-abcdef")


def request(*words: str, run: Path = RUN, python: str = "/opt/venv/bin/python") -> tuple[Plan, LaunchConfig]:
    config = compose(["+exp=noop", "cluster=slurm", *words])
    return make_plan(config, run_dir=RunDir(run), python=python), config


def script_of(*words: str, run: Path = RUN, python: str = "/opt/venv/bin/python") -> str:
    plan, config = request(*words, run=run, python=python)
    assert isinstance(config.cluster, SlurmConfig)
    folder = plan.run.submit_folder
    return render(plan, config.cluster, folder=folder, command=submitit_command(plan, folder))


EVERYTHING = [
    "cluster.nodes=32", "cluster.min_nodes=30", "cluster.cpus_per_node=64", "cluster.gres='gpu:a100:4'",
    "cluster.mem_gb=1.5", "cluster.time_min=1440", "cluster.partition='gpu,long'", "cluster.account=abc123",
    "cluster.qos=high", "cluster.constraint='ib&a100'", "cluster.nodelist='n[1-32]'", "cluster.exclude=n7",
    "cluster.exclusive=true", "cluster.job_name=\"it's mine\"", "cluster.signal_delay_s=120",
    r'cluster.setup=["module load cuda","export A=None"]', "+cluster.sbatch.reservation=maint",
    "cluster.srun_args=['--mpi=none']",
]  # fmt: skip


GROUPS = [
    "cluster.groups={head: {cpus_per_node: 4}, gpu: {nodes: 2, cpus_per_node: 16, gpus_per_node: 8, partition: gpu, "
    "qos: high}, cpu: {nodes: 3, cpus_per_node: 64, mem_gb: 128, partition: spot, exclusive: true}}",
    "cluster.time_min=60", "cluster.partition=long", "cluster.account=abc",
]  # fmt: skip
HET = [word.replace("head:", "it-is_1:") for word in [*GROUPS, "cluster.form=het", *EVERYTHING[-2:]]]
ALIKE = ["cluster.groups={head: {cpus_per_node: 4}, gpu: {nodes: 2, gpus_per_node: 8, mem_gb: 64}}"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("defaults", []),
        ("heterogeneous", HET),
        ("groups_alike", ALIKE),
        ("head_of_groups", [*GROUPS, "cluster.form=jobs"]),
        ("gpus", ["cluster.nodes=4", "cluster.cpus_per_node=16", "cluster.gpus_per_node=8", "cluster.time_min=60"]),
        ("everything", EVERYTHING),
    ],
    ids=["defaults", "heterogeneous", "groups alike", "head of groups", "gpus", "everything"],
)
def test_the_script_is_the_golden_one(name: str, words: list[str]) -> None:
    file, script = GOLDEN / f"{name}.sbatch", script_of(*words)
    if os.environ.get("HPCJET_ACCEPT"):
        file.write_text(script)
    golden = file.read_text()
    diff = "".join(difflib.unified_diff(golden.splitlines(True), script.splitlines(True), str(file), "rendered"))
    assert not diff, f"\n{diff}\nIf this is meant: HPCJET_ACCEPT=1 python -m pytest {__file__}"


def test_null_is_not_rendered() -> None:
    script = script_of()
    for option in ("time", "mem", "gres", "gpus", "cpus-per-task", "partition", "account", "qos", "wckey", "exclusive"):
        assert f"--{option}" not in script
    assert "None" not in script and "False" not in script


def test_only_option_lines_are_dropped(tmp_path: Path) -> None:
    kept = "#!/bin/bash\n#SBATCH --wckey=x\nexport A=None\n# b=None\n"
    plan, config = request(run=tmp_path)
    assert isinstance(config.cluster, SlurmConfig)
    script = finished(kept + "#SBATCH --open-mode=None\nsrun x\n\n", plan, config.cluster, command="x")
    assert script.startswith(kept + "srun x &\n")


ODD = ["with space", "it's", 'a"b', "$HOME", "a;b&c", "`id`", "a\\b", "#x", "*", "ü"]


def run_script(script: str, folder: Path, python: str) -> list[str]:
    """What a shell makes of the script: the arguments that srun gets, through a stub."""
    srun = folder / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text('#!/bin/bash\nprintf "%s\\0" "$@"\n')
    srun.chmod(0o755)
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    env = {**os.environ, "PATH": f"{srun.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash"], input=script, text=True, env=env, capture_output=True, check=False)
    assert done.returncode == 3, "no node agent of a head left an exit code"
    assert done.stderr.endswith(f": {python}: No such file or directory\n"), "the aftermath is called by the same path"
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("odd", ODD)
def test_odd_paths_reach_srun_as_they_are(odd: str, tmp_path: Path) -> None:
    run, python = Path("/shared") / odd / "run", f"/opt/{odd}/python"
    script = script_of(run=run, python=python)
    words = run_script(script, tmp_path, python)
    assert words[:3] == ["--unbuffered", "--output", f"{run}/submit/%j_%t_log.out"]
    assert words[-5:] == [python, "-u", "-m", "submitit.core._submit", f"{run}/submit"]
    [line] = [line for line in script.splitlines() if line.startswith("#SBATCH --output=")]
    assert shlex.split(line.removeprefix("#SBATCH ")) == [f"--output={run}/submit/%j_0_log.out"]


def test_one_srun_starts_a_node_agent_on_every_component(tmp_path: Path) -> None:
    run, python = Path("/shared/it's a run"), "/opt/a b/python"
    words = run_script(script_of(*HET, "cluster.setup=[]", run=run, python=python), tmp_path, python)
    agent = [python, "-u", "-m", "hpcjet.cluster.node", f"{run}/plan.json"]
    steps = " ".join(words).split(" : ")
    assert len(steps) == 3 and all(step.endswith(" ".join(agent)) for step in steps)
    for number, (step, nodes, cpus) in enumerate(zip(steps, (1, 2, 3), (4, 16, 64), strict=True)):
        assert f"--het-group={number} --nodes {nodes} --ntasks {nodes} --cpus-per-task={cpus}" in step


@pytest.mark.parametrize(("srun", "left", "code"),
                         [("exit 0", "7", 7), ("exit 137", "", 3), ("exec sleep 900", "0", 0)],
                         ids=["ours counts", "a head that was killed", "a node that is lost"])  # fmt: skip
def test_the_job_ends_with_the_code_that_the_head_left(srun: str, left: str, code: int, tmp_path: Path) -> None:
    plan, config = request(run=tmp_path / "it's a run")
    assert isinstance(config.cluster, SlurmConfig)
    folder = tmp_path / "slurm"
    folder.mkdir()
    stub(folder, "srun", first=srun)
    script = render(plan, config.cluster, folder=plan.run.submit_folder, command="x")
    (plan.run.path / "rendezvous").mkdir(parents=True)
    if left:
        (plan.run.path / "rendezvous" / "exit-4711-0").write_text(left)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711"}
    with subprocess.Popen(["bash"], stdin=subprocess.PIPE, text=True, env=env, start_new_session=True) as process:
        process.communicate(script, timeout=300)
    assert process.returncode == code
    deadline = time.monotonic() + 300  # a `sleep 1` may still be at it
    while session_members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not session_members(process.pid), "what watches srun ends with the script"


@pytest.mark.parametrize("value", ["/runs/a\nb", "/runs/a%b"], ids=["line break", "percent sign"])
def test_paths_that_a_script_cannot_hold_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.root='/runs/a.*' is not allowed: a path without"):
        compose(["+exp=noop", f'run.root="{value}"'])


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = on_path(tmp_path / "slurm", monkeypatch)
    stub(folder, "srun")
    return folder


@pytest.mark.parametrize("words", [[], EVERYTHING, HET, ALIKE], ids=["defaults", "everything", "het", "alike"])
def test_what_is_submitted_is_what_the_dry_run_shows(words: list[str], slurm: Path, tmp_path: Path) -> None:
    run = tmp_path / "it's a $run"
    run.mkdir()
    plan, config = request(*words, run=run)
    assert isinstance(config.cluster, SlurmConfig)
    stub(slurm, "sbatch", says="4711;cluster\n", first=f'cp "$2" {slurm}/given')
    submission = submit(plan, config, NodeAgent(plan.run.plan))
    given, folder = (slurm / "given").read_bytes(), plan.run.submit_folder
    assert (submission.cluster, submission.job_id, submission.slurm_cluster) == ("slurm", "4711", "cluster")
    assert argv(slurm, "sbatch")[0] == "--parsable"
    assert given.decode() == render(plan, config.cluster, folder=folder, command=submitit_command(plan, folder))
    assert given == plan.run.job.read_bytes()
    shown = dry_run_text(plan, config, words).partition("\nscript\n")[2].partition("\n\nnext\n")[0]
    assert shown == "".join(f"  {line}\n" for line in given.decode().splitlines()).rstrip()
    # submitit's own files: what it unpickles on the nodes must be there
    assert (folder / "4711_submitted.pkl").exists()
    assert not stat.S_IMODE((folder / "4711_submitted.pkl").stat().st_mode) & 0o002
