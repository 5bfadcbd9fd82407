"""A pool's fragments on their way into the index: many in one call."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from hpcjet.swarm.pool.entry import Entry, Key
from hpcjet.swarm.pool.index import Verdict

Ask = Callable[[Sequence[tuple[Key, Entry]], float], Awaitable[Sequence[Verdict] | None]]
"""Verdicts on these, after so many seconds at most; None: ask again."""

POLL_S = 1.0
"""What came meanwhile waits at most so long behind what the index does not want yet."""


@dataclass(eq=False)
class Offer:
    key: Key
    entry: Entry
    deadline: float
    verdict: asyncio.Future[Verdict]


class Offers:
    """One call at a time is on its way; all that comes meanwhile goes with the next one."""

    def __init__(self, ask: Ask) -> None:
        self.calls = 0
        self._ask = ask
        self._waiting: list[Offer] = []
        self._sender: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> set[Key]:
        return {offer.key for offer in self._waiting}

    async def offer(self, key: Key, entry: Entry, timeout_s: float) -> Verdict:
        """The verdict; `wait` if there was none in time."""
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.append(Offer(key, entry, time.monotonic() + timeout_s, verdict))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.ensure_future(self._send())
        return await verdict

    async def _send(self) -> None:
        while self._waiting:
            batch = list(self._waiting)
            left = max(offer.deadline for offer in batch) - time.monotonic()
            self.calls += 1
            try:
                verdicts = await self._ask([(offer.key, offer.entry) for offer in batch], max(0.0, min(left, POLL_S)))
            except Exception as error:
                self._fail(batch, error)
                continue
            for offer, verdict in zip(batch, verdicts or [Verdict.wait] * len(batch), strict=True):
                self._decide(offer, verdict)

    def _decide(self, offer: Offer, verdict: Verdict) -> None:
        if verdict is Verdict.wait and time.monotonic() < offer.deadline:
            return
        self._waiting.remove(offer)
        if not offer.verdict.done():
            offer.verdict.set_result(verdict)

    def _fail(self, batch: list[Offer], error: Exception) -> None:
        """Whoever offered gets the error, and none waits for ever."""
        for offer in batch:
            self._waiting.remove(offer)
            if not offer.verdict.done():
                offer.verdict.set_exception(error)
