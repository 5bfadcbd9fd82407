"""Programs of the user's own on the lab: Ray, a real MPI and torch on three nodes, their exit codes and their end."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Login, busy, leftovers, only_run, sacct, wait_for, wait_until_free
from programs import ALLREDUCE, TRAIN, programs_python

from hpcjet.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NODES = ["cluster=lab", "cluster.nodes=3", "cluster.cpus_per_node=2", "cluster.mem_gb=2"]
RAY = """\
import os, socket, sys
import ray

ray.init()

@ray.remote(num_cpus=0.1)
def host():
    return socket.gethostname()

pin = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
nodes = [node["NodeID"] for node in ray.nodes()]
calls = [host.options(scheduling_strategy=pin(node, soft=False)).remote() for node in nodes]
print("hosts", *sorted(ray.get(calls)), "args", sys.argv[1:], flush=True)
sys.exit(7)
"""
WAITS = """\
import os, signal, sys, time

def end(number, frame):
    time.sleep(0.5)
    print("saved", os.environ["SLURM_PROCID"], flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
print("ready", os.environ["SLURM_PROCID"], flush=True)
time.sleep(300)
"""


@pytest.fixture(scope="module")
def python(lab: Lab) -> Path:
    return programs_python(lab)


@pytest.fixture
def folder(login: Login, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of one test, on the file system that all nodes share."""
    folder = login.home / "tests" / f"{request.node.name.split('[')[0][5:40]}-{time.time_ns()}"
    made = login.run("mkdir", "-p", folder)
    assert made.code == 0, made.output
    yield folder


def lines(output: str, start: str) -> list[str]:
    return sorted(line for line in output.splitlines() if line.startswith(start))


def test_a_program_finds_ray_and_its_exit_code_is_the_jobs(lab: Lab, login: Login, folder: Path) -> None:
    (folder / "my program.py").write_text(RAY)
    words = ["--", "python", "my program.py", "a b", "$HOME"]
    done = login.launch("+exp=ray", *NODES, f"exp.workdir='{folder}'", f"run.root={folder}/runs", *words)
    assert done.code == 7 and done.run, done.output
    assert lines(done.output, "hosts")[0].endswith("args ['a b', '$HOME']"), done.output
    assert len(lines(done.output, "hosts")[0].split(" args")[0].split()) == 4, "three nodes"
    assert done.output.index("\nhosts") < done.output.index("the program ended with exit code 7")
    job = next(line.split()[-1] for line in done.output.splitlines() if line.startswith("Slurm job"))
    assert sacct(login, job)["code"] == "7:0"
    logs = login.hpcjet("logs", done.run.path).output
    assert "output.log" in logs and lines(logs, "hosts")
    wait_until_free(lab, lab.nodes, timeout_s=5, left=leftovers)


def test_an_mpi_program_runs_on_all_ranks(lab: Lab, login: Login, python: Path, folder: Path) -> None:
    (folder / "allreduce.py").write_text(ALLREDUCE)
    words = ["exp.mpi=pmi2", f"exp.python={python}", f"exp.workdir={folder}", f"run.root={folder}/runs"]
    done = login.launch("+exp=mpi", *NODES, *words, "--", "python", "allreduce.py")
    assert done.code == 0, done.output
    ranks = [line.split() for line in lines(done.output, "rank")]
    assert [(rank[1], rank[3], rank[7]) for rank in ranks] == [(str(n), "6", "21") for n in range(6)], done.output
    assert len({rank[5] for rank in ranks}) == 3
    assert {tuple(rank[8:]) for rank in ranks} == {("eth0", "1", "0")}
    assert not list(only_run(folder / "runs").path.glob("logs/*/*ray*")), "without Ray"


def test_the_rank_that_fails_first_ends_the_others(login: Login, folder: Path) -> None:
    command = "[ $SLURM_PROCID = 1 ] && exit 7; sleep 300"
    begin = time.monotonic()
    done = login.launch("+exp=mpi", *NODES, f"run.root={folder}/runs", "--", "bash", "-c", command)
    assert done.code == 7, done.output
    assert time.monotonic() - begin < 30 * busy()


def test_a_python_rank_that_fails_under_mpi4py_ends_the_others(login: Login, python: Path, folder: Path) -> None:
    code = "import sys; from mpi4py import MPI; w = MPI.COMM_WORLD; w.rank == 1 and sys.exit(7); w.barrier()"
    words = ["exp.mpi=pmi2", f"exp.python={python}", f"run.root={folder}/runs"]
    done = login.launch("+exp=mpi", *NODES, *words, "--", "python", "-m", "mpi4py", "-c", code)
    assert done.code == 7, done.output


def test_ranks_that_are_cancelled_may_save_their_work(lab: Lab, login: Login, folder: Path) -> None:
    (folder / "waits.py").write_text(WAITS)
    words = ["exp.ranks_per_node=1", f"exp.workdir={folder}", f"run.root={folder}/runs"]
    launch = login.start("+exp=mpi", *NODES, *words, "--", "python", "waits.py")

    def printed(word: str) -> int:
        return sum(file.read_text().count(word) for file in folder.glob("runs/*/*/logs/*/output.log"))

    wait_for(lambda: printed("ready") == 3, what="three ranks")
    begin = time.monotonic()
    assert login.hpcjet("cancel", only_run(folder / "runs").path).code == 0
    output = launch.communicate(timeout=300)[0]
    assert launch.returncode == 130, output
    wait_until_free(lab, lab.nodes, timeout_s=15, left=leftovers)
    assert time.monotonic() - begin < 30 * busy()
    assert printed("saved") == 3, output


def test_torch_reduces_over_three_nodes(login: Login, python: Path, folder: Path) -> None:
    (folder / "train.py").write_text(TRAIN)
    words = [f"exp.python={python}", f"exp.workdir={folder}", f"run.root={folder}/runs"]
    done = login.launch("+exp=torchrun", *NODES, *words, "--", "python", "train.py")
    assert done.code == 0, done.output
    ranks = [line.split() for line in lines(done.output, "rank")]
    assert [(rank[1], rank[3], rank[7]) for rank in ranks] == [(str(n), "3", "6") for n in range(3)], done.output
    assert len({rank[5] for rank in ranks}) == 3
    head = lab_address(ranks[0][5])
    assert {tuple(rank[8:]) for rank in ranks} == {("0", head, "eth0", "-")}


def lab_address(host: str) -> str:
    return f"10.77.0.{10 + int(host.removeprefix('n'))}"
