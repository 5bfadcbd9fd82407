"""Runs beside other runs, a Ray of somebody else, and clients that do not belong: nobody notices anybody."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launching import AtWork, Login, sacct, start_work, wait_until_free

from hpcjet.cluster.site import RAY_TOKEN
from hpcjet.lab import Lab
from hpcjet.rundir import RunDir

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SMALL = ("cluster.nodes=2", "cluster.cpus_per_node=1", "cluster.mem_gb=2", "cluster.object_store_gb=0.1")
HERE = "cluster.nodelist='n1,n2'"

KNOCK = """
import json, socket, sys
host, port = sys.argv[1:]
knock = socket.create_connection((host, int(port)), timeout=200)
lines = knock.makefile()
print(json.loads(lines.readline())["word"])
knock.sendall(b'{"proof": "0000", "rank": 1, "facts": {}}\\n')
print(repr(lines.readline()))
"""


@pytest.fixture
def folder(login: Login) -> Path:
    """A folder of the test's own, on the file system that all nodes share."""
    path = login.home / "tests" / f"beside-{time.time_ns()}"
    made = login.run("mkdir", "-p", path / "one", path / "two")
    assert made.code == 0, made.output
    return path


@contextmanager
def foreign_ray(lab: Lab, login: Login) -> Iterator[str]:
    """A Ray on node 1 that the user started by hand, on Ray's own port; its address."""
    plain = ["env", "RAY_AUTH_MODE=disabled", "RAY_USAGE_STATS_ENABLED=0"]
    size = ["--num-cpus=1", "--object-store-memory=100000000", "--include-dashboard=false"]
    words = [*plain, str(login.bin / "ray"), "start", "--head", "--port=6379", "--temp-dir=/tmp/foreign", *size]
    try:
        started = lab.on_node(1, words, as_user=True)
        assert started.returncode == 0, started.stdout + started.stderr
        yield f"{lab.layout.node_address(1)}:6379"
    finally:
        pids = [str(p.pid) for p in lab.processes(1) if p.user == lab.user.name]
        lab.on_node(1, ["kill", "-9", *pids])
        lab.on_node(1, ["rm", "-rf", "/tmp/foreign"])


def ray_status(lab: Lab, login: Login, node: int, address: str, *env: str) -> tuple[int, str]:
    words = ["timeout", "200", "env", *env, str(login.bin / "ray"), "status", f"--address={address}"]
    done = lab.on_node(node, words, as_user=True)
    return done.returncode, done.stdout + done.stderr


def gcs_port(work: AtWork) -> str:
    words = [word for p in work.lab.processes(work.nodes[0]) for word in p.argv]
    return next(word.partition("=")[2] for word in words if word.startswith("--gcs_server_port="))


def test_two_runs_and_a_foreign_ray_on_the_same_nodes(lab: Lab, login: Login, folder: Path) -> None:
    with (
        foreign_ray(lab, login) as address,
        start_work(login, folder / "one", *SMALL, HERE) as one,
        start_work(login, folder / "two", *SMALL, HERE) as two,
    ):
        one.await_work()
        two.await_work()
        one.end_work()
        assert one.ended().code == 0
        assert two.launch.poll() is None, "the other run goes on"
        two.end_work()
        assert two.ended().code == 0
        code, said = ray_status(lab, login, 1, address, "RAY_AUTH_MODE=disabled")
        assert code == 0 and "1 node_" in said, said
    wait_until_free(lab, lab.nodes, timeout_s=5)


def test_who_does_not_know_the_secret_is_refused_from_another_node(lab: Lab, login: Login, folder: Path) -> None:
    with start_work(login, folder / "one", *SMALL, HERE) as work:
        work.await_work()
        gcs = f"{lab.layout.node_address(work.nodes[0])}:{gcs_port(work)}"
        token = f"RAY_AUTH_TOKEN_PATH={work.run.secret(f'{RAY_TOKEN}-{work.job}-0')}"
        code, said = ray_status(lab, login, 3, gcs, "RAY_AUTH_MODE=token", token)
        assert code == 0, f"with the token one is let in: {said}"
        for env in (["RAY_AUTH_MODE=disabled"], ["RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN=wrong"]):
            code, said = ray_status(lab, login, 3, gcs, *env)
            assert code != 0 and "auth" in said.lower(), said

        head = json.loads(work.run.rendezvous(work.job, restart=0).joinpath("head.json").read_text())
        host = str(lab.layout.node_address(work.nodes[0]))
        knocked = lab.on_node(3, ["/usr/bin/python3", "-c", KNOCK, host, str(head["port"])], as_user=True)
        assert knocked.stdout.split("\n")[:2] == ["nonce", "''"], knocked.stdout + knocked.stderr

        work.end_work()
        assert work.ended().code == 0


def test_twenty_jobs_at_once_share_four_nodes(lab: Lab, login: Login, folder: Path) -> None:
    """As many as the nodes have CPUs for: twelve on two nodes each, eight on one."""
    words = [*SMALL, "cluster.boot_timeout_s=400", "follow=false", f"run.root={folder}/runs"]
    sizes = [2] * 12 + [1] * 8
    launches = [login.start("+exp=noop", "cluster=lab", *words, f"cluster.nodes={size}") for size in sizes]
    for launch in launches:
        output = launch.communicate(timeout=300)[0]
        assert launch.returncode == 0, output
    runs = [RunDir(path) for path in folder.glob("runs/*/*")]
    jobs = {run: str(json.loads(run.submission.read_text())["job_id"]) for run in runs}
    assert len(set(jobs.values())) == len(sizes)
    found = []
    for run, job in jobs.items():
        answer = sacct(login, job, timeout_s=500)
        assert answer["code"] == "0:0", (answer, run.state.read_text())
        found.append(len(json.loads((run.path / "noop.json").read_text())["hosts"]))
        for log in run.path.glob("logs/*/*.log"):
            said = log.read_text(errors="replace")
            assert "taken by another program" not in said and "was taken; trying others" not in said, log
    assert sorted(found) == sorted(sizes)
    wait_until_free(lab, lab.nodes, timeout_s=10)
