"""What the node agent tells the driver, and how the driver waits for it."""

import io
import os
import threading
import time
from collections.abc import Iterator

import pytest

from hpcjet.cluster.inbox import NODE, NODE_DRAINS, NODE_LOST, READY, UP, WHERE, Inbox, ToldNode, message
from hpcjet.errors import NodeLostError


class Pipe:
    """The driver's standard input, and the agent's end of it."""

    def __init__(self) -> None:
        read, write = os.pipe()
        self.stream, self._agent = os.fdopen(read), os.fdopen(write, "w")
        self.inbox = Inbox(self.stream)

    def say(self, *words: str) -> None:
        self._agent.write("".join(f"{word}\n" for word in words))
        self._agent.flush()

    def close(self) -> None:
        self._agent.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()
    for thread in threading.enumerate():
        if thread.name == "inbox":
            thread.join(300)
    pipe.stream.close()


def test_a_node_may_be_lost_before_all_are_in(pipe: Pipe) -> None:
    pipe.say(message(NODE_LOST, host="n3"), message(WHERE, address="h"), message(NODE_LOST, host="n2"), message(READY))
    assert pipe.inbox.await_where()["address"] == "h"
    pipe.inbox.await_ready()
    assert pipe.inbox.lost() == ["n3", "n2"]


def test_what_is_told_of_nodes(pipe: Pipe) -> None:
    facts = {"member": "9-0:1", "host": "n2", "group": "cpu", "ends": 900.0, "address": "10.0.0.2"}
    pipe.say(
        message(NODE, **facts),
        message(NODE_DRAINS, member="9-0:1", host="n2", by=800.0, reason="preempted"),
        message(NODE, member="9-0:2", host="n3", group="cpu", ends=None),
        message(NODE_LOST, member="9-0:2", host="n3", reason="power"),
        message(NODE_DRAINS, member="8-0:0", host="n4"),
        message(WHERE),
    )
    pipe.inbox.await_where()
    assert pipe.inbox.nodes() == {
        "9-0:1": ToldNode(**facts, drains="preempted", drains_by=800.0),  # type: ignore[arg-type]
        "9-0:2": ToldNode(member="9-0:2", host="n3", group="cpu", lost=True),
        "8-0:0": ToldNode(member="8-0:0", host="n4", drains="it is given back"),
    }
    assert pipe.inbox.lost() == ["n3"]


def test_a_host_that_is_lost_is_that_of_the_member_there_now(pipe: Pipe) -> None:
    pipe.say(message(NODE, member="9-0:1", host="n2", group="cpu"), message(NODE_LOST, host="n2"))
    pipe.say(message(NODE, member="10-0:0", host="n2", group="cpu"), message(WHERE))
    pipe.inbox.await_where()
    assert {member: told.lost for member, told in pipe.inbox.nodes().items()} == {"9-0:1": True, "10-0:0": False}


def test_a_member_that_comes_back_is_there_again(pipe: Pipe) -> None:
    pipe.say(message(NODE, member="9-0:1", host="n2", group="cpu"), message(NODE_LOST, member="9-0:1", host="n2"))
    pipe.say(message(NODE, member="9-0:1", host="n2", group="cpu"), message(WHERE))
    pipe.inbox.await_where()
    assert not pipe.inbox.nodes()["9-0:1"].lost


def test_up_and_ready_are_two_things(pipe: Pipe) -> None:
    pipe.say(message(WHERE), message(UP))
    pipe.inbox.await_where()
    pipe.inbox.await_up()
    assert not pipe.inbox._ready.is_set()
    pipe.say(message(READY))
    pipe.inbox.await_ready()


def test_work_begins_when_there_is_enough_whatever_the_agent_says(pipe: Pipe) -> None:
    pipe.say(message(WHERE))
    pipe.inbox.await_where()
    answers = iter([False, False, True])
    pipe.inbox.await_ready(lambda: next(answers))
    assert next(answers, None) is None


def test_an_agent_that_ends_is_an_error_in_either_wait(pipe: Pipe) -> None:
    with pytest.raises(NodeLostError, match="before the cluster was up"):
        Inbox(io.StringIO()).await_where()
    pipe.say(message(WHERE))
    pipe.inbox.await_where()
    pipe.close()
    begin = time.monotonic()
    with pytest.raises(NodeLostError, match="before the cluster was up"):
        pipe.inbox.await_ready()
    assert time.monotonic() - begin < 100
