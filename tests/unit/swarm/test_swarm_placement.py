"""Where the parts of a training stand."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcjet.errors import BootstrapError, ConfigError
from hpcjet.swarm.placement import (
    Needs,
    Node,
    deal,
    fragments_of,
    moves,
    number_of_seats,
    place_learners,
    room,
    shares,
    switches_of,
)


def needs(
    learners: int = 1, *, learner_cpus: int = 0, waits: bool = False, world_bytes: float = 0.0, parts: int = 99
) -> Needs:
    return Needs(
        learners=learners, learner_cpus=learner_cpus, waits=waits, worlds=8, world_bytes=world_bytes, parts=parts
    )


def node(name: str, cpus: int = 4, *, gpus: int = 0, switches: str = "", memory_bytes: float = 0.0) -> Node:
    return Node(
        node_id=name, name=name, cpus=cpus, gpus=gpus, switches=tuple(switches.split()), memory_bytes=memory_bytes
    )


def test_learners_go_to_gpus_first_one_to_each() -> None:
    nodes = [node("a", 64), node("b", 8, gpus=2), node("c", 8, gpus=2)]
    assert place_learners(nodes, needs(3)).ranks == ("b", "b", "c")


def test_without_gpus_they_go_to_the_most_cpus_and_no_node_has_two_while_another_has_none() -> None:
    nodes = [node("a", 4), node("b", 16), node("c", 8)]
    assert place_learners(nodes, needs(1)).ranks == ("b",)
    assert place_learners(nodes, needs(4)).ranks == ("b", "c", "a", "b")


def test_where_nothing_is_said_there_is_a_learner_for_each_cpu_of_one_node_or_one_on_a_gpu() -> None:
    nodes = [node("a", 4), node("b", 6), node("c", 64)]
    waits = needs(0, waits=True)
    assert place_learners(nodes[:2], waits).ranks == ("b",) * 6 and place_learners(nodes[:2], waits).threads == (1,) * 6
    assert place_learners(nodes[:2], needs(0)).ranks == ("b",) * 3, "the other CPUs act meanwhile"
    assert place_learners(nodes[:2], needs(0, waits=True, learner_cpus=3)).ranks == ("b",) * 2
    assert place_learners(nodes[:2], needs(0, waits=True, parts=2)).ranks == ("b",) * 2, "others would have nothing"
    assert place_learners(nodes, waits).ranks == ("c",) * 8
    assert place_learners([node("a", 1)], needs(0)).ranks == ("a",)
    assert place_learners([*nodes, node("d", 8, gpus=2)], waits).ranks == ("d",)


def test_learners_stay_under_one_switch_where_they_fit() -> None:
    nodes = [node("a", 16, switches="top s1"), node("b", 8, switches="top s2"), node("c", 8, switches="top s2")]
    assert place_learners(nodes, needs(2)).ranks == ("b", "c")
    assert place_learners(nodes, needs(3)).ranks == ("a", "b", "c")
    assert place_learners(nodes, needs(1)).ranks == ("a",)


def test_the_standby_is_on_another_node_and_under_another_switch() -> None:
    nodes = [node("a", 16, switches="top s1"), node("b", 8, switches="top s1"), node("c", 8, switches="top s2")]
    placed = place_learners(nodes, needs())
    assert (placed.primary, placed.standby) == ("a", "c")
    alone = place_learners(nodes[:1], needs())
    assert (alone.primary, alone.standby) == ("a", "a")


def test_seats_get_what_learners_leave_and_all_where_acting_waits() -> None:
    nodes = [node("a", 8), node("b", 4)]
    for waits, free in ((False, {"a": 4, "b": 4}), (True, {"a": 8, "b": 4})):
        asked = needs(0, waits=waits)
        assert room(nodes, place_learners(nodes, asked), asked) == free
    for cpus, left in ((0, 7), (3, 5)):
        asked = needs(learner_cpus=cpus)
        assert room(nodes, place_learners(nodes, asked), asked) == {"a": left, "b": 4}


def test_memory_bounds_seats_and_one_that_fits_nowhere_is_named() -> None:
    nodes = [node("a", 8, memory_bytes=10.0), node("b", 8, memory_bytes=3.0)]
    assert room(nodes, None, needs(world_bytes=2.0)) == {"a": 5, "b": 1}
    assert room(nodes, None, needs(world_bytes=2.0), worlds_each=2) == {"a": 2, "b": 0}
    with pytest.raises(ConfigError, match=r"exp\.world_memory_gb.*raise exp\.seats"):
        room(nodes, None, needs(world_bytes=2.0), worlds_each=6)


def test_a_node_of_one_cpu_is_shared_by_learner_and_worlds() -> None:
    asked = needs()
    assert room([node("a", 1)], place_learners([node("a", 1)], asked), asked) == {"a": 1}


def test_seats_are_as_many_as_there_is_room_for_or_as_are_wanted() -> None:
    assert [number_of_seats({"a": 4, "b": 2}, worlds, wanted) for worlds, wanted in ((8, 0), (3, 0), (8, 8))] == [
        6,
        3,
        8,
    ]


@given(st.integers(1, 500), st.integers(1, 60))
def test_worlds_are_shared_out_once_each_and_evenly(worlds: int, seats: int) -> None:
    seats = min(worlds, seats)
    dealt = shares(worlds, seats, first=7)
    assert [world for first, number in dealt for world in range(first, first + number)] == list(range(7, 7 + worlds))
    assert max(number for _, number in dealt) - min(number for _, number in dealt) <= 1


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 5), min_size=1), st.integers(0, 12), st.integers(0, 6))
def test_seats_are_dealt_out_evenly_and_those_that_stand_stay(rooms: dict[str, int], new: int, old: int) -> None:
    standing = {f"old-{number}": sorted(rooms)[0] for number in range(old)}
    placed = deal([f"new-{number}" for number in range(new)], rooms, standing)
    used = Counter([*placed.values(), *standing.values()])
    assert len(placed) == new and set(placed.values()) <= set(rooms)
    crowded = [each for each in set(placed.values()) if used[each] > rooms[each]]
    assert not crowded or not [each for each in rooms if used[each] < rooms[each]]


def test_a_node_that_comes_takes_seats_of_crowded_ones() -> None:
    standing = {f"s{number}": "a" if number < 3 else "b" for number in range(6)}
    assert moves(standing, {"a": 2, "b": 2}) == {}
    moved = moves(standing, {"a": 2, "b": 2, "c": 2})
    assert set(moved.values()) == {"c"} and Counter({**standing, **moved}.values()) == {"a": 2, "b": 2, "c": 2}
    assert moves({**standing, **moved}, {"a": 2, "b": 2, "c": 2, "d": 2}) == {}


def test_without_nodes_there_is_no_place() -> None:
    for call in (lambda: place_learners([], needs()), lambda: deal(["s"], {}, {})):
        with pytest.raises(BootstrapError, match="hpcjet resume"):
            call()


def test_fragments_of_an_update_are_shared_by_policies_as_seats_make_them() -> None:
    assert fragments_of({"a": 1, "b": 3}, 0, 5) == {"a": 5, "b": 15}
    assert fragments_of({"a": 1, "b": 3}, 8, 5) == {"a": 2, "b": 6}
    with pytest.raises(ConfigError, match=r"exp\.staleness\.fragments=6"):
        fragments_of({"a": 1, "b": 3}, 6, 5)


def test_switches_of_a_node() -> None:
    assert switches_of("top.s3.node7", "switch.switch.node") == ("top", "s3")
    assert switches_of("node7", "node") == switches_of("", "") == switches_of("a.b", "node") == ()
