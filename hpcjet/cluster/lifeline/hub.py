"""The head's side."""

import contextlib
import secrets
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcjet.cluster.lifeline import wire
from hpcjet.cluster.lifeline.proofs import proves

STRANGER_S = 10.0
"""A connection that has not proved itself by then is closed."""
LONGEST_LINE = 64 * 1024
MOST_UNSENT = 1024 * 1024
"""Bytes that wait for a peer that does not read; one with more is as good as gone."""
BACKLOG = 4096
MOST_REFUSALS = 64
"""Refusals that are remembered until they are asked for: strangers must not fill the memory."""

REFUSED = "refused"
"""The head to a worker that may not join, before it hangs up; facts: reason, and again: whether a later try may do."""
OLDER = "it belongs to an earlier start of this run"
STRANGER = "it does not know the secret of this run"
MALFORMED = "what it says of itself cannot be understood"


@dataclass(eq=False)
class Peer:
    """A worker's connection, as the head sees it."""

    socket: socket.socket
    nonce: str
    since: float
    address: str = ""
    rank: int | None = None
    """None until it has proved itself."""
    member: str = ""
    """Its name among the nodes of all allocations; empty where ranks do."""
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    is_dismissed: bool = False
    """What it still says does not count."""

    @property
    def key(self) -> str:
        return self.member or str(self.rank)


@dataclass(frozen=True)
class Word:
    """Something a worker said, or that its connection ended: then the word is `gone`."""

    rank: int
    word: str
    facts: dict[str, Any]
    member: str = ""


@dataclass(frozen=True)
class Refusal:
    """A connection that was not let in."""

    peer: str
    """Its address."""
    reason: str
    member: str = ""
    """Where it proved to be one."""


GONE = "gone"


def said(words: Sequence[Word], word: str) -> list[Word]:
    """Those of the words that say this."""
    return [each for each in words if each.word == word]


class Hub:
    """The head's side. All of it happens within `serve`, in the caller's thread.

    A peer is known by its member's name, or by its rank where it gives none. Who proves to know one of the `earlier`
    secrets is told why it is refused.
    """

    def __init__(self, port: int, *, secret: str, earlier: Sequence[str] = ()) -> None:
        self._secret, self._earlier = secret, tuple(earlier)
        self._selector = selectors.DefaultSelector()
        self._peers: dict[str, Peer] = {}
        self._strangers: set[Peer] = set()
        self._behind: set[Peer] = set()
        self._refusals: deque[Refusal] = deque(maxlen=MOST_REFUSALS)
        self._said: dict[str, bytes] = {}
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("0.0.0.0", port))
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    @property
    def port(self) -> int:
        """Where it listens; asked for 0, the kernel chose."""
        return int(self._listener.getsockname()[1])

    @property
    def ranks(self) -> set[int]:
        """The workers that are connected."""
        return {peer.rank for peer in self._peers.values() if peer.rank is not None}

    @property
    def members(self) -> set[str]:
        """The same by name."""
        return set(self._peers)

    def refusals(self) -> list[Refusal]:
        """Who was not let in since the last call."""
        found = list(self._refusals)
        self._refusals.clear()
        return found

    def serve(self, timeout_s: float) -> list[Word]:
        """What workers said within `timeout_s`; returns as soon as somebody said something."""
        words = self._catch_up()
        deadline = time.monotonic() + timeout_s
        while not words:
            left_s = deadline - time.monotonic()
            for key, _ in self._selector.select(max(0.0, left_s)):
                words += self._accept() if key.data is None else self._read(key.data)
            self._drop_strangers()
            if left_s <= 0:
                break
        return words

    def announce(self, word: str, **facts: Any) -> None:
        """Say something to all workers, and to those that come later; the newest facts of a word hold."""
        self._said[word] = wire.line({"word": word, **facts})
        for peer in list(self._peers.values()):
            self._send(peer, self._said[word])

    def tell(self, whom: int | str, word: str, **facts: Any) -> None:
        """Say something to one worker, by rank or member; nothing happens if it is not there."""
        if peer := self._peers.get(str(whom)):
            self._send(peer, wire.line({"word": word, **facts}))

    def refuse(self, whom: int | str, reason: str, *, again: bool = False) -> None:
        """Tell a worker that it may not join, and be rid of it: its end is nobody's loss."""
        if peer := self._peers.pop(str(whom), None):
            self._dismiss(peer, reason, again=again)

    def close(self) -> None:
        for peer in [*self._peers.values(), *self._strangers]:
            peer.socket.close()
        self._listener.close()
        self._selector.close()

    def _accept(self) -> list[Word]:
        with contextlib.suppress(OSError):
            while True:
                connection, address = self._listener.accept()
                wire.keep_alive(connection)
                connection.setblocking(False)
                peer = Peer(connection, secrets.token_hex(16), time.monotonic(), address=str(address[0]))
                self._strangers.add(peer)
                self._selector.register(connection, selectors.EVENT_READ, peer)
                self._send(peer, wire.line({"word": "nonce", "nonce": peer.nonce}))
        return []

    def _read(self, peer: Peer) -> list[Word]:
        ended = wire.receive(peer.socket, peer.received)
        words: list[Word] = []
        for said in wire.lines(peer.received):
            if peer.is_dismissed:
                continue
            if peer.rank is not None:
                words += _words(peer, said)
            elif proves(said.get("proof"), secret=self._secret, nonce=peer.nonce):
                words += self._admit(peer, said)
            elif any(proves(said.get("proof"), secret=each, nonce=peer.nonce) for each in self._earlier):
                self._dismiss(peer, OLDER, again=True)
            else:
                self._refusals.append(Refusal(peer.address, STRANGER))
                ended = True
                break
        if ended or len(peer.received) > LONGEST_LINE:
            words += self._part(peer)
        return words

    def _admit(self, peer: Peer, said: dict[str, Any]) -> list[Word]:
        rank, member, facts = said.get("rank"), said.get("member", ""), said.get("facts")
        if not (isinstance(rank, int) and isinstance(member, str) and isinstance(facts, dict)):
            self._dismiss(peer, MALFORMED, again=False)
            return []
        self._strangers.discard(peer)
        peer.rank, peer.member = rank, member
        earlier = self._peers.get(peer.key)
        self._peers[peer.key] = peer
        words = [Word(rank, "hello", facts, member)]
        if earlier:
            self._forget(earlier)
        for line in self._said.values():
            self._send(peer, line)
        return words

    def _dismiss(self, peer: Peer, reason: str, *, again: bool) -> None:
        """It is told why. It hangs up itself, or is cut off with the strangers: closed now, it might never read it."""
        self._refusals.append(Refusal(peer.address, reason, peer.member))
        self._send(peer, wire.line({"word": REFUSED, "reason": reason, "again": again}))
        peer.is_dismissed, peer.since = True, time.monotonic()
        self._strangers.add(peer)

    def _part(self, peer: Peer) -> list[Word]:
        self._forget(peer)
        self._strangers.discard(peer)
        if peer.rank is None or self._peers.get(peer.key) is not peer:
            return []
        del self._peers[peer.key]
        return [Word(peer.rank, GONE, {}, peer.member)]

    def _forget(self, peer: Peer) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.socket)
        peer.socket.close()
        self._behind.discard(peer)

    def _send(self, peer: Peer, line: bytes) -> None:
        peer.unsent += line
        self._behind.discard(peer) if _flush(peer) else self._behind.add(peer)

    def _catch_up(self) -> list[Word]:
        """Send what a full buffer did not take before; who lets too much lie is parted with."""
        words: list[Word] = []
        for peer in list(self._behind):
            if _flush(peer):
                self._behind.discard(peer)
            elif len(peer.unsent) > MOST_UNSENT:
                words += self._part(peer)
        return words

    def _drop_strangers(self) -> None:
        for peer in [each for each in self._strangers if time.monotonic() > each.since + STRANGER_S]:
            self._part(peer)


def _flush(peer: Peer) -> bool:
    """Whether nothing is left to send. A connection that is broken takes nothing more; reading tells of its end."""
    try:
        while peer.unsent:
            del peer.unsent[: peer.socket.send(peer.unsent)]
    except BlockingIOError:
        return False
    except OSError:
        peer.unsent.clear()
    return True


def _words(peer: Peer, said: dict[str, Any]) -> list[Word]:
    word = said.pop("word", None)
    return [Word(peer.rank or 0, word, said, peer.member)] if isinstance(word, str) else []
