"""Which nodes the driver may use, from Ray's list and from what the node agent told."""

from typing import Any

from hpcjet.cluster.inbox import ToldNode
from hpcjet.cluster.roster import UsableNode, roster


def node(host: str, *, member: str = "", group: str = "", alive: bool = True, number: int = 0) -> dict[str, Any]:
    labels = {"hpcjet-member": member} if member else {}
    labels |= {"hpcjet-group": group} if group else {}
    return {
        "NodeID": f"{host}.{number}", "NodeManagerHostname": host, "Alive": alive, "Labels": labels,
        "Resources": {"CPU": 4.0, "memory": 2.0},
    }  # fmt: skip


def told(member: str, host: str, **facts: Any) -> dict[str, ToldNode]:
    return {member: ToldNode(member=member, host=host, **{"group": "cpu", **facts})}


def test_without_labels_and_words_a_node_is_known_by_its_host() -> None:
    [found] = roster([node("n1"), node("n2", alive=False)], {})
    assert found == UsableNode(node_id="n1.0", member="n1", host="n1", group="", cpus=4.0, memory_bytes=2.0)


def test_a_node_without_labels_has_the_words_about_its_host() -> None:
    [found] = roster([node("n1")], told("9-0:1", "n1", ends=5.0))
    assert (found.member, found.group, found.ends) == ("9-0:1", "cpu", 5.0)


def test_two_members_on_one_host_are_told_apart_by_their_labels() -> None:
    nodes = [node("n1", member="9-0.1", number=1), node("n1", member="10-0.0", number=2)]
    words = told("9-0:1", "n1", lost=True) | told("10-0:0", "n1", drains="time limit", drains_by=9.0)
    [found] = roster(nodes, words)
    assert (found.node_id, found.member, found.drains, found.drains_by) == ("n1.2", "10-0:0", "time limit", 9.0)


def test_a_node_that_was_not_told_of_yet_waits() -> None:
    nodes = [node("n1", member="9-0.0", group="head"), node("n2", member="10-0.0", group="cpu")]
    assert [each.host for each in roster(nodes, told("9-0:0", "n1"))] == ["n1"]
    assert [each.group for each in roster(nodes, {})] == ["head", "cpu"], "an agent that tells of no node"


def test_a_node_of_the_head_allocation_is_used_before_it_is_told_of() -> None:
    nodes = [node("n1", member="9-0.0", group="head"), node("n2", member="9-0.1", group="head")]
    found = roster(nodes, told("9-0:0", "n1"), head="9-0")
    assert [(each.member, each.group) for each in found] == [("9-0:0", "cpu"), ("9-0:1", "head")]


def test_what_the_agent_lost_is_lost_though_ray_does_not_know_yet() -> None:
    assert roster([node("n1")], {"n1": ToldNode(member="n1", host="n1", lost=True)}) == []
