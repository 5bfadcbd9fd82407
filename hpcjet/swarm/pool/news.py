"""Waiting for an answer that comes when something changes."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Answer = TypeVar("Answer")


class News:
    """Waits until a question has an answer, asked again each time that something changed."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, ask: Callable[[], Answer], wait_s: float) -> Answer:
        """The first answer that is true, or the last one after `wait_s`."""
        deadline = time.monotonic() + wait_s
        while not (answer := ask()) and (left := deadline - time.monotonic()) > 0:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return answer
