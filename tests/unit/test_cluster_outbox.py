"""What a child tells the node agent, on a real pipe: nothing is lost, nothing waits, and grandchildren have no part."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpcjet.cluster import outbox
from hpcjet.cluster.child import Child
from hpcjet.cluster.outbox import IDLE, OUTBOX, Hearing, Outbox

ROOT = Path(__file__).parents[2]


def child(tmp_path: Path, body: str, *, outbox: bool = True) -> Child:
    code = f"import os, subprocess, sys, time\nfrom hpcjet.cluster.outbox import Outbox\n{body}"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return Child("talker", [sys.executable, "-c", code], env=env, log=tmp_path / "log", outbox=outbox)


def heard(talker: Child, count: int, timeout_s: float = 300) -> list[dict[str, Any]]:
    words: list[dict[str, Any]] = []
    deadline = time.monotonic() + timeout_s
    while len(words) < count:
        assert time.monotonic() < deadline, f"heard only {words}; {talker.log.read_text()}"
        words += talker.heard()
        time.sleep(0.01)
    return words


def test_words_of_a_child_are_heard_and_so_are_its_last(tmp_path: Path) -> None:
    talker = child(tmp_path, "out = Outbox.from_env(os.environ)\nout.say('idle', member='7-0:1')\n"
                             "sys.stdin.readline()\nout.say('note', event='x', facts={'a': 1})\n")  # fmt: skip
    assert heard(talker, 1) == [{"word": IDLE, "member": "7-0:1"}]
    assert talker.heard() == []
    talker.say("go on")
    assert talker.wait(300) == 0
    assert talker.heard() == [{"word": "note", "event": "x", "facts": {"a": 1}}]
    assert talker.heard() == []
    talker.stop(1)
    assert talker.heard() == []


def test_without_a_node_agent_nothing_is_said() -> None:
    for env in ({}, {OUTBOX: "x"}, {OUTBOX: "9999"}, {OUTBOX: "1"}):
        Outbox.from_env(dict(env)).say("idle", member="1-0:1")
    Outbox().say("idle")


def test_a_child_without_an_outbox_says_nothing(tmp_path: Path) -> None:
    talker = child(tmp_path, "Outbox.from_env(os.environ).say('idle')\n", outbox=False)
    assert talker.wait(300) == 0 and talker.heard() == []
    talker.stop(1)


def test_what_the_child_starts_has_no_part_in_it(tmp_path: Path) -> None:
    looks = "import os, sys; print(os.environ.get('HPCJET_OUTBOX'), os.path.exists('/proc/self/fd/' + sys.argv[1]))"
    talker = child(tmp_path, "fd = os.environ['HPCJET_OUTBOX']\nout = Outbox.from_env(os.environ)\n"
                             f"subprocess.run([sys.executable, '-c', {looks!r}, fd], close_fds=False)\n"
                             "assert Outbox.from_env(os.environ)._descriptor is None\n")  # fmt: skip
    assert talker.wait(300) == 0
    assert talker.log.read_text() == "None False\n"
    talker.stop(1)


def test_many_words_from_threads_are_whole(tmp_path: Path) -> None:
    talker = child(tmp_path, "import threading\nout = Outbox.from_env(os.environ)\n"
                             "def talk(n):\n    for i in range(200): out.say('w', n=n, i=i, pad='x' * 9000)\n"
                             "threads = [threading.Thread(target=talk, args=(n,)) for n in range(4)]\n"
                             "[t.start() for t in threads]; [t.join() for t in threads]\n")  # fmt: skip
    words = heard(talker, 800)
    assert {(word["n"], word["i"]) for word in words} == {(n, i) for n in range(4) for i in range(200)}
    assert talker.wait(300) == 0
    talker.stop(1)


@pytest.mark.alone
def test_what_the_child_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    """The driver imports for seconds before it reads: the node agent has other things to do meanwhile."""
    talker = child(tmp_path, "time.sleep(1)\nout = Outbox.from_env(os.environ)\n"
                             "for line in sys.stdin: out.say('got', size=len(line))\n")  # fmt: skip
    began = time.monotonic()
    for size in range(100):
        talker.say("y" * (9_000 + size))
    assert time.monotonic() - began < 0.9, "it waited for the reader"
    assert [word["size"] for word in heard(talker, 100)] == [9_001 + size for size in range(100)]
    talker.stop(0)


def test_an_agent_that_is_gone_hurts_nobody() -> None:
    reading, writing = os.pipe()
    speaker = Outbox.from_env({OUTBOX: str(writing)})
    os.close(reading)
    speaker.say("idle", member="1-0:1")
    os.close(writing)


@pytest.mark.parametrize(
    "noise",
    [b"hello\n", b"[1]\n", b'{"a": 1}\n', b'{"word": 7}\n', b"\xff\n", b"[" * 60_000 + b"\n", b"\n\n",
     b"x" * (outbox.LONGEST_LINE + 9) + b"\n"],
    ids=["text", "list", "no word", "number", "bytes", "deep", "empty", "long"],
)  # fmt: skip
def test_noise_is_left_out(noise: bytes) -> None:
    hearing = Hearing()
    os.set_blocking(hearing.to_pass, False)
    words: list[dict[str, Any]] = []
    text = noise + b'{"word": "idle"}\n'
    while text:
        text = text[os.write(hearing.to_pass, text[:4096]) :]
        words += hearing.read()
    hearing.passed()
    words += hearing.read()
    assert words == [{"word": "idle"}]
    hearing.close()


def test_a_child_that_never_stops_talking_gets_a_bounded_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_AT_ONCE", 65_536)
    hearing = Hearing()
    os.set_blocking(hearing.to_pass, False)
    written = os.write(hearing.to_pass, b'{"word": "w"}\n' * 8192)
    turns = [len(hearing.read()), len(hearing.read())]
    hearing.passed()
    hearing.close()
    assert turns[0] == 65_536 // 14 and (written == 65_536 or turns[1] > 0)
