"""The stand-alone templates on the lab, as a user takes them: sbatch, without the launcher on the login node."""

import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from launching import Login, only_run, sacct, wait_for
from programs import TRAIN, programs_python
from tasks_scenes import Project

from hpcjet.lab import Lab
from hpcjet.paths import templates_dir
from hpcjet.tasks.jsonl import dump_tasks

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SIZE = ["--nodes=2", "--cpus-per-task=2", "--mem=2G", "--time=10"]
PROGRAM = """\
import os, sys, time
import ray

ray.init()
print("nodes", len(ray.nodes()), "args", sys.argv[1:], "restart", os.environ["HPCJET_RESTART"], flush=True)
if os.environ["HPCJET_RESTART"] == "0":
    time.sleep(300)
sys.exit(7)
"""


@pytest.fixture
def folder(login: Login, request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = login.home / "tests" / f"{request.node.name[5:40]}-{time.time_ns()}"
    made = login.run("mkdir", "-p", folder)
    assert made.code == 0, made.output
    yield folder


def sbatch(login: Login, folder: Path, template: str, *words: str, edit: str = "") -> str:
    """Submit a copy of a template; returns the job."""
    text = (templates_dir() / template).read_text()
    (folder / template).write_text(text.replace('-- "$@"', f'{edit} -- "$@"') if edit else text)
    options = ["--parsable", f"--chdir={folder}", *SIZE]
    env = {"HPCJET_VENV": str(login.bin.parent)}
    done = login.run("sbatch", *options, folder / template, *words, env=env)
    assert done.code == 0, done.output
    return done.output.strip()


def log(folder: Path, job: str) -> str:
    file = folder / f"hpcjet-{job}.log"
    return file.read_text(errors="replace") if file.exists() else ""


def test_ray_with_odd_words_goes_on_after_a_requeue(login: Login, folder: Path) -> None:
    (folder / "my program.py").write_text(PROGRAM)
    job = sbatch(login, folder, "ray.sbatch", "python", "my program.py", 'it\'s "a" b', "${HOME}")
    expected = """nodes 2 args ['it\\'s "a" b', '${HOME}'] restart """
    wait_for(lambda: expected + "0" in log(folder, job), what=f"the program: {log(folder, job)}")
    first = only_run(folder / "runs")
    assert first.path.name.endswith(f"-{job}")
    assert login.run("scontrol", "requeue", job).code == 0

    def queued() -> bool:
        return "PENDING" in login.run("squeue", "-h", "-j", job, "-o", "%T").output

    wait_for(queued, what="the job in the queue again")
    assert login.run("scontrol", "update", f"JobId={job}", "StartTime=now").code == 0
    wait_for(lambda: expected + "1" in log(folder, job), what="the second start")
    assert sacct(login, job)["code"] == "7:0"
    assert only_run(folder / "runs") == first, "the same run directory"
    assert len(list(first.path.glob("logs/*/output.log"))) == 2


def test_torchrun(lab: Lab, login: Login, folder: Path) -> None:
    (folder / "train.py").write_text(TRAIN)
    edit = f"exp.python={programs_python(lab)}"
    job = sbatch(login, folder, "torchrun.sbatch", "python", "train.py", edit=edit)
    assert sacct(login, job)["code"] == "0:0", log(folder, job)
    assert re.findall(r"rank (\d) of 2 on n\d sum 3 ", log(folder, job)), log(folder, job)


def test_swe(lab: Lab, login: Login, folder: Path) -> None:
    task = Project(folder).task()
    dump_tasks(folder / "tasks.jsonl", [replace(task, instance_id=f"own__calc-{number}") for number in range(3)])
    subprocess.run(["chown", "-R", f"{lab.user.uid}:{lab.user.gid}", folder], check=True)
    words = [f"exp.tasks={folder}/tasks.jsonl", f"exp.repos={folder}/repos", f"exp.trees={folder}/trees"]
    job = sbatch(login, folder, "swe.sbatch", *words, "exp.limit=0", "exp.scaffold=reference")
    assert sacct(login, job)["code"] == "0:0", log(folder, job)
    report = login.report(only_run(folder / "runs"))
    assert (report["tasks"], report["resolved"]) == (3, 3)


def test_a_wrong_request_ends_the_job_with_its_message(login: Login, folder: Path) -> None:
    job = sbatch(login, folder, "swe.sbatch", "exp.tasks=/nonexistent")
    assert sacct(login, job)["code"] == "2:0", log(folder, job)
    assert "exp.tasks=/nonexistent holds no tasks.jsonl" in log(folder, job)
    assert not (folder / "runs").exists()
