"""Which nodes a served engine waits for, and which are given back beside it."""

import io
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcjet.cluster.inbox import Inbox, ToldNode
from hpcjet.config.compose import compose
from hpcjet.plan import Plan, make_plan
from hpcjet.rundir import RunDir
from hpcjet.serve import nodes
from hpcjet.serve.nodes import GiveBack, await_serving_node
from hpcjet.workload import Cluster


@pytest.fixture
def plan() -> Plan:
    groups = "+cluster.groups={head: {nodes: 1}, gpu: {nodes: 1, gpus_per_node: 4}, cpu: {nodes: 1}}"
    words = ["+exp=serve", "engine=vllm", "engine.model=/m", "cluster=slurm", "cluster.form=jobs", groups]
    return make_plan(compose(words), run_dir=RunDir(Path("/r")), python="python3")


class Told(Inbox):
    def __init__(self, *told: ToldNode) -> None:
        super().__init__(io.StringIO())
        self.told = {each.member: each for each in told}

    def nodes(self) -> dict[str, ToldNode]:
        return dict(self.told)


def cluster_of(inbox: Inbox, said: list[str]) -> Cluster:
    outbox: Any = SimpleNamespace(say=lambda word, member: said.append(member))
    return Cluster(ray=None, address="h", gcs_port=1, ports={}, hosts=("h",), inbox=inbox, outbox=outbox)


def node(member: str, group: str, **facts: Any) -> ToldNode:
    return ToldNode(member=member, host=member, group=group, **facts)


def test_nodes_without_replicas_are_given_back_once_when_they_drain(plan: Plan) -> None:
    inbox = Told(
        node("1-0:0", "cpu", drains="idle"), node("2-0:0", "cpu"), node("3-0:0", "gpu", drains="idle"),
        node("4-0:0", "cpu", drains="time limit", lost=True),
    )  # fmt: skip
    said: list[str] = []
    others = GiveBack(cluster_of(inbox, said), plan)
    others.look()
    others.look()
    assert said == ["1-0:0"]
    inbox.told["2-0:0"] = replace(inbox.told["2-0:0"], drains="time limit")
    others.look()
    assert said == ["1-0:0", "2-0:0"]


def test_an_engine_waits_for_a_node_of_its_group(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LOOK_S", 0.01)
    inbox = Told(node("1-0:0", "cpu"), node("2-0:0", "gpu", lost=True))
    waits = threading.Thread(target=await_serving_node, args=(cluster_of(inbox, []), plan), daemon=True)
    waits.start()
    waits.join(0.2)
    assert waits.is_alive()
    inbox.told["3-0:0"] = node("3-0:0", "gpu")
    waits.join(30)
    assert not waits.is_alive()


def test_an_engine_on_the_head_allocation_waits_for_none() -> None:
    config = compose(["+exp=serve", "engine=vllm", "engine.model=/m", "cluster=slurm"])
    one = make_plan(config, run_dir=RunDir(Path("/r")), python="python3")
    await_serving_node(cluster_of(Told(), []), one)
