"""The lifeline: one TCP connection from each worker's node agent to the head's, for as long as the run lasts.

What is said on it is a few short lines of JSON. What counts is the connection itself: the kernel closes it when an
agent dies, however it dies, and keep-alive probes find a machine that lost its power. So the end of either side is
noticed at once, on any file system. A worker is heard once it has proved with the run's secret that it belongs to it.
Neither a slow peer nor a hostile one holds up the others: nothing here waits for a peer.
"""

import contextlib
import errno
import hashlib
import hmac
import json
import secrets
import selectors
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcjet.errors import NodeLostError

PROBE_AFTER_S, PROBE_EVERY_S, PROBES = 3, 1, 4
"""A machine that does not answer is given up after 7 seconds."""
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
        self._said[word] = _line({"word": word, **facts})
        for peer in list(self._peers.values()):
            self._send(peer, self._said[word])

    def tell(self, whom: int | str, word: str, **facts: Any) -> None:
        """Say something to one worker, by rank or member; nothing happens if it is not there."""
        if peer := self._peers.get(str(whom)):
            self._send(peer, _line({"word": word, **facts}))

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
                _keep_alive(connection)
                connection.setblocking(False)
                peer = Peer(connection, secrets.token_hex(16), time.monotonic(), address=str(address[0]))
                self._strangers.add(peer)
                self._selector.register(connection, selectors.EVENT_READ, peer)
                self._send(peer, _line({"word": "nonce", "nonce": peer.nonce}))
        return []

    def _read(self, peer: Peer) -> list[Word]:
        ended = _receive(peer.socket, peer.received)
        words: list[Word] = []
        for said in _lines(peer.received):
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
        self._send(peer, _line({"word": REFUSED, "reason": reason, "again": again}))
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


class HeadLostError(NodeLostError):
    """The node agent of the head is gone."""


class Line:
    """A worker's side."""

    def __init__(self, connection: socket.socket, *, head: str) -> None:
        self._socket, self._head = connection, head
        self._received = bytearray()
        self._connected = True

    def say(self, word: str, **facts: Any) -> None:
        """Tell the head; nothing happens if it is gone, which the next `hear` reports."""
        with contextlib.suppress(OSError):
            self._socket.sendall(_line({"word": word, **facts}))

    def hear(self, timeout_s: float) -> list[dict[str, Any]]:
        """What the head said within `timeout_s`. Raises HeadLostError if it is gone."""
        self._socket.settimeout(max(timeout_s, 0.001))
        said = list(_lines(self._received))
        if not said and self._connected:
            self._connected = not _receive(self._socket, self._received)
            said = list(_lines(self._received))
        if not said and not self._connected:
            raise HeadLostError(f"the connection to the node agent of the head, {self._head}, is gone")
        return said

    def close(self) -> None:
        self._socket.close()


def connect(
    addresses: Sequence[str],
    port: int,
    *,
    secret: str,
    rank: int,
    facts: dict[str, Any],
    timeout_s: float,
    member: str = "",
) -> Line:
    """Connect to the head at the first of its addresses that answers, and prove to belong to the run.

    `member` is the name by which the head knows this worker among all allocations; without one the rank does. Raises
    OSError with the last failure if none answers.
    """
    failure: OSError = OSError("the head has no address")
    for address in addresses:
        try:
            connection = socket.create_connection((address, port), timeout=timeout_s)
        except OSError as error:
            failure = type(error)(f"{address}:{port}: {error}")
            continue
        _keep_alive(connection)
        line = Line(connection, head=f"{address}:{port}")
        try:
            said = line.hear(timeout_s)
        except NodeLostError:
            said = []
        nonce = said[0].get("nonce") if said else None
        if not isinstance(nonce, str):
            connection.close()
            failure = OSError(f"{address}:{port}: what listens there is not the head of this run")
            continue
        answer = {"proof": proof(secret, nonce), "rank": rank, "facts": facts}
        try:
            connection.sendall(_line({**answer, "member": member} if member else answer))
        except OSError as error:
            connection.close()
            failure = type(error)(f"{address}:{port}: {error}")
            continue
        return line
    raise failure


def proof(secret: str, nonce: str) -> str:
    """What shows that one knows the secret, good for one connection. HMAC, RFC 2104."""
    return hmac.new(secret.encode(), f"hpcjet lifeline {nonce}".encode(), hashlib.sha256).hexdigest()


def proves(answer: object, *, secret: str, nonce: str) -> bool:
    """Whether a stranger's answer is the proof; it may be anything that JSON can say."""
    return _is(answer, proof(secret, nonce))


def heads_proof(secret: str, nonce: str) -> str:
    """What shows the head to a worker that gave it the nonce; good for nothing else."""
    return proof(secret, f"of the head {nonce}")


def proves_head(answer: object, *, secret: str, nonce: str) -> bool:
    """Whether who answers is the head: another program may listen where it did."""
    return _is(answer, heads_proof(secret, nonce))


def _is(answer: object, expected: str) -> bool:
    return isinstance(answer, str) and hmac.compare_digest(answer.encode(errors="replace"), expected.encode())


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    # Keep-alive waits while sent data is not acknowledged; this limits that case alike.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (PROBE_AFTER_S + PROBE_EVERY_S * PROBES))


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


def _receive(connection: socket.socket, into: bytearray) -> bool:
    """Append what has come; True when the other side is gone."""
    try:
        data = connection.recv(65_536)
    except BlockingIOError:
        return False
    except TimeoutError as error:
        # Nothing came in time; with an error number it is the kernel, whose probes were not answered.
        return error.errno == errno.ETIMEDOUT
    except OSError:
        return True
    into += data
    return not data


def _lines(received: bytearray) -> Iterator[dict[str, Any]]:
    while (end := received.find(b"\n")) >= 0:
        line = bytes(received[:end])
        del received[: end + 1]
        # A stranger's line may hold brackets deeper than the parser goes.
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(line)
            if isinstance(said, dict):
                yield said


def _line(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode() + b"\n"
