"""What the head makes of the words of its workers."""

import pytest

from hpcjet.cluster.lifeline import GONE, Word
from hpcjet.cluster.members import BYE, FAILED, HELLO, JOINED, Members

HOSTS = ["n0", "n1", "n2", "n3"]


def members_after(*words: tuple[int, str] | tuple[int, str, str]) -> Members:
    members = Members(HOSTS)
    for rank, word, *reason in words:
        members.take(Word(rank, word, {"reason": reason[0]} if reason else {}))
    return members


def test_at_first_all_are_possible_and_all_are_missing() -> None:
    members = members_after()
    assert (members.possible, members.missing, members.lost) == (4, HOSTS, {})


def test_who_has_joined_is_not_missing() -> None:
    assert members_after((1, HELLO), (1, JOINED), (3, HELLO)).missing == ["n0", "n2", "n3"]


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        ([(1, HELLO), (1, JOINED), (1, GONE)], {1: "its node agent was killed, or the node is down"}),
        ([(1, HELLO), (1, BYE), (1, GONE)], {}),
        ([(1, HELLO), (1, FAILED, "no disk"), (1, BYE), (1, GONE)], {1: "no disk"}),
        ([(1, HELLO), (1, FAILED, "no disk"), (1, GONE)], {1: "no disk"}),
        ([(1, HELLO), (1, GONE), (1, HELLO)], {}),
    ],
    ids=["killed", "ended in order", "failed", "failed and killed", "came again"],
)
def test_who_is_lost_and_why(words: list[tuple[int, str]], lost: dict[int, str]) -> None:
    members = members_after(*words)
    assert members.lost == lost
    assert members.possible == 4 - len(lost) and "n1" in members.missing


def test_who_came_again_must_join_again() -> None:
    members = members_after((1, HELLO), (1, JOINED), (1, GONE), (1, HELLO))
    assert 1 not in members.joined
    members.take(Word(1, JOINED, {}))
    assert members.joined == {1}


def test_the_first_reason_is_told_with_all_names() -> None:
    members = members_after((3, FAILED, "no disk"), (1, GONE))
    assert members.why_lost() == "n1, n3: no disk"


def test_many_names_are_counted() -> None:
    members = Members([f"n{number}" for number in range(100)])
    for rank in range(1, 51):
        members.take(Word(rank, FAILED, {"reason": "no disk"}))
    assert members.why_lost() == "n1, n2, n3, n4, n5, n6, n7, n8 and 42 more: no disk"
