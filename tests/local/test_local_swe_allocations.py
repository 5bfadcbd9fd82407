"""exp=swe over several allocations on this machine, with a real Ray: guests join, one dies, one is given back."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from cluster_scenes import Agent, Scene, group, until, write_plan
from tasks_scenes import TESTS, Project, new_folder

from hpcjet.ledger import read_ledger
from hpcjet.plan import read_plan
from hpcjet.rundir import RunDir
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.swe.store import ResultStore
from hpcjet.tasks.jsonl import dump_tasks

pytestmark = pytest.mark.slow
NUM_TASKS = 10
LONG_S = 800


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A run that was checked and not started, as one of two groups; each attempt takes some seconds."""
    folder = new_folder()
    slow = {"tests/test_calc.py": f"import time\ntime.sleep(4)\n{TESTS}"}
    task = Project(folder).task(tests=slow)
    dump_tasks(folder / "tasks.jsonl", [replace(task, instance_id=f"own__calc-{n}") for n in range(NUM_TASKS)])
    words = [
        sys.executable, "-m", "hpcjet.launch", "+exp=swe", "exp.scaffold=reference", "exp.limit=0", "exp.max_tries=1",
        f"exp.tasks={folder}/tasks.jsonl", f"exp.repos={folder}/repos", f"exp.trees={folder}/trees",
        "exp.memory_gb=0.1", "cluster.object_store_gb=0.1", f"run.root={folder}/runs", "submit=false",
    ]  # fmt: skip
    subprocess.run(words, check=True, timeout=LONG_S)
    (path,) = (folder / "runs").glob("*/*")
    plan = read_plan(RunDir(path).plan.read_text())
    made = Scene(folder, plan)
    groups = (group("head", 1), group("cpu", 1))
    write_plan(made, replace(plan, form="jobs", groups=groups, head_wait_s=600.0, min_nodes=1, boot_timeout_s=300.0))
    yield made
    made.close()
    remove_tree(folder)


def busy(scene: Scene, guest: Agent) -> int:
    """Attempts at work on that node, as the keeper is told."""
    file = scene.plan.run.backlog
    return int(json.loads(file.read_text())["busy"].get(guest.member, 0)) if file.exists() else 0


def test_each_task_is_recorded_once_though_nodes_come_and_go(scene: Scene) -> None:
    head, dies, drains = scene.head(), scene.guest(), scene.guest()
    until(lambda: busy(scene, dies) and busy(scene, drains), "work on both guests", timeout_s=LONG_S)
    os.killpg(dies.process.pid, signal.SIGKILL)
    drains.process.send_signal(signal.SIGUSR2)  # as Slurm does before the time limit
    assert drains.code(LONG_S) == 0
    assert head.code(LONG_S) == 0

    run = scene.plan.run
    index = ResultStore(run.results).index()
    lines = [json.loads(line) for file in run.results.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert Counter(line["instance_id"] for line in lines) == {f"own__calc-{n}": 1 for n in range(NUM_TASKS)}
    assert {record.verdict.value for record in index.records()} == {"resolved"}, "with one try only"
    assert max(record.tries for record in index.records()) == 2, "what was lost with its node was made again"

    assert [entry.member for entry in scene.events("node_lost")] == [dies.member]
    [left] = scene.events("left")
    assert (left.member, left.facts["reason"]) == (drains.member, "time limit")
    used = json.loads(run.usage.read_text())
    assert used[dies.member]["lost"] >= 1 and used[dies.member]["wasted_s"] > 0
    assert used[drains.member]["lost"] == 0 and used[drains.member]["attempts"] >= 1
    ledger = {each.name: each for each in read_ledger(run).groups}
    assert ledger["cpu"].members == 2 and ledger["cpu"].seconds["wasted"] > 0
    assert ledger["cpu"].seconds["busy"] == pytest.approx(used[drains.member]["busy_s"], rel=0.2)
    assert not run.backlog.exists()
