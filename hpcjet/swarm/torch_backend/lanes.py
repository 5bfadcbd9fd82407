"""Threads that each run torch on one core: small products of matrices are not worth sharing, rows are."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any


class Lanes:
    """As many threads as torch may use here. What is run must not depend on which of them runs it."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._threads = 0

    def run(self, function: Callable[..., Any], *arguments: Sequence[Any]) -> list[Any]:
        """The results of all calls, in their order. Raises what the first of them raised."""
        import torch

        threads = torch.get_num_threads()
        if threads == 1 or len(arguments[0]) == 1:
            return list(map(function, *arguments))
        if threads != self._threads:
            self._start(threads)
        assert self._pool is not None
        return list(self._pool.map(function, *arguments))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._pool, self._threads = None, 0

    def _start(self, threads: int) -> None:
        import torch

        self.close()
        self._pool, self._threads = ThreadPoolExecutor(threads, thread_name_prefix="lane"), threads
        all_there = Barrier(threads)

        def begin() -> None:
            # Of the calling thread alone, but threads that start later take it over: so it is set back below.
            torch.set_num_threads(1)
            all_there.wait()

        for each in [self._pool.submit(begin) for _ in range(threads)]:
            each.result()
        torch.set_num_threads(threads)
