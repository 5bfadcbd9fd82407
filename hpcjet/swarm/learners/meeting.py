"""How ranks find each other, and talk: torch.distributed over the network that Ray uses.

Rank 0 holds a key-value store on its node's address in Ray's network and a port that the kernel chose; the driver
brings both to the others. The interface is the one that has the address (the node agent has said so by
GLOO_SOCKET_IFNAME where there is one): a host's name may stand for loopback, or for another network.

Nobody proves who they are on these connections, as everywhere in torch.distributed: the network has to be the cluster's
own, and only what is learned goes over them. Fragments and weights go through Ray, which asks for the run's token.
"""

import os
import socket
from datetime import timedelta
from typing import Any, TypeVar

import psutil

from hpcjet.swarm.learning.ranks import ALONE, Distributed, Ranks, together

Thing = TypeVar("Thing")


class One:
    """A rank without others."""

    ranks: Ranks = ALONE

    def share(self, thing: Thing | None) -> Thing:
        assert thing is not None
        return thing

    def gather(self, thing: Thing) -> list[Thing]:
        return [thing]


class Many:
    """The ranks of torch's process group. Raises RanksLost when one is gone, or late by the group's time limit."""

    def __init__(self) -> None:
        self.ranks: Ranks = Distributed()

    def share(self, thing: Thing | None) -> Thing:
        import torch
        import torch.distributed as dist

        held: list[Any] = [thing]
        with together():
            dist.broadcast_object_list(held, device=torch.device("cpu"))
        found: Thing = held[0]
        return found

    def gather(self, thing: Thing) -> list[Thing]:
        import torch.distributed as dist

        found: list[Any] = [None] * self.ranks.size
        with together():
            dist.all_gather_object(found, thing)
        return found


def open_store(address: str, size: int, patience_s: float) -> Any:
    """Rank 0's; `.port` is where it listens."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(address, 0, size, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=patience_s))


def meet(store: Any, where: tuple[str, int], rank: int, size: int, *, gpu: bool, patience_s: float) -> Many:
    """Join the others; `store` is rank 0's own, None for the others. Raises RanksLost if they do not come in time."""
    import torch.distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    limit = timedelta(seconds=patience_s)
    with together():
        mine = store or TCPStore(*where, size, is_master=False, timeout=limit)
        # Objects and counts are on the CPU, whatever gradients are on.
        kind = "cpu:gloo,cuda:nccl" if gpu else "gloo"
        dist.init_process_group(kind, store=mine, rank=rank, world_size=size, timeout=limit)
    return Many()


def use_interface(address: str) -> None:
    """Have torch use the interface with this address, unless the environment names one."""
    name = interface_of(address)
    if name is not None:
        for key in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(key, name)


def interface_of(address: str) -> str | None:
    """The interface that has it; None if none does."""
    for label, addresses in psutil.net_if_addrs().items():
        if any(each.family == socket.AF_INET and each.address == address for each in addresses):
            return label.partition(":")[0]
    return None
