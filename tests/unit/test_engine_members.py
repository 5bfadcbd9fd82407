"""What the pool makes of what the nodes say: where replicas go, which of them serve, and when none will any more."""

from dataclasses import asdict
from typing import Any

import pytest

from hpcjet.cluster.lifeline import GONE, Word
from hpcjet.cluster.members import HELLO
from hpcjet.config.engine import Device, Stage, VllmConfig
from hpcjet.engine.members import Leave, PoolMembers
from hpcjet.engine.words import REPLICA, NodeFacts, ShareOrder, to_json
from hpcjet.errors import ConfigError


def facts(number: int, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "host": f"n{number}",
        "address": f"10.0.0.{number}",
        "gpus": (),
        "cores": tuple(range(8)),
        "cpus": 8,
    }
    return asdict(NodeFacts(**{**base, "blocks": (20_000, 20_016, 20_032, 20_048), **changes}))


def pool(*nodes: dict[str, Any], **config: Any) -> PoolMembers:
    hosts = {rank: f"n{rank + 1}" for rank in range(len(nodes))}
    members = PoolMembers(VllmConfig(model="/m", **config), hosts)
    for rank, node in enumerate(nodes):
        members.take(Word(rank, HELLO, node))
    return members


def says(
    members: PoolMembers, rank: int, number: int, state: str, *, part: int = 0, reason: str = "", restarts: int = 0
) -> None:
    news = {"number": number, "rank": part, "state": state, "reason": reason, "restarts": restarts}
    members.take(Word(rank, REPLICA, news))


def test_a_replica_on_each_node_and_cores_for_the_agents() -> None:
    members = pool(facts(1), facts(2))
    assert members.all_in
    members.place()
    assert [each.url for each in members.replicas.values()] == ["http://10.0.0.1:20000", "http://10.0.0.2:20000"]
    assert members.agents == {"0": 4, "1": 4}
    crowded = pool(facts(1, cpus=16))
    crowded.place()
    assert crowded.agents == {"0": 12}, "a job may be given more CPUs than there are cores"
    (order,) = members.orders("1")
    assert (order.number, order.port, order.name) == (1, 20_000, "replica-1")
    assert [ShareOrder.of(each) for each in to_json([order])] == [order]


def test_replicas_of_one_node_have_ports_and_gpus_of_their_own() -> None:
    members = pool(facts(1, gpus=tuple("01234567")), tensor_parallel=2)
    members.place()
    orders = members.orders("0")
    assert len({each.port for each in orders}) == 4 and sorted(g for each in orders for g in each.gpus) == [*"01234567"]


def test_a_spread_replica_serves_when_all_its_parts_do() -> None:
    nodes = [facts(number, gpus=("0", "1")) for number in (1, 2)]
    members = pool(*nodes, tensor_parallel=4)
    members.place()
    (replica,) = members.replicas.values()
    leader, follower = members.orders("0")[0], members.orders("1")[0]
    assert (leader.leader, leader.leader_port) == (follower.leader, follower.leader_port) == ("10.0.0.1", 20_001)
    assert (leader.name, follower.name, follower.rank) == ("replica-0-0", "replica-0-1", 1)
    says(members, 1, 0, "ready", part=1)
    assert not replica.serves
    says(members, 0, 0, "ready")
    assert replica.serves
    members.take(Word(1, GONE, {}))
    assert not replica.serves and replica.reason == "its node is gone"


def spread() -> PoolMembers:
    """One replica over two nodes, ready."""
    members = pool(*[facts(number, gpus=("0",)) for number in (1, 2)], tensor_parallel=2)
    members.place()
    for part in (0, 1):
        says(members, part, 0, "ready", part=part)
    assert members.behind() == []
    return members


@pytest.mark.parametrize("first", [0, 1], ids=["the leader", "a follower"])
def test_the_parts_of_a_spread_replica_begin_anew_together(first: int) -> None:
    members = spread()
    life, other = members.replicas[0].life, 1 - first
    says(members, first, 0, "restarting", part=first, restarts=1)
    ((rank, order),) = members.behind()
    assert (rank, order.number, order.restarts) == (str(other), 0, 0) and "began anew" in order.reason
    assert members.replicas[0].life != life and not members.replicas[0].serves
    says(members, first, 0, "starting", part=first, restarts=1)
    says(members, other, 0, "restarting", part=other, restarts=1)
    assert members.behind() == []
    for part in (0, 1):
        says(members, part, 0, "ready", part=part, restarts=1)
    assert members.replicas[0].serves and members.replicas[0].restarts == 1 and members.behind() == []


def test_parts_that_crash_at_the_same_time_are_left_alone() -> None:
    members = spread()
    for part in (0, 1):
        says(members, part, 0, "restarting", part=part, restarts=1)
    assert members.behind() == []


def test_a_part_whose_node_comes_back_takes_the_others_along() -> None:
    members = spread()
    members.take(Word(1, GONE, {}))
    assert members.behind() == [], "without the node they would wait in vain"
    members.take(Word(1, HELLO, facts(2, gpus=("0",))))
    ((rank, order),) = members.behind()
    assert (rank, order.restarts) == ("0", 0)
    says(members, 0, 0, "failed")
    assert members.behind() == [], "what failed for good stays"


def test_replicas_of_one_node_do_not_care_about_each_other() -> None:
    members = pool(facts(1), facts(2))
    members.place()
    says(members, 0, 0, "restarting", restarts=1)
    assert members.behind() == []


@pytest.mark.parametrize("broadcast", [True, False])
def test_the_broadcast_of_weights_can_be_turned_off(broadcast: bool) -> None:
    members = pool(facts(1, stage_port=1), facts(2, stage_port=2), stage=Stage.disk, stage_broadcast=broadcast)
    members.place()
    assert members.stage_parent("0") is None and (members.stage_parent("1") is not None) is broadcast


def test_a_node_that_comes_back_gets_the_same_replicas() -> None:
    members = pool(facts(1), facts(2))
    members.place()
    before = members.orders("1")
    says(members, 1, 1, "ready")
    members.take(Word(1, GONE, {}))
    assert members.gone == {"1"} and not members.replicas[1].serves
    members.take(Word(1, HELLO, facts(2)))
    assert members.gone == set() and members.orders("1") == before
    says(members, 1, 1, "ready")
    assert members.replicas[1].serves


def test_the_pool_gives_up_only_when_every_replica_failed() -> None:
    members = pool(facts(1), facts(2))
    assert members.why_none() == "", "nothing is placed yet"
    members.place()
    says(members, 0, 0, "failed", reason="no such model")
    assert members.why_none() == ""
    says(members, 1, 1, "failed", reason="no such model either")
    assert members.why_none() == "no such model"


def test_no_room_is_an_error_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"engine\.device=gpu"):
        pool(facts(1), device=Device.gpu).place()
    with pytest.raises(ConfigError, match=r"engine\.replicas=99.* there is room for"):
        pool(facts(1), replicas="99").place()


def test_the_first_allocation_to_end_counts() -> None:
    members = pool(facts(1, gpus=("0",), ends=200.0), facts(2, gpus=("0",), ends=100.0), tensor_parallel=2)
    members.place()
    assert members.ends(members.replicas[0]) == 100
    assert (other := pool(facts(1))).place() is None and other.ends(other.replicas[0]) is None


HEAD, CPU, SPOT = "7-0", "8-0", "9-0"
"""Allocations; the first has the head."""


def grown(*own: dict[str, Any], **config: Any) -> PoolMembers:
    """A pool whose head allocation has these nodes, and that grows."""
    hosts = {rank: node["host"] for rank, node in enumerate(own)}
    members = PoolMembers(VllmConfig(model="/m", **config), hosts, HEAD, grows=True)
    for rank, node in enumerate(own):
        joins(members, f"{HEAD}:{rank}", node)
    members.place()
    return members


def joins(members: PoolMembers, member: str, node: dict[str, Any]) -> None:
    members.take(Word(int(member.rpartition(":")[2]), HELLO, node, member))


def tells(members: PoolMembers, member: str, number: int, state: str) -> None:
    news = {"number": number, "rank": 0, "state": state, "reason": "", "restarts": 0}
    members.take(Word(0, REPLICA, news, member))


def test_the_same_rank_and_host_of_two_allocations_are_two_nodes() -> None:
    members = grown()
    joins(members, f"{CPU}:0", facts(5))
    joins(members, f"{SPOT}:0", facts(5, blocks=(30_000,)))
    assert members.seat_late() == [f"{CPU}:0", f"{SPOT}:0"] and members.seat_late() == []
    assert [each.url for each in members.replicas.values()] == ["http://10.0.0.5:20000", "http://10.0.0.5:30000"]
    assert [each.number for each in members.orders(f"{SPOT}:0")] == [1]
    assert members.agents == {f"{CPU}:0": 4, f"{SPOT}:0": 4}
    for number, member in enumerate((f"{CPU}:0", f"{SPOT}:0")):
        tells(members, member, number, "ready")
    members.take(Word(0, GONE, {}, f"{CPU}:0"))
    assert [each.serves for each in members.replicas.values()] == [False, True]
    members.lose(f"{CPU}:0")
    assert [each.retired for each in members.replicas.values()] == [True, False]
    joins(members, f"{CPU}:0", facts(5))
    assert members.seat_late() == [f"{CPU}:0"] and [each.number for each in members.orders(f"{CPU}:0")] == [2]


def test_late_nodes_have_the_seats_of_the_same_placement() -> None:
    members = grown(facts(1, gpus=("0", "1")), tensor_parallel=2)
    joins(members, f"{CPU}:0", facts(2, gpus=tuple("0123")))
    joins(members, f"{CPU}:1", facts(3, gpus=("0",)))
    joins(members, f"{CPU}:2", facts(4))
    assert members.seat_late() == [f"{CPU}:0"]
    orders = members.orders(f"{CPU}:0")
    assert [(each.number, each.gpus, each.num_nodes) for each in orders] == [(1, ("0", "1"), 1), (2, ("2", "3"), 1)]
    assert "takes 2 GPUs" in members.without[f"{CPU}:1"] and "no node has a GPU" in members.without[f"{CPU}:2"]
    assert members.why_none() == "" and members.missing == []


def test_a_number_of_replicas_is_filled_as_nodes_join_and_again_when_they_leave() -> None:
    members = grown(facts(1), replicas="2")
    assert len(members.replicas) == 2, "as on the head allocation alone"
    members = grown(replicas="2")
    for rank in range(3):
        joins(members, f"{CPU}:{rank}", facts(rank))
    assert members.seat_late() == [f"{CPU}:0", f"{CPU}:1"]
    members.leaving[f"{CPU}:1"] = Leave("idle", None)
    assert members.seat_late() == [f"{CPU}:2"], "its replacement comes before it goes"
    members.take(Word(1, GONE, {}, f"{CPU}:1"))
    assert members.seat_late() == [] and members.replicas[1].retired


def test_nodes_of_which_none_holds_a_replica_are_an_error() -> None:
    members = grown(tensor_parallel=2)
    assert members.why_none() == ""
    joins(members, f"{CPU}:0", facts(2, gpus=("0",)))
    assert members.seat_late() == [] and "takes 2 GPUs" in members.why_none()


def test_stragglers_of_the_head_allocation_are_named_and_get_their_replicas_when_they_come() -> None:
    members = PoolMembers(VllmConfig(model="/m"), {1: "g1", 2: "g2"}, HEAD)
    joins(members, f"{HEAD}:2", facts(2))
    assert members.missing == ["g1"] and not members.all_in and members.any_in
    assert members.seat_late() == [], "they are laid out together"
    members.place()
    joins(members, f"{HEAD}:1", facts(1))
    assert members.all_in and members.seat_late() == [f"{HEAD}:1"]


def test_late_nodes_fetch_the_weights_from_those_that_stay() -> None:
    members = grown(facts(1, stage_port=1), stage=Stage.disk)
    for rank in range(2):
        joins(members, f"{CPU}:{rank}", facts(2 + rank, stage_port=2 + rank))
    members.seat_late()
    parents = [members.stage_parent(f"{CPU}:{rank}") for rank in range(2)]
    assert [each and each.port for each in parents] == [1, 1] and members.stage_parent(f"{HEAD}:0") is None
    members.leaving[f"{HEAD}:0"] = Leave("time limit", None)
    assert members.stage_parent(f"{CPU}:0") is None
