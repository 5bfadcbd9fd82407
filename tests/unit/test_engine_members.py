"""What the pool makes of what the nodes say: where replicas go, which of them serve, and when none will any more."""

from dataclasses import asdict
from typing import Any

import pytest

from hpcjet.cluster.lifeline import GONE, Word
from hpcjet.cluster.members import HELLO
from hpcjet.config.engine import Device, Stage, VllmConfig
from hpcjet.engine.members import PoolMembers
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
    members = PoolMembers(VllmConfig(model="/m", **config), [f"n{number}" for number in range(1, 1 + len(nodes))])
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
    assert members.agents == {"n1": 4, "n2": 4}
    crowded = pool(facts(1, cpus=16))
    crowded.place()
    assert crowded.agents == {"n1": 12}, "a job may be given more CPUs than there are cores"
    (order,) = members.orders(1)
    assert (order.number, order.port, order.name) == (1, 20_000, "replica-1")
    assert [ShareOrder.of(each) for each in to_json([order])] == [order]


def test_replicas_of_one_node_have_ports_and_gpus_of_their_own() -> None:
    members = pool(facts(1, gpus=tuple("01234567")), tensor_parallel=2)
    members.place()
    orders = members.orders(0)
    assert len({each.port for each in orders}) == 4 and sorted(g for each in orders for g in each.gpus) == [*"01234567"]


def test_a_spread_replica_serves_when_all_its_parts_do() -> None:
    nodes = [facts(number, gpus=("0", "1")) for number in (1, 2)]
    members = pool(*nodes, tensor_parallel=4)
    members.place()
    (replica,) = members.replicas.values()
    leader, follower = members.orders(0)[0], members.orders(1)[0]
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
    assert (rank, order.number, order.restarts) == (other, 0, 0) and "began anew" in order.reason
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
    assert (rank, order.restarts) == (0, 0)
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
    assert members.stage_parent(0) is None and (members.stage_parent(1) is not None) is broadcast


def test_a_node_that_comes_back_gets_the_same_replicas() -> None:
    members = pool(facts(1), facts(2))
    members.place()
    before = members.orders(1)
    says(members, 1, 1, "ready")
    members.take(Word(1, GONE, {}))
    assert members.gone == {1} and not members.replicas[1].serves
    members.take(Word(1, HELLO, facts(2)))
    assert members.gone == set() and members.orders(1) == before
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
