"""A job that Slurm starts again: whether its run goes on, or was over before."""

import os
import sys
from pathlib import Path

import pytest

from hpcjet.cluster import node
from hpcjet.cluster.place import Place, local_place
from hpcjet.cluster.rendezvous import exit_file
from hpcjet.cluster.site import node_environment
from hpcjet.cluster.state import Phase, RunState, write_state
from hpcjet.config.compose import compose
from hpcjet.plan import Plan, make_plan
from hpcjet.rundir import RunDir


def plan_in(run: Path, *words: str) -> Plan:
    (run / "rendezvous").mkdir(parents=True)
    return make_plan(compose(["+exp=noop", "cluster=slurm", *words]), run_dir=RunDir(run), python=sys.executable)


def place(restart: int) -> Place:
    return Place(
        allocation="4711", restart=restart, rank=0, num_nodes=1, host="n1", cpus=1, gpus=0, memory_bytes=1 << 30,
        first_host="n1",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "restart", "code"),
    [
        (RunState(Phase.done, allocation="4711", exit_code=0), 1, 0),
        (RunState(Phase.failed, allocation="4711", exit_code=3), 1, 3),
        (RunState(Phase.interrupted, allocation="4711", exit_code=130), 1, None),
        (RunState(Phase.running, allocation="4711"), 1, None),
        (RunState(Phase.done, allocation="4700", exit_code=0), 1, None),
        (RunState(Phase.done, allocation="4711", exit_code=0), 0, None),
        (None, 1, None),
    ],
    ids=["done", "failed", "stopped", "lost its power", "an earlier job", "the first start", "no word"],
)
def test_a_run_that_was_over_is_not_done_again(
    state: RunState | None, restart: int, code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_in(tmp_path / "run")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restart))
    if state:
        write_state(plan.run.state, state)
    assert node._over_before(plan, place(restart)) == code
    left = exit_file(plan.run, os.environ)
    assert (left.read_text() if left.exists() else None) == (None if code is None else str(code))


def test_on_this_machine_the_work_has_the_priority_of_its_other_programs(tmp_path: Path) -> None:
    plan = plan_in(tmp_path / "run")
    here = local_place(host="here", cpus=2, gpus=0, memory_bytes=2**30)
    assert node_environment(plan, here, {})["RAY_worker_niceness"] == "0"
    assert node_environment(plan, here, {"RAY_worker_niceness": "9"})["RAY_worker_niceness"] == "9"
    assert "RAY_worker_niceness" not in node_environment(plan, place(0), {})


@pytest.mark.parametrize(("boot_s", "looks"), [(5, "20"), (120, "60"), (400, "200")])
def test_a_worker_waits_for_the_heads_ray_as_long_as_the_boot_may_take(boot_s: int, looks: str, tmp_path: Path) -> None:
    plan = plan_in(tmp_path / "run", f"cluster.boot_timeout_s={boot_s}")
    assert node_environment(plan, place(0), {})["RAY_NUM_REDIS_GET_RETRIES"] == looks
    assert node_environment(plan, place(0), {"RAY_NUM_REDIS_GET_RETRIES": "7"})["RAY_NUM_REDIS_GET_RETRIES"] == "7"
