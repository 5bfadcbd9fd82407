"""What hpcjet doctor finds between nodes, with real sockets, files and a real ring of processes; what it says of it."""

import errno
import json
import os
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from free_port import free_port

from hpcjet.doctor import allreduce, clock, reach, shared_files
from hpcjet.doctor.allreduce import Part
from hpcjet.doctor.line import Level
from hpcjet.doctor.post import Client, Post


@pytest.fixture
def answers() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def post(answers: list[dict[str, Any]]) -> Any:
    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        answers.append(asked)
        return {"heard": asked["word"]}

    post = Post("127.0.0.1", 0, secret="s", answer=answer)
    yield post
    post.close()


def test_nodes_talk(post: Post, answers: list[dict[str, Any]]) -> None:
    client = Client("127.0.0.1", post.port, secret="s", timeout_s=300)
    assert client.ask("see", word="x") == {"heard": "x"} and answers == [{"ask": "see", "word": "x"}]
    assert abs(client.ask("time")["time"] - time.time()) < 60
    client.close()


def test_a_stranger_is_told_nothing(post: Post, answers: list[dict[str, Any]]) -> None:
    with pytest.raises(OSError, match="closed the connection"):
        Client("127.0.0.1", post.port, secret="another", timeout_s=300)
    with socket.create_connection(("127.0.0.1", post.port)) as stranger:
        stranger.sendall(b'{"ask": "see", "word": "x"}\n' * 3)
        stranger.settimeout(300)
        heard = b""
        try:
            while part := stranger.recv(4096):
                heard += part
        except ConnectionResetError:
            pass
        assert set(json.loads(heard)) == {"nonce"}
    assert answers == []


@pytest.mark.parametrize("ahead_s", [0.0, 7.5, -3.2])
def test_a_clock_that_is_off(ahead_s: float) -> None:
    """Answers take up to 20 ms there and back, not alike in both directions: the quickest is trusted."""
    delays = iter([0.02, 0.003] * clock.ASKED)

    def ask() -> float:
        time.sleep(next(delays))
        told = time.time() - ahead_s
        time.sleep(0.001)
        return told

    found = clock.look(ask)
    assert found["offset_s"] == pytest.approx(ahead_s, abs=found["round_trip_s"] / 2 + 1e-4)
    line = clock.assess("n2", "n1", found)
    if not ahead_s:
        assert line.level is Level.ok and "n1 and n2: the same (known to" in line.text
    else:
        way = "7.5 s ahead of" if ahead_s > 0 else "3.2 s behind"
        assert line.level is Level.warn and line.text.startswith(f"n2 is {way} n1") and "chrony" in line.do


def test_a_difference_within_what_can_be_known_is_none() -> None:
    assert "the same" in clock.assess("n2", "n1", {"offset_s": 0.0004, "round_trip_s": 0.001}).text
    assert "40.0 ms apart" in clock.assess("n2", "n1", {"offset_s": -0.04, "round_trip_s": 0.001}).text
    # The answer took so long that two seconds may be none.
    assert clock.assess("n2", "n1", {"offset_s": 2.0, "round_trip_s": 3.0}).level is Level.ok


def test_files_are_seen_when_they_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = threading.Timer(0.2, shared_files.write, (tmp_path, "canary", "word"))
    (tmp_path / "canary").write_text("an older word")
    began = time.monotonic()
    late.start()
    asked = time.monotonic()
    waited = shared_files.await_file(tmp_path, "canary", "word")
    assert waited is not None and 0.2 - (asked - began) <= waited + 0.01 and waited <= time.monotonic() - asked
    monkeypatch.setattr(shared_files, "SEEN_WITHIN_S", 0.1)
    assert shared_files.await_file(tmp_path, "another", "word") is None


@pytest.mark.parametrize(
    ("there", "back", "level", "text"),
    [
        (0.001, 0.03, "ok", "n1 and n2 see what the other writes within 0.03 s"),
        (0.1, 4.5, "warn", "within 4.50 s"),
        (None, 0.1, "fail", "n1 does not see what n2 writes (within 20 s)"),
        (None, None, "fail", "n1 does not see what n2 writes and n2 does not see what n1 writes"),
    ],
)
def test_shared_files(there: float | None, back: float | None, level: str, text: str) -> None:
    line = shared_files.assess("n2", "n1", {"there": there, "back": back})
    assert line.level.value == level and text in line.text and ("run.root=" in line.do) == (level != "ok")


ERRORS = {
    "firewall that drops": (TimeoutError("timed out"), "n2 does not reach n1 at 10.3.0.1:12000: no answer", "firewall"),
    "refused": (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "Connection refused", "in between"),
    "no route": (OSError(errno.EHOSTUNREACH, "No route to host"), "No route to host", "cluster.interface=NAME"),
    "stranger": (ConnectionError("the other side closed the connection"), "closed the connection", "firewall"),
}


@pytest.mark.parametrize(("error", "text", "do"), ERRORS.values(), ids=ERRORS)
def test_ports_that_are_not_reached(error: OSError, text: str, do: str) -> None:
    well, ill = reach.facts_of(None), reach.facts_of(error)
    where = {"head": "10.3.0.1:12000", "own": "10.3.0.2:12000"}
    (line,) = reach.assess("n2", "n1", {**where, "there": ill, "back": well})
    assert line.level is Level.fail and text in line.text and do in line.do
    (both,) = reach.assess("n2", "n1", {**where, "there": ill, "back": ill})
    assert "n2 does not reach n1" in both.text and "n1 does not reach n2 at 10.3.0.2:12000" in both.text
    (line,) = reach.assess("n2", "n1", {**where, "there": well, "back": well})
    assert line.level is Level.ok and line.text == "n1 (10.3.0.1:12000) and n2 (10.3.0.2:12000) reach each other"
    (line,) = reach.assess("n2", "n1", {**where, "there": well, "back": None})
    assert line.level is Level.fail


def test_a_port_without_anybody_is_refused() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError) as caught:
            Client("127.0.0.1", bound.getsockname()[1], secret="s", timeout_s=300)
    assert reach.facts_of(caught.value) == {"reached": False, "how": "refused", "error": "Connection refused"}


def parts(count: int, **more: Any) -> list[Part]:
    """The parts of so many nodes, all on this machine."""
    peers = [("127.0.0.1", free_port()) for _ in range(count)]
    usual = {"peers": peers, "megabytes": 1, "torch": False, "timeout_s": 300.0, "secret": secrets.token_hex(8)}
    return [Part(rank=rank, **{**usual, **more}) for rank in range(count)]


@pytest.mark.parametrize("count", [2, 3])
def test_a_ring_of_processes_sums_up(count: int) -> None:
    with ThreadPoolExecutor(count) as pool:
        found = list(pool.map(lambda part: allreduce.look(part, {}), parts(count)))
    for each in found:
        assert each["kind"] == "TCP" and each["seconds"] > 0, each
        assert each["bytes"] == pytest.approx(2**20, abs=8 * count)


@pytest.mark.skipif(not allreduce.has_torch(), reason="torch is not installed")
def test_gloo_sums_up() -> None:
    with ThreadPoolExecutor(2) as pool:
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        found = list(pool.map(lambda part: allreduce.look(part, env), parts(2, torch=True, timeout_s=300.0)))
    for each in found:
        assert each["kind"] == "gloo" and each["bytes"] == 2**20 and each["seconds"] > 0, each


def test_sums_of_lanes_and_a_sum_that_is_wrong() -> None:
    one, other = (
        b"".join(value.to_bytes(8, "little") for value in values) for values in ((1, 2**40, 3), (5, 6, 2**50))
    )
    assert allreduce._sum(one, other) == b"".join(v.to_bytes(8, "little") for v in (6, 2**40 + 6, 2**50 + 3))
    with pytest.raises(ValueError, match="came out as 4: this network changes data"):
        allreduce._check(4, 2)


def test_a_ring_whose_neighbour_never_comes_is_an_error_not_a_hang() -> None:
    (mine, _) = parts(2, timeout_s=1.0)
    begin = time.monotonic()
    found = allreduce.look(mine, {})
    assert "error" in found and time.monotonic() - begin < 100
    line = allreduce.assess(found, nodes=2, mbit=None)
    assert line.level is Level.fail and "with TCP it failed" in line.text and line.do


def test_a_stranger_does_not_get_into_the_ring() -> None:
    mine, other = parts(2)
    stranger = replace(other, secret="another")
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda part: allreduce.look(replace(part, timeout_s=3.0), {}), (mine, stranger)))
    assert all("error" in each for each in found), found


@pytest.mark.parametrize(
    ("seconds", "mbit", "level", "text"),
    [
        (0.016, 10_000, "ok", "16 MiB over 2 nodes: 1.05 GB/s (plain TCP, as there is no torch)"),
        (0.2, 1_000, "ok", "0.08 GB/s"),
        (0.1, 200_000, "ok", "0.17 GB/s"),
        (1.6, 200_000, "warn", "0.01 GB/s (plain TCP, as there is no torch); the interface says 200 Gbit/s"),
        (1.6, None, "warn", "slow for a cluster"),
    ],
)
def test_the_speed(seconds: float, mbit: int | None, level: str, text: str) -> None:
    facts = {"kind": "TCP", "bytes": 16 * 2**20, "seconds": seconds}
    line = allreduce.assess(facts, nodes=2, mbit=mbit)
    assert line.level.value == level and text in line.text and bool(line.do) == (level != "ok")
    assert "torch's gloo" in allreduce.assess({**facts, "kind": "gloo"}, nodes=2, mbit=mbit).text


def test_gloo_that_fails_points_to_other_ports() -> None:
    failed = {"kind": "gloo", "error": "RuntimeError: Gloo connectFullMesh failed"}
    line = allreduce.assess(failed, nodes=2, mbit=None)
    assert line.level is Level.fail and "connectFullMesh" in line.text and "32768" in line.do
