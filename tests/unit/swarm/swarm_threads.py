"""Learner ranks that are threads of one process."""

import threading
from collections.abc import Callable
from typing import Any

import torch


class Threads:
    """Ranks that are threads of this process; one that calls too often or too seldom breaks the barrier."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier = size, threading.Barrier(size, timeout=300)
        self.held: list[Any] = [None] * size
        self.calls = [0] * size

    def all(self, what: Callable[["OfThread"], Any]) -> list[Any]:
        found: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            try:
                found[rank] = what(OfThread(self, rank))
            except BaseException:
                self.barrier.abort()
                raise

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len(set(self.calls)) == 1, f"ranks made {self.calls} calls"
        return found


class OfThread:
    def __init__(self, group: Threads, rank: int) -> None:
        self.group, self.rank, self.size = group, rank, group.size

    def sum_(self, tensor: torch.Tensor) -> None:
        tensor.copy_(sum(self.exchange(tensor.clone())))

    def start_sum(self, tensor: torch.Tensor) -> Callable[[], None]:
        return lambda: self.sum_(tensor)

    def most(self, number: int) -> int:
        return int(max(self.exchange(number)))

    def exchange(self, mine: Any) -> list[Any]:
        group = self.group
        group.calls[self.rank] += 1
        group.held[self.rank] = mine
        group.barrier.wait()
        held = list(group.held)
        group.barrier.wait()
        return held
