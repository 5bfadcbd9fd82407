"""The plan: pure, and the same after a trip through its file."""

import json
from pathlib import Path

import pytest

from hpcjet.config.compose import compose
from hpcjet.errors import ConfigError
from hpcjet.plan import FIXED_ENV, Cost, Plan, agent_command, cost, make_plan, read_plan
from hpcjet.rundir import RunDir

RUN = RunDir(Path("/shared/runs/noop/20260102-030405-abcdef"))


def plan_of(*words: str, run: RunDir = RUN, python: str = "/opt/venv/bin/python") -> Plan:
    return make_plan(compose(["+exp=noop", *words]), run_dir=run, python=python)


def test_a_plan_comes_back_from_its_file() -> None:
    plan = plan_of("cluster=slurm", "cluster.nodes=3", "cluster.time_min=90", "+cluster.env.A='$B \"c\"'")
    assert read_plan(plan.to_json()) == plan
    assert plan.typed_config() == compose(
        ["+exp=noop", "cluster=slurm", "cluster.nodes=3", "cluster.time_min=90", "+cluster.env.A='$B \"c\"'"]
    )
    assert plan.env == {**FIXED_ENV, "HPCJET_SEED": "0", "A": '$B "c"'}
    assert (plan.num_nodes, plan.min_nodes, plan.time_min, plan.run) == (3, 3, 90, RUN)
    assert plan.driver == ("/opt/venv/bin/python", "-m", "hpcjet.drive", f"{RUN}/plan.json")


def test_this_machine_is_one_node() -> None:
    plan = plan_of("cluster=local", "cluster.cpus=2", "cluster.memory_gb=3")
    assert [(group.nodes, group.cpus, group.memory_gb) for group in plan.groups] == [(1, 2, 3.0)]
    assert plan.time_min is None and cost(plan) == Cost(None, None, None)


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        (["cluster.gpus_per_node=4"], 4),
        (["cluster.gres='gpu:4'"], 4),
        (["cluster.gres='gpu:a100:2,nvme:1'"], 2),
        (["cluster.gres='gpu:a100:2(S:0-1),gpu:h100:1'"], 3),
        (["cluster.gres=gpu"], 1),
        (["cluster.gres='nvme:1'"], 0),
        ([], None),
    ],
    ids=["per node", "gres", "typed", "two types", "no count", "no gpu", "site's default"],
)
def test_gpus_are_counted(words: list[str], gpus: int | None) -> None:
    assert plan_of("cluster=slurm", *words).groups[0].gpus == gpus


def test_cost_is_limit_times_request() -> None:
    words = ["cluster=slurm", "cluster.nodes=4", "cluster.time_min=90"]
    assert cost(plan_of(*words)) == Cost(node_hours=6, cpu_hours=None, gpu_hours=0)
    words += ["cluster.cpus_per_node=64", "cluster.gpus_per_node=8"]
    assert cost(plan_of(*words)) == Cost(node_hours=6, cpu_hours=384, gpu_hours=48)


def test_fewer_nodes_may_be_enough() -> None:
    assert plan_of("cluster=slurm", "cluster.nodes=4", "cluster.min_nodes=2").min_nodes == 2


def test_the_agents_command_is_quoted() -> None:
    plan = plan_of(run=RunDir(Path("/my runs/$x/it's")), python="/opt/my venv/python")
    assert agent_command(plan) == [
        "/opt/my venv/python", "-u", "-m", "hpcjet.cluster.node", "/my runs/$x/it's/plan.json",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"groups": []}', "null", '{"groups": [{"name": "x"}]}'])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"plan\.json is not a plan of this version of hpcjet"):
        read_plan(text)


def test_a_plan_with_a_key_of_another_version_is_refused() -> None:
    data = {**json.loads(plan_of().to_json()), "later": 1}
    with pytest.raises(ConfigError, match="later"):
        read_plan(json.dumps(data))
