"""cluster.groups: how groups of nodes are written, what they inherit, and what is refused."""

import pytest

from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.compose import compose
from hpcjet.errors import ConfigError
from hpcjet.launch import help_page

BOTH = "+cluster.groups={head: {nodes: 1}, cpu: {nodes: 2, max: 8, partition: spot}}"
A, B = "cluster.groups.a={}", "cluster.groups.b={nodes: 4}"
HET, JOBS = "cluster.form=het", "cluster.form=jobs"


def cluster(*words: str) -> SlurmConfig:
    config = compose(["+exp=noop", "cluster=slurm", *words])
    assert isinstance(config.cluster, SlurmConfig)
    return config.cluster


@pytest.mark.parametrize(
    "words",
    [
        ["+cluster.groups={a: {nodes: 1}, b: {nodes: 4}}"],
        ["cluster.groups={a: {nodes: 1}, b: {nodes: 4}}"],
        [A, B],
        [A, "+cluster.groups.b={nodes: 4}"],
        ["+cluster.groups={a: {}}", "+cluster.groups={b: {nodes: 4}}"],
        [A, "cluster.groups.b={}", "cluster.groups.b.nodes=4"],
        ["cluster.groups.b.nodes=4", A, "cluster.groups.b={nodes: 3}"],
    ],
    ids=["with a plus", "without", "one by one", "one with a plus", "two pluses", "a key later", "a key before"],
)
def test_groups_are_written_in_any_way(words: list[str]) -> None:
    assert {name: group.nodes for name, group in cluster(*words).groups.items()} == {"a": 1, "b": 4}


def test_a_group_has_the_keys_of_the_cluster_unless_it_sets_them() -> None:
    config = cluster(
        "cluster.gres='gpu:a100:4'", "cluster.partition=gpu", "cluster.account=abc", "cluster.qos=high",
        "cluster.time_min=600", "cluster.exclusive=true", "+cluster.sbatch={reservation: maint, mail-type: END}",
        "cluster.form=jobs", "cluster.groups.head={nodes: 2}",
        "cluster.groups.cpu={gpus_per_node: 0, partition: spot, qos: '', time_min: 60, exclusive: false, nodes: 3, "
        "sbatch: {reservation: other}}",
    )  # fmt: skip
    head, cpu = config.of_group("head"), config.of_group("cpu")
    assert (head.gres, head.partition, head.qos, head.time_min, head.nodes) == ("gpu:a100:4", "gpu", "high", 600, 2)
    assert (cpu.gres, cpu.gpus_per_node, cpu.partition, cpu.qos, cpu.time_min) == (None, 0, "spot", None, 60)
    assert (cpu.account, cpu.exclusive, cpu.nodes) == ("abc", False, 3)
    assert cpu.sbatch == {"reservation": "other", "mail-type": "END"} and head.exclusive


WRONG = {
    "typo in a new group": (["+cluster.groups={a: {ndoes: 1}}"], "cluster.groups.a.ndoes is not a key"),
    "typo in a key": ([A, "cluster.groups.a.ndoes=1"], "did you mean cluster.groups.a.nodes?"),
    "typo with a plus": ([A, "+cluster.groups.a.ndoes=1"], "cluster.groups.a.ndoes is not a key"),
    "typo in a name": ([A, "cluster.groups.b.nodes=1"], "cluster.groups.b is a new entry"),
    "no number": (["+cluster.groups={a: {nodes: x}}"], "cluster.groups.a.nodes"),
    "no mapping": (["+cluster.groups={a: 3}"], "cluster.groups.a is not allowed"),
    "name": (["+cluster.groups={a.b: {}}"], "a name begins with a letter"),
    "nodes": (["cluster.groups.a={nodes: -1}"], "cluster.groups.a.nodes=-1 is not allowed"),
    "no nodes": (["cluster.groups.a={nodes: 0}"], "may begin with 0"),
    "no nodes of the head": ([JOBS, "cluster.groups.a={nodes: 0}", B], "cluster.groups.a.nodes=0 is not allowed"),
    "never a node": ([JOBS, A, "cluster.groups.b={nodes: 0}"], "the group could never have a node"),
    "max": ([JOBS, A, "cluster.groups.b={nodes: 4, max: 3}"], "cluster.groups.b.max=3 is not allowed"),
    "min": ([JOBS, A, "cluster.groups.b={min: 4, max: 3}"], "cluster.groups.b.max=3 is the most there can be"),
    "max of the head": ([JOBS, "cluster.groups.a={max: 3}", B], "only groups with jobs of their own grow"),
    "max in one job": ([A, B, "cluster.groups.b.max=7"], "only groups with jobs of their own grow"),
    "partition in one job": ([A, B, "cluster.groups.b.partition=x"], "set it in cluster, or cluster.form=het"),
    "time in a het job": ([HET, A, B, "cluster.groups.b.time_min=3"], "set cluster.time_min"),
    "gres and gpus": ([HET, A, B, "cluster.groups.b={gres: 'gpu:1', gpus_per_node: 2}"], "set one of the two to null"),
    "form without groups": ([HET], "cluster.groups is empty"),
    "form with one group": ([JOBS, A], "cluster.groups has only a"),
    "cluster.nodes": ([A, "cluster.nodes=4"], "cluster.groups says how many nodes there are"),
    "cluster.nodelist": ([HET, A, B, "cluster.nodelist=n1"], "cluster.nodelist=n1 is not allowed"),
    "min_nodes": ([JOBS, A, B, "cluster.min_nodes=2"], "the job with the head has 1 nodes"),
    "head_wait_s": (["cluster.head_wait_s=4"], "it must be 5 or more"),
    "max_hours": (["run.max_hours=0"], "run.max_hours=0.0 is not allowed"),
    "exp.group": ([A, B, "exp.group=c"], "exp.group=c is not allowed: the groups are a, b"),
    "exp.group without groups": (["exp.group=a"], "cluster.groups names no groups"),
    "engine.group": ([A, "engine=vllm", "engine.model=/m", "engine.group=c"], "engine.group=c is not allowed"),
    "one step": ([HET, A, B, "exp=mpi", "exp.command=x"], "exp=mpi runs as one step"),
    "this machine": (["cluster=local", BOTH], "it is a key of cluster=slurm and cluster=lab"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_what_cannot_be_is_refused(case: str) -> None:
    words, message = WRONG[case]
    own_exp = any(word.startswith("exp=") for word in words)
    with pytest.raises(ConfigError) as refused:
        compose([*([] if own_exp else ["+exp=noop"]), "cluster=slurm", *words])
    assert message in str(refused.value)


def test_a_group_that_exists_is_taken() -> None:
    assert compose(["+exp=swe", "cluster=slurm", A, B, "exp.group=b"]).exp.group == "b"


def test_help_shows_the_keys_of_a_group() -> None:
    page = help_page(["cluster"])
    assert "cluster.groups.NAME.max_failures=3" in page and "cluster.form=job" in page
    assert max(map(len, page.splitlines())) <= 80
