"""Many questions in one call: those that come within a moment, or had no answer yet."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")

POLL_S = 20.0
"""So long a call waits for an answer; then its questions go again, together with others."""
COLLECT_S = 0.005
"""Between two calls, at least. A question never waits behind one that has no answer yet: that may wait for just it."""


@dataclass(eq=False)
class Asked(Generic[Question, Answer]):
    question: Question
    deadline: float
    answer: asyncio.Future[Answer | None]


class Together(Generic[Question, Answer]):
    """`ask` takes questions and how many seconds it may wait until one of them has an answer; None: not yet.

    What it raises is raised to all whom it was asked for.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[Question], float], Awaitable[Sequence[Answer | None]]],
        pause: Callable[[], float] = lambda: COLLECT_S,
    ) -> None:
        """`pause`: seconds between two calls, in which questions are collected."""
        self.calls = 0
        self._pause = pause
        self._ask = ask
        self._waiting: list[Asked[Question, Answer]] = []
        self._fresh: list[Asked[Question, Answer]] = []
        """Those of them that are in no call."""
        self._open: set[asyncio.Task[None]] = set()
        self._sender: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> list[Question]:
        return [asked.question for asked in self._waiting]

    async def ask(self, question: Question, timeout_s: float) -> Answer | None:
        """None if there was no answer in time."""
        answer: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        asked = Asked(question, time.monotonic() + timeout_s, answer)
        self._waiting.append(asked)
        self._send([asked])
        return await answer

    def _send(self, batch: Sequence[Asked[Question, Answer]]) -> None:
        self._fresh += batch
        if self._fresh and (self._sender is None or self._sender.done()):
            self._sender = asyncio.ensure_future(self._send_all())

    async def _send_all(self) -> None:
        while self._fresh:
            batch, self._fresh = self._fresh, []
            call = asyncio.ensure_future(self._call(batch))
            self._open.add(call)
            call.add_done_callback(self._open.discard)
            await asyncio.sleep(self._pause())

    async def _call(self, batch: Sequence[Asked[Question, Answer]]) -> None:
        left = max(asked.deadline for asked in batch) - time.monotonic()
        self.calls += 1
        try:
            answers = await self._ask([asked.question for asked in batch], max(0.0, min(left, POLL_S)))
        except Exception as error:
            self._fail(batch, error)
            return
        again = []
        for asked, answer in zip(batch, answers, strict=True):
            if answer is None and time.monotonic() < asked.deadline:
                again.append(asked)
            else:
                self._end(asked, answer)
        self._send(again)

    def _end(self, asked: Asked[Question, Answer], answer: Answer | None) -> None:
        self._waiting.remove(asked)
        if not asked.answer.done():
            asked.answer.set_result(answer)

    def _fail(self, batch: Sequence[Asked[Question, Answer]], error: Exception) -> None:
        for asked in batch:
            self._waiting.remove(asked)
            if not asked.answer.done():
                asked.answer.set_exception(error)
