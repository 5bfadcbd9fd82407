"""Which nodes an engine waits for, what it is told of those that drain or are lost, and when they are given back."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcjet.cluster.inbox import Inbox, ToldNode
from hpcjet.config.compose import compose
from hpcjet.plan import Plan, make_plan
from hpcjet.rundir import RunDir
from hpcjet.serve.nodes import EngineNodes
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


class Engine:
    """A stand-in for the pool: keeps what it is told."""

    def __init__(self) -> None:
        self.draining: list[tuple[str, str, float | None]] = []
        self.lost: list[str] = []
        self.left: set[str] = set()

    def drain(self, node: str, *, reason: str, by: float | None) -> None:
        self.draining.append((node, reason, by))

    def lose(self, node: str) -> None:
        self.lost.append(node)

    def has_left(self, node: str) -> bool:
        return node in self.left


class Scene:
    def __init__(self, plan: Plan, *told: ToldNode, works: tuple[str, ...] = ()) -> None:
        self.inbox, self.engine, self.given = Told(*told), Engine(), list[str]()
        outbox: Any = SimpleNamespace(say=lambda word, member: self.given.append(member))
        cluster = Cluster(
            ray=None, address="h", gcs_port=1, ports={}, hosts=("h",), inbox=self.inbox, outbox=outbox, head="0-0"
        )
        engine: Any = self.engine
        self.nodes = EngineNodes(cluster, plan, engine, works=lambda group: group in works)


def node(member: str, group: str, **facts: Any) -> ToldNode:
    return ToldNode(member=member, host=member, group=group, **facts)


def test_nodes_without_replicas_are_given_back_once_when_they_drain(plan: Plan) -> None:
    scene = Scene(
        plan, node("1-0:0", "cpu", drains="idle"), node("2-0:0", "cpu"), node("3-0:0", "gpu"),
        node("4-0:0", "cpu", drains="time limit", lost=True),
    )  # fmt: skip
    scene.nodes.look()
    scene.nodes.look()
    assert scene.given == ["1-0:0"]
    scene.inbox.told["2-0:0"] = replace(scene.inbox.told["2-0:0"], drains="time limit")
    scene.nodes.look()
    assert scene.given == ["1-0:0", "2-0:0"] and not scene.engine.draining and not scene.engine.lost


def test_a_node_with_replicas_is_given_back_when_the_engine_has_left_it(plan: Plan) -> None:
    scene = Scene(plan, node("3-0:0", "gpu", drains="idle", drains_by=9.0), node("3-0:1", "gpu"))
    scene.nodes.look()
    scene.nodes.look()
    assert scene.engine.draining == [("3-0:0", "idle", 9.0)] and scene.given == []
    scene.engine.left.add("3-0:0")
    scene.nodes.look()
    scene.nodes.look()
    assert scene.given == ["3-0:0"]


def test_who_else_works_on_a_node_gives_it_back(plan: Plan) -> None:
    scene = Scene(plan, node("3-0:0", "gpu", drains="idle"), works=("gpu",))
    scene.engine.left.add("3-0:0")
    scene.nodes.look()
    assert scene.given == [] and scene.nodes.is_free("3-0:0", "gpu") and scene.nodes.is_free("1-0:0", "cpu")
    scene.engine.left.clear()
    assert not scene.nodes.is_free("3-0:0", "gpu")


def test_the_engine_hears_once_of_each_loss(plan: Plan) -> None:
    scene = Scene(plan, node("3-0:0", "gpu", lost=True), node("1-0:0", "cpu", lost=True))
    scene.nodes.look()
    scene.nodes.look()
    assert scene.engine.lost == ["3-0:0"]
    scene.inbox.told["3-0:0"] = node("3-0:0", "gpu")
    scene.nodes.look()
    scene.inbox.told["3-0:0"] = node("3-0:0", "gpu", lost=True)
    scene.nodes.look()
    assert scene.engine.lost == ["3-0:0", "3-0:0"]


def test_an_engine_waits_for_a_node_of_its_group(plan: Plan) -> None:
    scene = Scene(plan, node("1-0:0", "cpu"), node("2-0:0", "gpu", lost=True), node("2-0:1", "gpu", drains="idle"))
    assert scene.nodes.awaited() == "a node of gpu"
    scene.inbox.told["3-0:0"] = node("3-0:0", "gpu")
    assert scene.nodes.awaited() == ""
    scene.inbox.told["3-0:0"] = node("3-0:0", "gpu", lost=True)
    assert scene.nodes.awaited() == "a node of gpu"


def test_an_engine_on_the_head_allocation_waits_for_none() -> None:
    config = compose(["+exp=serve", "engine=vllm", "engine.model=/m", "cluster=slurm"])
    one = make_plan(config, run_dir=RunDir(Path("/r")), python="python3")
    assert Scene(one).nodes.awaited() == ""
