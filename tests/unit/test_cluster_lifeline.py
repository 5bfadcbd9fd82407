"""The lifeline on real sockets: who is let in, what is heard, and how soon the end of either side is."""

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from hpcjet.cluster.lifeline import GONE, Hub, Line, Word, connect, proof, said
from hpcjet.cluster.lifeline import hub as hub_module
from hpcjet.errors import NodeLostError

SECRET = "of this run"
HERE = "127.0.0.1"


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub(0, secret=SECRET)
    yield hub
    hub.close()


def dial(hub: Hub, *, rank: int = 1, secret: str = SECRET) -> Line:
    """A worker's connection; the hub answers meanwhile, as its own thread would."""
    lines: list[Line] = []
    caller = threading.Thread(
        target=lambda: lines.append(connect([HERE], hub.port, secret=secret, rank=rank, facts={}, timeout_s=300))
    )
    caller.start()
    while caller.is_alive():
        assert not [word for word in hub.serve(0.01) if word.word != "hello"]
    caller.join()
    return lines[0]


def heard(hub: Hub, *, within_s: float = 300) -> list[Word]:
    """All words until there is one and then none for a moment."""
    words: list[Word] = []
    deadline = time.monotonic() + within_s
    while not words and time.monotonic() < deadline:
        words += hub.serve(0.1)
    return words + hub.serve(0.05)


def stranger(hub: Hub) -> tuple[socket.socket, str]:
    """A connection that has not proved itself, and its nonce."""
    connection = socket.create_connection((HERE, hub.port), timeout=300)
    hub.serve(0.05)
    return connection, str(json.loads(connection.recv(4096))["nonce"])


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(300)
    try:
        return connection.recv(4096) == b""
    except ConnectionResetError:
        return True


def test_words_go_both_ways(hub: Hub) -> None:
    line = dial(hub)
    hub.serve(0.05)
    line.say("joined", address="10.0.0.1")
    assert heard(hub) == [Word(1, "joined", {"address": "10.0.0.1"})]
    hub.announce("ray", gcs_port=7)
    assert line.hear(300) == [{"word": "ray", "gcs_port": 7}]
    line.close()


def test_who_comes_late_hears_the_newest_of_each_word(hub: Hub) -> None:
    hub.announce("ray", gcs_port=1)
    hub.announce("ray", gcs_port=2)
    line = dial(hub)
    hub.serve(0.05)
    assert line.hear(300) == [{"word": "ray", "gcs_port": 2}]
    line.close()


@pytest.mark.alone
def test_the_end_of_a_worker_is_heard_at_once(hub: Hub) -> None:
    line = dial(hub)
    hub.serve(0.05)
    began = time.monotonic()
    line.close()
    assert said(heard(hub), GONE) == [Word(1, GONE, {})]
    assert time.monotonic() - began < 1 and not hub.ranks


@pytest.mark.alone
def test_the_end_of_the_head_is_heard_at_once(hub: Hub) -> None:
    line = dial(hub)
    hub.serve(0.05)
    hub.close()
    began = time.monotonic()
    with pytest.raises(NodeLostError, match=r"the connection to the node agent of the head, 127\.0\.0\.1:\d+, is gone"):
        line.hear(300)
    assert time.monotonic() - began < 1
    line.close()


def test_last_words_are_heard_before_the_end(hub: Hub) -> None:
    line = dial(hub)
    hub.serve(0.05)
    line.say("failed", reason="x")
    line.say("bye")
    line.close()
    assert [word.word for word in heard(hub)] == ["failed", "bye", GONE]


def test_a_worker_that_comes_again_takes_its_own_place(hub: Hub) -> None:
    first = dial(hub)
    second = dial(hub)
    assert not said(hub.serve(0.1), GONE) and hub.ranks == {1}
    first.close()
    assert not said(hub.serve(0.1), GONE), "the connection that was replaced is nobody's end"
    second.close()
    assert said(heard(hub), GONE)


@pytest.mark.parametrize(
    "answer",
    [
        b'{"proof": "0000", "rank": 1, "facts": {}}\n',
        b'{"rank": 1, "facts": {}}\n',
        b'{"proof": 7, "rank": 1}\n',
        b'{"proof": null}\n',
        '{"proof": "\u00fc"}\n'.encode(),
        b'{"word": "joined"}\n',
    ],
    ids=["wrong", "none", "a number", "null", "not ASCII", "a word without a proof"],
)
def test_a_wrong_proof_is_closed_at_once(hub: Hub, answer: bytes) -> None:
    connection, _ = stranger(hub)
    connection.sendall(answer)
    assert hub.serve(0.2) == [] and is_closed(connection) and not hub.ranks
    connection.close()


def test_a_proof_is_good_for_one_connection(hub: Hub) -> None:
    first, nonce = stranger(hub)
    second, other = stranger(hub)
    assert nonce != other
    second.sendall(json.dumps({"proof": proof(SECRET, nonce), "rank": 1, "facts": {}}).encode() + b"\n")
    assert hub.serve(0.2) == [] and is_closed(second)
    first.close()
    second.close()


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\x00\n", b"[1]\n", b"[" * 60_000 + b"\n", b"\n\n\n"],
    ids=["HTTP", "bytes", "no object", "deep", "empty"],
)
def test_noise_of_a_stranger_does_no_harm(hub: Hub, noise: bytes) -> None:
    connection, nonce = stranger(hub)
    connection.sendall(noise)
    assert hub.serve(0.1) == []
    connection.sendall(json.dumps({"proof": proof(SECRET, nonce), "rank": 3, "facts": {"a": 1}}).encode() + b"\n")
    assert heard(hub) == [Word(3, "hello", {"a": 1})]
    connection.close()


def test_a_line_without_an_end_is_cut_off(hub: Hub) -> None:
    connection, _ = stranger(hub)
    connection.settimeout(0.2)
    sent = 0
    with pytest.raises(OSError):
        while sent < 100 * hub_module.LONGEST_LINE:
            sent += connection.send(b"x" * 4096)
            hub.serve(0)
    assert sent < 40 * hub_module.LONGEST_LINE
    connection.close()


def test_torn_lines_are_put_together(hub: Hub) -> None:
    connection, nonce = stranger(hub)
    text = json.dumps({"proof": proof(SECRET, nonce), "rank": 2, "facts": {}}) + '\n{"word": "joi'
    for letter in text:
        connection.sendall(letter.encode())
    assert heard(hub) == [Word(2, "hello", {})]
    connection.sendall(b'ned"}\n{"word": "bye"}\n')
    assert [word.word for word in heard(hub)] == ["joined", "bye"]
    connection.close()


def test_a_stranger_that_never_proves_itself_is_closed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    connection, _ = stranger(hub)
    line = dial(hub)
    monkeypatch.setattr(hub_module, "STRANGER_S", 0.2)
    time.sleep(0.3)
    hub.serve(0.05)
    assert is_closed(connection) and hub.ranks == {1}
    connection.close()
    line.close()


@pytest.mark.parametrize(
    "greeting",
    [b"SSH-2.0-x\r\n", b'{"word": "nonce"}\n', b'{"nonce": 1}\n', b'{"a": 1}\n{"b": 2}\n', b""],
    ids=["ssh", "no nonce", "a number", "two lines", "closed"],
)
def test_what_is_not_the_head_is_told_apart(greeting: bytes) -> None:
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(greeting)
                connection.recv(1) if greeting else None

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match="what listens there is not the head of this run"):
            connect([HERE], port, secret=SECRET, rank=1, facts={}, timeout_s=300)
        thread.join()


def test_the_next_address_is_tried(hub: Hub) -> None:
    nowhere = "240.0.0.1"
    lines: list[Line] = []
    caller = threading.Thread(
        target=lambda: lines.append(connect([nowhere, HERE], hub.port, secret=SECRET, rank=1, facts={}, timeout_s=4))
    )
    caller.start()
    while caller.is_alive():
        hub.serve(0.01)
    hub.serve(0.1)
    assert hub.ranks == {1}
    lines[0].close()


def test_nobody_answers() -> None:
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match=f"{HERE}:{port}: "):
        connect([HERE], port, secret=SECRET, rank=1, facts={}, timeout_s=300)


@pytest.mark.alone
def test_two_thousand_workers(hub: Hub) -> None:
    """More than one select(2) could watch; each is heard, and the end is announced to all."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4200:
        pytest.skip(f"needs 4200 open files, the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4200), hard))
    connections = []
    try:
        for rank in range(1, 2001):
            connection = socket.create_connection((HERE, hub.port), timeout=300)
            connections.append(connection)
            if rank % 100 == 0:
                hub.serve(0)
        while len(hub._strangers) < 2000:
            hub.serve(0.1)
        began = time.process_time()
        for rank, connection in enumerate(connections, 1):
            nonce = json.loads(connection.recv(4096))["nonce"]
            connection.sendall(json.dumps({"proof": proof(SECRET, nonce), "rank": rank, "facts": {}}).encode() + b"\n")
        hellos: list[Word] = []
        while len(hellos) < 2000:
            hellos += said(hub.serve(0.1), "hello")
        hub.announce("done")
        assert hub.ranks == set(range(1, 2001)) == {word.rank for word in hellos}
        assert all(json.loads(connection.recv(4096)) == {"word": "done"} for connection in connections)
        assert time.process_time() - began < 5
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
