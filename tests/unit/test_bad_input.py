"""Every wrong request ends with exit code 2, a message that says what to do, and no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_stubs import on_path, stub

from hpcjet.launch import main
from hpcjet.tasks.git import git

ROOT = Path(__file__).parents[2]
EXPERIMENTS = "doctor, formation, gymnasium, mpi, noop, pettingzoo, ray, serve, swe, torchrun"

WORDS: dict[str, tuple[list[str], str]] = {
    "unknown exp": (
        ["+exp=swee"],
        f"exp=swee is not known: choose one of {EXPERIMENTS}; did you mean swe?",
    ),
    "no exp": (
        ["cluster=slurm"],
        f"exp is not chosen: add +exp=NAME, one of {EXPERIMENTS}",
    ),
    "nothing": ([], "exp is not chosen"),
    "exp twice": (["+exp=noop", "+exp=swe"], "exp is chosen twice"),
    "unknown cluster": (["+exp=noop", "cluster=slrum"], "snellius_h100; did you mean slurm?"),
    "unknown key": (["+exp=noop", "cluster=slurm", "cluster.nodez=3"], "did you mean cluster.nodes?"),
    "unknown key, plus": (["+exp=noop", "cluster=slurm", "+cluster.nodez=3"], "did you mean cluster.nodes?"),
    "unknown key, two plus": (["+exp=noop", "cluster=slurm", "++cluster.nodez=3"], "did you mean cluster.nodes?"),
    "unknown root key": (["+exp=noop", "folow=true"], "folow is not a key: known are exp, cluster"),
    "unknown root key, plus": (["+exp=noop", "+folow=true"], "did you mean follow?"),
    "key of another kind": (["+exp=noop", "cluster.nodes=3"], "it is a key of cluster=slurm and cluster=lab"),
    "key of another exp": (["+exp=noop", "exp.limit=3"], "exp.limit is not a key: known are exp.group; it is a key of"),
    "wrong type": (["+exp=noop", "cluster=slurm", "cluster.nodes=many"], "cluster.nodes=many is not allowed"),
    "no list": (["+exp=swe", "exp.ids=a"], "exp.ids=a is not allowed: it must be a list, such as [a,b]"),
    "no bool": (["+exp=noop", "dry_run=maybe"], "dry_run=maybe is not allowed: Value 'maybe' is not a valid bool"),
    "enum": (["+exp=swe", "engine.mode=solv"], "expected one of [solve, empty, wrong, mixed]"),
    "no nodes": (["+exp=noop", "cluster=slurm", "cluster.nodes=0"], "cluster.nodes=0 is not allowed: it must be 1"),
    "no time": (["+exp=noop", "cluster=slurm", "cluster.time_min=0"], "cluster.time_min=0 is not allowed"),
    "not a number": (["+exp=noop", "cluster.boot_timeout_s=nan"], "cluster.boot_timeout_s=nan is not allowed"),
    "sandbox too small": (["+exp=swe", "sandbox.memory_gb=-1"], "sandbox.memory_gb=-1.0 is not allowed"),
    "min_nodes": (["+exp=noop", "cluster=slurm", "cluster.min_nodes=3"], "cluster.nodes=1 is the most there can be"),
    "gres and gpus": (
        ["+exp=noop", "cluster=slurm", "cluster.gres=gpu", "cluster.gpus_per_node=1"],
        "cluster.gpus_per_node is set as well; set one of the two to null",
    ),
    "grammar": (["+exp=noop", "cluster"], "cannot read the argument 'cluster': an argument is key=value"),
    "brackets": (["+exp=swe", "exp.ids=[a"], "cannot read the argument 'exp.ids=[a'"),
    "no key": (["+exp=noop", "=1"], "it names no key"),
    "several values": (["+exp=noop", "cluster.cpus=1,2"], "one launch takes one value for each key"),
    "a range": (["+exp=noop", "cluster.cpus=range(1,3)"], "one launch takes one value for each key"),
    "null": (["+exp=noop", "cluster=slurm", "cluster.nodes=null"], "cluster.nodes=null is not allowed: a value is"),
    "null group": (["+exp=noop", "cluster=null"], "cluster=null is not allowed: it must be one of frontier"),
    "two of a group": (["+exp=noop", "cluster=[local,slurm]"], "it must be one of frontier"),
    "required": (["+exp=noop", "engine=openai"], "engine.model has no value: set engine.model=..."),
    "new entry": (["+exp=noop", "cluster.env.A=1"], "cluster.env.A is a new entry: add it with a plus"),
    "dollar sign": (["+exp=noop", "cluster=slurm", 'cluster.setup=["x ${Y}"]'], r"shall see as \${NAME}"),
    "key in the URL": (
        ["+exp=swe", "engine=openai", "engine.model=m", "engine.base_url=http://u:hunter2@h/v1"],
        "engine.base_url=(hidden) is not allowed",
    ),
    "Hydra's own key": (["+exp=noop", "hydra.run.dir=x"], "hpcjet takes no settings of Hydra itself"),
    "sweep": (["-m", "+exp=noop", "seed=interval(0,1)"], "an interval has no end of values"),
    "unknown option": (
        ["+exp=noop", "--folow"],
        "--folow is not an option: known are --help, -m, --cfg, --prepare and --version",
    ),
    "help of nothing": (["--help", "clustre"], "--help clustre: there is no such group; choose one of exp, cluster"),
    "no bwrap": (["+exp=swe", "sandbox.bwrap=/nonexistent"], "sandbox.bwrap=/nonexistent is not a program"),
    "root is a file": (["+exp=noop", "run.root=/dev/null"], "cannot be made: Not a directory; choose another"),
    "unknown id": (["+exp=swe", "exp.ids=[a__b-2]"], "exp.ids names a__b-2, which is not among the 1 tasks of"),
    "unknown id, hint": (["+exp=swe", "exp.ids=[a__b-2]"], "did you mean a__b-1?"),
    "no tasks": (["+exp=swe", "exp.tasks=/nonexistent"], "exp.tasks=/nonexistent holds no tasks.jsonl"),
    "no repos": (["+exp=swe", "exp.repos=/nonexistent"], "exp.repos=/nonexistent is not a folder"),
    "no key variable": (
        ["+exp=swe", "engine=openai", "engine.model=m", "engine.api_key_env=NO_SUCH_KEY"],
        "engine.api_key_env=NO_SUCH_KEY is not set in the environment: export it",
    ),
}
"""Name of the case -> the words after `python -m hpcjet.launch`, and a part of the message."""

ROW = {
    "instance_id": "a__b-1", "repo": "a/b", "base_commit": "main", "problem_statement": "It breaks.", "patch": "",
    "test_patch": "", "FAIL_TO_PASS": [], "PASS_TO_PASS": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def task_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One task and its git repository."""
    folder = tmp_path_factory.mktemp("set")
    (folder / "tasks.jsonl").write_text(json.dumps(ROW) + "\n")
    repo = folder / "repos" / "a__b"
    repo.mkdir(parents=True)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q", "-b", "main"], [*who, "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", "-C", str(repo), *words], check=True)
    assert git(["rev-parse", "main"], git_dir=repo / ".git")
    return folder


@pytest.fixture(autouse=True)
def nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCJET_CLUSTER", raising=False)
    monkeypatch.chdir(tmp_path)


def said(words: list[str], capsys: pytest.CaptureFixture[str], *, code: int = 2) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    printed = capsys.readouterr()
    assert ended.value.code == code, printed.err
    assert printed.out == "" and printed.err.startswith("hpcjet: ") and printed.err.count("\n") == 1
    return printed.err


def with_tasks(words: list[str], task_set: Path) -> list[str]:
    if "+exp=swe" not in words or any(word.startswith("exp.tasks=") for word in words):
        return words
    return [*words, f"exp.tasks={task_set}"]


@pytest.mark.parametrize("case", list(WORDS))
def test_a_wrong_request(case: str, task_set: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words, message = WORDS[case]
    text = said(with_tasks(words, task_set), capsys)
    assert message in text
    assert "hunter2" not in text
    assert not (tmp_path / "runs").exists(), "nothing is left behind"


@pytest.mark.parametrize("case", ["unknown exp", "null group", "unknown option", "no bwrap", "root is a file"])
def test_a_wrong_request_in_a_process_of_its_own(case: str, task_set: Path, tmp_path: Path) -> None:
    words, message = WORDS[case]
    command = [sys.executable, "-m", "hpcjet.launch", *with_tasks(words, task_set)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and "Traceback" not in done.stderr and done.stderr.count("\n") == 1


def test_a_cluster_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HPCJET_CLUSTER", "nonsense")
    assert "cluster=nonsense is not known: choose one of frontier" in said(["+exp=noop"], capsys)


def test_a_partition_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = on_path(tmp_path / "slurm", monkeypatch)
    stub(folder, "sbatch")
    stub(folder, "sinfo", says="gpu|2|8|16000|gpu:4|(null)|n[1-2]\nbatch|4|8|16000|(null)|(null)|n[1-4]\n")
    words = ["+exp=noop", "cluster=slurm", "cluster.partition='batch,huge'"]
    assert "cluster.partition=huge does not exist on this cluster: choose one of batch, gpu" in said(words, capsys)
    assert not (folder / "sbatch.argv").exists() and not (tmp_path / "runs").exists()


def test_no_slurm_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    on_path(tmp_path / "empty", monkeypatch, alone=True)
    text = said(["+exp=noop", "cluster=slurm"], capsys, code=3)
    assert "sbatch is not on PATH: this is no login node" in text and "dry_run=true shows the job" in text


def test_a_refused_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    folder = on_path(tmp_path / "slurm", monkeypatch)
    error = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified\n"
    stub(folder, "sbatch", error=error, code=1)
    stub(folder, "srun")
    stub(folder, "sinfo", says="batch\n")
    with pytest.raises(SystemExit) as ended:
        main(["+exp=noop", "cluster=slurm", "cluster.account=nobody"])
    printed = capfd.readouterr().err
    assert ended.value.code == 2 and "Traceback" not in printed
    assert "hpcjet: Slurm refused the job: sbatch: error: Batch job submission failed: Invalid account" in printed
    [state] = (tmp_path / "runs").glob("noop/*/state.json")
    assert json.loads(state.read_text())["phase"] == "failed"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{broken", "tasks.jsonl line 2: not JSON"),
        ({"instance_id": "a__b-1"}, "line 2: instance_id='a__b-1' was used on line 1"),
        ({"base_commit": "a..b"}, "line 2: base_commit='a..b' is not allowed; a commit hash or a branch or tag name"),
        ({"base_commit": "0" * 40}, f"base_commit='{'0' * 40}' is not in"),
        ({"base_commit": "v9"}, "base_commit='v9' is not in"),
        ({"repo": "x/y"}, "repo='x/y': no git repository in"),
    ],
    ids=["broken line", "id twice", "no ref name", "no such commit", "no such tag", "no such repository"],
)
def test_a_task_file_that_is_wrong(
    change: str | dict[str, Any], message: str, task_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = change if isinstance(change, str) else json.dumps({**ROW, "instance_id": "a__b-2", **change})
    (tmp_path / "tasks.jsonl").write_text(f"{json.dumps(ROW)}\n{second}\n")
    words = ["+exp=swe", f"exp.tasks={tmp_path}/tasks.jsonl", f"exp.repos={task_set}/repos"]
    assert message in said(words, capsys)


def test_a_folder_of_runs_that_cannot_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    # Not even root makes folders in /proc.
    assert "cannot be made: No such file or directory" in said(["+exp=noop", "run.root=/proc/runs"], capsys)
