"""Threads that each run torch on one core: small products of matrices are not worth sharing, rows are."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from typing import Any

_pools: dict[int, ThreadPoolExecutor] = {}
_lock = Lock()


def in_lanes(function: Callable[[int], Any], numbers: Sequence[int]) -> None:
    """Call it with each number, on as many threads as torch may use here. Raises what the first of them raised.

    What comes of it must not depend on which thread runs what.
    """
    import torch

    threads = torch.get_num_threads()
    if threads == 1 or len(numbers) == 1:
        for number in numbers:
            function(number)
        return
    for _ in _pool(threads).map(function, numbers):
        pass


def _pool(threads: int) -> ThreadPoolExecutor:
    with _lock:
        if threads not in _pools:
            _pools[threads] = _started(threads)
        return _pools[threads]


def _started(threads: int) -> ThreadPoolExecutor:
    import torch

    pool, all_there = ThreadPoolExecutor(threads, thread_name_prefix="lane"), Barrier(threads)

    def begin() -> None:
        # Of the calling thread alone, but threads that start later take it over: so it is set back below.
        torch.set_num_threads(1)
        all_there.wait()

    for each in [pool.submit(begin) for _ in range(threads)]:
        each.result()
    torch.set_num_threads(threads)
    return pool
