"""Learning with several ranks: each has a part of the data, and all take the same steps with the same weights.

What is summed are gradients and statistics over samples, divided by how many samples there are on all ranks together.
So a rank with few samples, or none, weighs as much as its samples do. That is not what torch's DistributedDataParallel
does: it averages over ranks, whatever they hold, and waits for ever where one has fewer minibatches.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from hpcjet.errors import EXIT_WORKLOAD, HpcjetError

if TYPE_CHECKING:
    from torch import Tensor


class Ranks(Protocol):
    """What a learner needs of the others. All ranks must make the same calls in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def sum_(self, tensor: "Tensor") -> None:
        """Make it the sum of those of all ranks, in place; the same bits on each."""

    def start_sum(self, tensor: "Tensor") -> Callable[[], None]:
        """As `sum_`, but answers at once; what it answers waits for the end, until which nobody touches the tensor."""

    def most(self, number: int) -> int:
        """The greatest of those of all ranks."""


class Alone:
    """One rank."""

    rank, size = 0, 1

    def sum_(self, tensor: "Tensor") -> None:
        pass

    def start_sum(self, tensor: "Tensor") -> Callable[[], None]:
        return lambda: None

    def most(self, number: int) -> int:
        return number


ALONE = Alone()


class RanksLost(HpcjetError):
    """The other ranks do not answer: one of them is gone, or late."""

    exit_code = EXIT_WORKLOAD


@contextmanager
def together() -> Iterator[None]:
    """Around what all ranks do at the same time. Raises RanksLost for what torch raises if one is gone or late."""
    try:
        yield
    except RuntimeError as error:
        first = str(error).strip().partition("\n")[0]
        raise RanksLost(f"the ranks lost each other: {first}") from error


class Distributed:
    """The ranks of torch's process group, which must have been made. Raises RanksLost."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum_(self, tensor: "Tensor") -> None:
        import torch.distributed as dist

        with together():
            dist.all_reduce(tensor)

    def start_sum(self, tensor: "Tensor") -> Callable[[], None]:
        import torch.distributed as dist

        with together():
            work = dist.all_reduce(tensor, async_op=True)

        def wait() -> None:
            with together():
                work.wait()

        return wait

    def most(self, number: int) -> int:
        import torch
        import torch.distributed as dist

        held = torch.tensor(number)
        with together():
            dist.all_reduce(held, op=dist.ReduceOp.MAX)
        return int(held)


def everyones(ranks: Ranks, number: int) -> list[int]:
    """This number of each rank."""
    import torch

    held = torch.zeros(ranks.size, dtype=torch.int64)
    held[ranks.rank] = number
    ranks.sum_(held)
    return [int(each) for each in held]


def shares(counts: Sequence[int], parts: int) -> list[list[int]]:
    """How many of its samples each rank gives to each part, [rank][part]: parts differ by one sample at most.

    Each rank gives all that it has. Alone it is as numpy's array_split.
    """
    found, before = [], 0
    for count in counts:
        each, more = divmod(count, parts)
        found.append([each + ((part - before) % parts < more) for part in range(parts)])
        before += count
    return found
