"""Many questions in one call: what comes while a call is on its way goes with the next one."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")

POLL_S = 1.0
"""What came meanwhile waits at most so long behind what has no answer yet."""


@dataclass(eq=False)
class Asked(Generic[Question, Answer]):
    question: Question
    deadline: float
    answer: asyncio.Future[Answer | None]


class Together(Generic[Question, Answer]):
    """`ask` takes questions and how many seconds it may wait until one of them has an answer; None: not yet.

    One call of it is on its way at a time. What it raises is raised to all whom it was asked for.
    """

    def __init__(self, ask: Callable[[Sequence[Question], float], Awaitable[Sequence[Answer | None]]]) -> None:
        self.calls = 0
        self._ask = ask
        self._waiting: list[Asked[Question, Answer]] = []
        self._sender: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> list[Question]:
        return [asked.question for asked in self._waiting]

    async def ask(self, question: Question, timeout_s: float) -> Answer | None:
        """None if there was no answer in time."""
        answer: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(Asked(question, time.monotonic() + timeout_s, answer))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.ensure_future(self._send())
        return await answer

    async def _send(self) -> None:
        while self._waiting:
            batch = list(self._waiting)
            left = max(asked.deadline for asked in batch) - time.monotonic()
            self.calls += 1
            try:
                answers = await self._ask([asked.question for asked in batch], max(0.0, min(left, POLL_S)))
            except Exception as error:
                self._fail(batch, error)
                continue
            for asked, answer in zip(batch, answers, strict=True):
                if answer is not None or time.monotonic() >= asked.deadline:
                    self._end(asked, answer)

    def _end(self, asked: Asked[Question, Answer], answer: Answer | None) -> None:
        self._waiting.remove(asked)
        if not asked.answer.done():
            asked.answer.set_result(answer)

    def _fail(self, batch: Sequence[Asked[Question, Answer]], error: Exception) -> None:
        for asked in batch:
            self._waiting.remove(asked)
            if not asked.answer.done():
                asked.answer.set_exception(error)
