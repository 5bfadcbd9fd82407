"""What the pool makes of what the nodes say: where replicas go, which of them serve, and when none will any more."""

from dataclasses import asdict
from typing import Any

import pytest

from hpcjet.cluster.lifeline import GONE, Word
from hpcjet.cluster.members import HELLO
from hpcjet.config.engine import Device, VllmConfig
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


def says(members: PoolMembers, rank: int, number: int, state: str, *, part: int = 0, reason: str = "") -> None:
    news = {"number": number, "rank": part, "state": state, "reason": reason, "restarts": 0}
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
