"""A small all-reduce over the chosen interface: with torch's gloo where all nodes have torch, else over a ring of TCP.

In a process of its own (`python -m hpcjet.doctor.allreduce`, its part as JSON on standard input): it may hang.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

from hpcjet.doctor.line import Facts, Line, fail, ok, warn
from hpcjet.doctor.post import proof

SUBJECT = "all-reduce"
ROUNDS = 3
LANE = 8
"""Bytes of one number."""
FILL = bytes((1, 0, 0, 0, 0, 0, 0, 0))
PLAIN_MOST = 0.5
"""GB/s that may be expected on any fast network of a ring in Python, or of gloo over TCP."""


@dataclass(frozen=True)
class Part:
    """One node's part."""

    rank: int
    peers: list[tuple[str, int]]
    """Address and port of every rank, in their order."""
    megabytes: int
    torch: bool
    timeout_s: float
    secret: str = field(repr=False)


def has_torch() -> bool:
    return find_spec("torch") is not None


def look(part: Part, env: Mapping[str, str]) -> Facts:
    """Do it; the facts, or `error`."""
    command = [sys.executable, "-m", "hpcjet.doctor.allreduce"]
    kind = "gloo" if part.torch else "TCP"
    try:
        done = subprocess.run(
            command,
            input=json.dumps(asdict(part)),
            env=dict(env),
            capture_output=True,
            text=True,
            timeout=part.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"kind": kind, "error": f"no end within {part.timeout_s:.0f} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"kind": kind, "error": lines[-1] if lines else f"exit code {done.returncode}"}
    found = json.loads(done.stdout.splitlines()[-1])
    return {"kind": kind, **found}


def assess(facts: Facts, *, nodes: int, mbit: int | None) -> Line:
    """Facts: `kind`, `bytes`, `seconds`; `mbit` is what the slowest interface says of itself."""
    if "error" in facts:
        do = "the ports of hpcjet's block are open, so look at those above: a firewall may drop ports from 32768 on"
        if facts["kind"] == "TCP":
            do = "try again; then look at the logs of the node agents, and ask the site about this network"
        return fail(SUBJECT, f"with {facts['kind']} it failed: {facts['error']}", do)
    rate = bus_bytes(facts["bytes"], nodes) / facts["seconds"] / 1e9
    by = "torch's gloo" if facts["kind"] == "gloo" else "plain TCP, as there is no torch"
    text = f"{facts['bytes'] >> 20} MiB over {nodes} nodes: {rate:.2f} GB/s ({by})"
    expected = min(mbit / 8000, PLAIN_MOST) if mbit else 0.1
    if rate < expected / 5:
        told = f"the interface says {mbit / 1000:g} Gbit/s" if mbit else "slow for a cluster"
        return warn(SUBJECT, f"{text}; {told}", "is it the right network? cluster.interface=NAME chooses another")
    return ok(SUBJECT, text)


def bus_bytes(size: int, nodes: int) -> float:
    """Bytes that every node must send for an all-reduce, whatever its way."""
    return 2 * (nodes - 1) / nodes * size


def run_part(part: Part) -> Facts:
    return _with_torch(part) if part.torch else _with_ring(part)


def _with_torch(part: Part) -> Facts:
    import torch
    import torch.distributed as dist

    address, port = part.peers[0]
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{address}:{port}",
        rank=part.rank,
        world_size=len(part.peers),
        timeout=timedelta(seconds=part.timeout_s),
    )
    best = float("inf")
    for _ in range(ROUNDS + 1):
        numbers = torch.full((part.megabytes * 2**20 // 4,), float(part.rank + 1))
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(numbers)
        best = min(best, time.perf_counter() - begin)
        _check(int(numbers[0]), len(part.peers))
    dist.destroy_process_group()
    return {"bytes": part.megabytes * 2**20, "seconds": best}


def _with_ring(part: Part) -> Facts:
    with contextlib.closing(Ring(part)) as ring:
        seconds = min(ring.sum_up() for _ in range(ROUNDS))
    return {"bytes": ring.size, "seconds": seconds}


class Ring:
    """A ring of the nodes: each sends to the next and hears from the one before."""

    def __init__(self, part: Part) -> None:
        self._rank, self._world = part.rank, len(part.peers)
        lanes = part.megabytes * 2**20 // LANE // self._world
        self._chunk = lanes * LANE
        self.size = self._chunk * self._world
        self._word = proof(part.secret, "ring").encode()
        address, port = part.peers[self._rank]
        with socket.create_server((address, port)) as listener:
            listener.settimeout(part.timeout_s)
            self._next = _connected(part.peers[(self._rank + 1) % self._world], part.timeout_s)
            self._next.sendall(self._word)
            self._before = self._accepted(listener)
        for each in (self._next, self._before):
            each.settimeout(part.timeout_s)

    def close(self) -> None:
        self._next.close()
        self._before.close()

    def sum_up(self) -> float:
        """One all-reduce, checked; the seconds that the data took, without those of Python's sums."""
        chunks = [FILL.replace(b"\x01", bytes((self._rank + 1,))) * (self._chunk // LANE) for _ in range(self._world)]
        seconds = 0.0
        for step in range(2 * (self._world - 1)):
            send, receive = (self._rank - step) % self._world, (self._rank - step - 1) % self._world
            got, took = self._exchange(chunks[send])
            seconds += took
            # The first half of the steps adds up, the second passes the sums on.
            chunks[receive] = _sum(chunks[receive], got) if step < self._world - 1 else got
        for chunk in chunks:
            _check(int.from_bytes(chunk[:LANE], "little"), self._world)
            _check(int.from_bytes(chunk[-LANE:], "little"), self._world)
        return seconds

    def _exchange(self, chunk: bytes) -> tuple[bytes, float]:
        self._pause()
        begin = time.perf_counter()
        sender = threading.Thread(target=self._next.sendall, args=(chunk,))
        sender.start()
        got = _received(self._before, len(chunk))
        sender.join()
        return got, time.perf_counter() - begin

    def _pause(self) -> None:
        """Until the neighbours are at the same step: their sums must not count as time of the network."""
        self._next.sendall(b".")
        _received(self._before, 1)

    def _accepted(self, listener: socket.socket) -> socket.socket:
        while True:
            connection, _ = listener.accept()
            connection.settimeout(5)
            with contextlib.suppress(OSError):
                if _received(connection, len(self._word)) == self._word:
                    return connection
            connection.close()


def _connected(peer: tuple[str, int], timeout_s: float) -> socket.socket:
    """To a peer that may not listen yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection = socket.create_connection(peer, timeout=timeout_s)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
            continue
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _received(connection: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionError("a neighbour in the ring closed the connection")
        view = view[count:]
    return bytes(buffer)


def _sum(one: bytes, other: bytes) -> bytes:
    """Lane by lane: no lane overflows, so the sum of the whole is the sum of each."""
    return (int.from_bytes(one, "little") + int.from_bytes(other, "little")).to_bytes(len(one), "little")


def _check(value: int, world: int) -> None:
    if value != world * (world + 1) // 2:
        raise ValueError(f"the sum of 1 to {world} came out as {value}: this network changes data")


def main() -> None:
    told: dict[str, Any] = json.load(sys.stdin)
    part = Part(**{**told, "peers": [(address, port) for address, port in told["peers"]]})
    print(json.dumps(run_part(part)), flush=True)
    # torch's threads can outlive the group, and then the end of the interpreter ends the process with SIGABRT.
    os._exit(0)


if __name__ == "__main__":
    main()
