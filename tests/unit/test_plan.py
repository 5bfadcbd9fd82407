"""The plan: pure, and the same after a trip through its file."""

import json
from pathlib import Path

import pytest

from hpcjet.config.compose import compose
from hpcjet.errors import ConfigError
from hpcjet.plan import FIXED_ENV, Cost, Plan, agent_command, cost, group_costs, make_plan, read_plan
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


GROUPS = (
    "cluster.groups={head: {cpus_per_node: 4}, gpu: {nodes: 2, cpus_per_node: 16, gpus_per_node: 8}, "
    "cpu: {nodes: 3, cpus_per_node: 64, mem_gb: 128}}"
)
SLURM = ["cluster=slurm", GROUPS, "cluster.time_min=120"]


@pytest.mark.parametrize("form", ["job", "het"])
def test_ranks_of_one_job_go_through_its_groups(form: str) -> None:
    plan = plan_of(*SLURM, f"cluster.form={form}")
    assert [plan.group_of(rank).name for rank in range(7)] == ["head", "gpu", "gpu", "cpu", "cpu", "cpu", "cpu"]
    assert (plan.head_nodes, plan.num_nodes, plan.min_nodes, plan.worker_groups) == (6, 6, 6, ())
    assert not any(group.elastic for group in plan.groups)
    assert plan.group("cpu").memory_gb == 128
    with pytest.raises(ConfigError, match="group=cpus is not allowed: the run's groups are head, gpu, cpu"):
        plan.group("cpus")


def test_groups_with_jobs_of_their_own_are_not_the_heads() -> None:
    words = [*SLURM, "cluster.form=jobs", "cluster.groups.cpu.max=9", "cluster.groups.cpu.nodes=0",
             "cluster.groups.cpu.time_min=30", "cluster.groups.gpu.min=2", "run.max_hours=5"]  # fmt: skip
    plan = plan_of(*words)
    assert read_plan(plan.to_json()) == plan
    assert (plan.head_nodes, plan.num_nodes, plan.min_nodes) == (1, 3, 1)
    assert [group.name for group in plan.worker_groups] == ["gpu", "cpu"]
    assert {plan.group_of(rank).name for rank in range(4)} == {"head"}
    assert [(group.min_nodes, group.max_nodes, group.elastic, group.time_min) for group in plan.groups] == [
        (1, 1, False, 120), (2, 2, False, 120), (0, 9, True, 30),
    ]  # fmt: skip
    assert (plan.form, plan.max_hours, plan.head_wait_s) == ("jobs", 5.0, 900.0)


def test_the_cost_of_a_group_that_grows_is_that_of_its_most_nodes_for_the_whole_run() -> None:
    words = [*SLURM, "cluster.form=jobs", "cluster.groups.cpu.max=9", "cluster.groups.cpu.time_min=30"]
    plan = plan_of(*words)
    costs = group_costs(plan, {})
    assert costs == {"head": Cost(2, 8, 0), "gpu": Cost(4, 64, 32), "cpu": Cost(18, 1152, 0)}
    assert cost(plan) == Cost(24, 1224, 32)
    assert cost(plan_of(*words, "run.max_hours=10")).node_hours == 120
    assert cost(plan_of(*words, "run.max_hours=10", "cluster.requeue=false")).node_hours == 24
    assert cost(plan_of(*words, "cluster.groups.cpu.cpus_per_node=null")).cpu_hours is None


def test_without_groups_the_plan_is_that_of_one() -> None:
    plan = plan_of("cluster=slurm", "cluster.nodes=3")
    [group] = plan.groups
    assert (group.name, group.nodes, plan.form, plan.head_nodes, plan.worker_groups) == ("main", 3, "job", 3, ())
    assert plan.group_of(2) == group and not group.elastic


def test_the_command_of_a_worker_allocations_nodes_names_its_group() -> None:
    plan = plan_of("cluster=slurm")
    assert agent_command(plan, "cpu") == [*agent_command(plan), "--worker", "cpu"]
