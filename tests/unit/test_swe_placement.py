"""The decisions of the dispatcher that need no Ray: where, how long, which nodes may come, what was used."""

import json
import math
from pathlib import Path

import pytest

from hpcjet.cluster.roster import UsableNode
from hpcjet.config.compose import compose
from hpcjet.plan import Plan, make_plan
from hpcjet.rundir import RunDir
from hpcjet.serve.nodes import serving_groups, serving_hosts
from hpcjet.swe.again import MOST_NODE_LOSSES, again
from hpcjet.swe.attempt import Job
from hpcjet.swe.placement import ENOUGH_SEEN, MARGIN, Lengths, Offer, assign
from hpcjet.swe.prospects import Prospects
from hpcjet.swe.record import Record
from hpcjet.swe.usage import Usage, read_usage
from hpcjet.tasks.task import Task
from hpcjet.tasks.verdict import Verdict


def lengths(*seen: float, limit_s: float = 1000.0) -> Lengths:
    found = Lengths(limit_s)
    for each in seen:
        found.add(each)
    return found


def test_the_limit_counts_until_enough_were_seen() -> None:
    assert lengths(*[10.0] * (ENOUGH_SEEN - 1)).expected_s == 1000
    assert lengths(*[10.0] * (ENOUGH_SEEN - 1), 30.0).expected_s == MARGIN * 30
    assert lengths(*[900.0] * ENOUGH_SEEN).expected_s == 1000


@pytest.mark.parametrize(
    ("offers", "jobs", "taken"),
    [
        ([Offer(2), Offer(4)], 4, [1, 1, 0, 1]),
        ([Offer(1), Offer(0)], 5, [0]),
        ([Offer(4, left_s=900, life_s=3600), Offer(1, left_s=1001, life_s=3600)], 3, [1]),
        ([Offer(1, left_s=400, life_s=600), Offer(2, left_s=500, life_s=600), Offer(1)], 9, [2, 1, 1, 0]),
        ([Offer(4, left_s=40, life_s=600)], 4, []),
    ],
    ids=["spread", "no room", "too late", "never long enough", "about to end"],
)
def test_assign(offers: list[Offer], jobs: int, taken: list[int]) -> None:
    assert assign(offers, jobs, lengths(300.0)) == taken


def node(**facts: object) -> UsableNode:
    known = {"node_id": "n1", "member": "9-0:1", "host": "n1", "group": "cpu", "cpus": 1.0, "memory_bytes": 1.0}
    return UsableNode(**{**known, **facts})  # type: ignore[arg-type]


def plan(*words: str) -> Plan:
    config = compose(["+exp=swe", "engine=oracle", "cluster=slurm", "cluster.time_min=600", *words])
    return make_plan(config, run_dir=RunDir(Path("/r")), python="python3")


GROUPS = "+cluster.groups={head: {nodes: 1}, cpu: {nodes: 0, max: 4, time_min: 60}}"


def test_prospects_of_one_group() -> None:
    one = Prospects.of(plan("cluster.nodes=3"), None, head="9-0", restart=0)
    assert (one.expected, one.grows, one.life_s) == (3, frozenset(), {"main": 36_000})
    assert not one.may_come({"9-0:0"}, waited_s=10_000)
    assert one.may_come({"9-0:0", "9-0:1"}) and not one.may_come({"9-0:0", "9-0:1", "9-0:2"})
    assert one.works(node(group="main")) and one.works(node(group=""))


def test_prospects_of_groups_in_jobs_of_their_own() -> None:
    words = ("cluster.form=jobs", GROUPS)
    every = Prospects.of(plan(*words), None, head="9-0", restart=0)
    assert (every.expected, every.grows, every.life_s) == (1, {"cpu"}, {"head": 36_000, "cpu": 3600})
    cpu = Prospects.of(plan(*words, "exp.group=cpu"), "cpu", head="9-0", restart=0)
    assert cpu.expected == 0 and cpu.may_come({"9-0:0", "10-0:0"}) and not cpu.works(node(group="head"))
    head = Prospects.of(plan(*words, "exp.group=head"), "head", head="9-0", restart=0)
    assert not head.may_come({"9-0:0", "10-0:0"}) and head.may_come({"9-00:0", "10-0:0"})


def test_the_end_of_a_node_counts_only_where_something_comes_after_it() -> None:
    late = node(member="10-0:0", ends=100.0)
    for alone in (Prospects(head="9-0"), Prospects()):
        assert alone.left_s(late, now=40.0) == math.inf
    grows = Prospects(head="9-0", grows=frozenset({"cpu"}), life_s={"cpu": 600.0})
    assert grows.left_s(late, now=40.0) == 55 and grows.left_s(late, now=140.0) == 0, "5 s before it is given back"
    assert grows.whole_life_s(late, now=40.0) == 595
    assert grows.whole_life_s(node(member="10-0:0", ends=900.0), now=40.0) == 855, "it has more time than was planned"
    assert grows.whole_life_s(node(member="10-0:0"), now=40.0) == math.inf


def test_the_head_stops_all_work_before_its_end_if_another_goes_on() -> None:
    chain = Prospects(head="9-0", goes_on=True, warning_s=30.0, head_life_s=600.0, life_s={"cpu": 3600.0})
    head, late = node(ends=500.0), node(member="10-0:0", ends=2000.0)
    assert chain.head_ends([late, head]) == 500
    assert chain.left_s(head, now=100.0, head_ends=500.0) == 370 == chain.left_s(late, now=100.0, head_ends=500.0)
    assert chain.whole_life_s(late, now=100.0, head_ends=500.0) == 570
    last = Prospects(head="9-0", warning_s=30.0, grows=frozenset({"cpu"}))
    assert last.left_s(late, now=100.0, head_ends=500.0) == 1895


JOB = Job(Task(instance_id="a", repo="a/b", base_commit="c", problem_statement="", patch="", test_patch=""), 0)
SPOILED = Record(instance_id="a", attempt=0, verdict=Verdict.infrastructure)


def test_a_loss_with_the_node_uses_up_no_try() -> None:
    job: Job | None = JOB
    for _ in range(MOST_NODE_LOSSES):
        assert job
        job = again(job, SPOILED, with_node=True, max_tries=2)
    assert job and (job.tries, job.losses) == (MOST_NODE_LOSSES + 1, MOST_NODE_LOSSES)
    assert job.session != JOB.session, "what the lost try asked of the model is not its own"
    second = again(job, SPOILED, with_node=False, max_tries=2)
    assert second and again(second, SPOILED, with_node=True, max_tries=2) is None
    assert again(job, Record(instance_id="a", attempt=0, verdict=Verdict.failed), with_node=False, max_tries=9) is None


def test_usage_is_kept_over_restarts() -> None:
    usage = Usage(now=lambda: 5.0)
    usage.add_slots(node(), 3)
    usage.add_slots(node(), 1)
    usage.is_ready("9-0:1")
    usage.ended("9-0:1", 8.0)
    usage.lost("9-0:1", 2.0)
    [facts] = json.loads(usage.to_json({"9-0:1": 4.0})).values()
    assert facts == {
        "group": "cpu", "host": "n1", "job": "9", "slots": 4, "busy_s": 2.0, "running_s": 1.0, "wasted_s": 0.5,
        "attempts": 1, "lost": 1, "since": 5.0, "ready": 5.0,
    }  # fmt: skip
    again_ = Usage(read_usage(usage.to_json({"9-0:1": 4.0})))
    again_.add_slots(node(member="9-1:1"), 2)
    after = json.loads(again_.to_json({"9-1:1": 1.0}, ended=True))
    assert (after["9-0:1"]["busy_s"], after["9-0:1"]["running_s"], after["9-0:1"]["wasted_s"]) == (2.0, 0.0, 1.5)
    assert after["9-1:1"]["wasted_s"] == 0.5


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"a": {"group": "x"}}', "null"])
def test_a_torn_file_of_usage_says_nothing(text: str) -> None:
    assert read_usage(text) == {}


def test_which_groups_have_replicas() -> None:
    gpus = "+cluster.groups={head: {nodes: 1}, gpu: {nodes: 2, gpus_per_node: 4}, cpu: {nodes: 1}}"
    served = ("engine=vllm", "engine.model=/m", "engine.tool_call_parser=hermes")
    assert serving_groups(plan()) == frozenset()
    assert serving_groups(plan(*served)) == {"main"}
    het = plan(*served, gpus, "cluster.form=het")
    assert serving_groups(het) == {"gpu"} and serving_hosts(het, ["h", "g1", "g2", "c"]) == {1: "g1", 2: "g2"}
    jobs = plan(*served, gpus, "cluster.form=jobs", "engine.group=cpu")
    assert serving_groups(jobs) == {"cpu"} and serving_hosts(jobs, ["h"]) == {}
