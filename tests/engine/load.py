"""A lean load generator: keep-alive connections over raw asyncio, each with one request at a time."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Result:
    """What came of a load."""

    wall_s: float = 0.0
    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        return self.statuses[200] / self.wall_s

    def quantile_ms(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True)
class Target:
    """Where one connection asks, and as whom."""

    host: str
    port: int
    path: str
    key: str
    session: str = ""
    body: bytes = b""

    def request(self) -> bytes:
        session = f"X-Session-ID: {self.session}\r\n" if self.session else ""
        head = (
            f"POST {self.path}/chat/completions HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {self.key}\r\n"
            f"{session}Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n\r\n"
        )
        return head.encode() + self.body


class Asker(asyncio.Protocol):
    """One connection that asks again as soon as it is answered, until the time is over."""

    def __init__(self, target: Target, result: Result, until: float, done: "asyncio.Future[None]") -> None:
        self._request, self._result, self._until, self._done = target.request(), result, until, done
        self._buffer, self._need, self._began = b"", -1, 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._ask()

    def connection_lost(self, _: Exception | None) -> None:
        if not self._done.done():
            self._result.statuses[0] += 1
            self._done.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._need < 0:
            at = self._buffer.find(b"\r\n\r\n")
            if at < 0:
                return
            head = self._buffer[:at].lower()
            self._need = at + 4 + int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self._buffer) >= self._need:
            self._result.statuses[int(self._buffer[9:12])] += 1
            self._result.seconds.append(time.perf_counter() - self._began)
            self._ask()

    def _ask(self) -> None:
        self._buffer, self._need = b"", -1
        self._began = time.perf_counter()
        if self._began >= self._until:
            self._done.set_result(None)
            self._transport.close()
        else:
            self._transport.write(self._request)


async def load(targets: list[Target], *, seconds: float) -> Result:
    """One connection for each target, all asking for so many seconds."""
    loop = asyncio.get_running_loop()
    result, began = Result(), time.perf_counter()
    waits = []
    for target in targets:
        done: asyncio.Future[None] = loop.create_future()
        await loop.create_connection(
            lambda target=target, done=done: Asker(target, result, began + seconds, done), target.host, target.port
        )
        waits.append(done)
    await asyncio.gather(*waits)
    result.wall_s = time.perf_counter() - began
    return result


def body(*, size: int, model: str = "stub") -> bytes:
    """A request whose conversation has about `size` bytes."""
    text = "word " * max(1, size // 20)
    messages = [{"role": role, "content": text} for role in ("system", "user", "assistant", "user")]
    return json.dumps({"model": model, "messages": messages}).encode()
