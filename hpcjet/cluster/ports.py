"""A block of ports for one allocation, below the range from which the kernel draws ports for outgoing connections."""

import socket
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcjet.errors import BootstrapError

LOWEST = 10_000
"""Ports below are often taken by services."""
LOWEST_ELSE = 2_000
"""For hosts whose kernel draws from 9000 or so on."""
TRIES = 64
BLOCK = 16
"""Ports in a block; worker processes of Ray are not among them, they bind ports that the kernel draws."""
OF_RAY = (8265, 10_001)
"""What Ray counts on for a dashboard and for clients, on nodes without them too: where another of its ports has such a
number, Ray refuses to start."""
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True)
class PortBlock:
    """Ports of one node of one allocation, named by use."""

    base: int

    @property
    def gcs(self) -> int:
        return self.base

    @property
    def node_manager(self) -> int:
        return self.base + 1

    @property
    def object_manager(self) -> int:
        return self.base + 2

    @property
    def agent_http(self) -> int:
        return self.base + 3

    @property
    def agent_grpc(self) -> int:
        return self.base + 4

    @property
    def runtime_env_agent(self) -> int:
        return self.base + 5

    @property
    def metrics(self) -> int:
        return self.base + 6

    @property
    def dashboard(self) -> int:
        return self.base + 7

    @property
    def client(self) -> int:
        """Ray's client server, which `ray start --head` cannot leave out."""
        return self.base + 9

    @property
    def engine(self) -> int:
        """Where the agents find their model."""
        return self.base + 8

    @property
    def lifeline(self) -> int:
        """Where the node agents of the workers hold on to the head's."""
        return self.base + 10

    @property
    def master(self) -> int:
        """The rendezvous of torch.distributed."""
        return self.base + 11

    @property
    def router(self) -> int:
        """Between the replicas of an engine and what the agents see of it."""
        return self.base + 12

    @property
    def pool(self) -> int:
        """Where the nodes tell what becomes of their replicas."""
        return self.base + 14


def port_range(floor: int) -> range:
    """The ports to choose from: below the first port that the kernel draws, if there is enough room."""
    for lowest in (LOWEST, LOWEST_ELSE):
        if floor - lowest >= BLOCK * TRIES:
            return range(lowest, floor)
    return range(LOWEST, 32_768)


def candidate_blocks(allocation: str, *, among: range) -> Iterator[PortBlock]:
    """Blocks to try, in an order of the allocation's own: two jobs on a node seldom meet, and then one moves on."""
    count = len(among) // BLOCK
    start, step = zlib.crc32(allocation.encode()) % count, 7919
    for number in range(min(count, TRIES)):
        base = among[(start + number * step) % count * BLOCK]
        if not any(base <= port < base + BLOCK for port in OF_RAY):
            yield PortBlock(base)


def ephemeral_floor(path: Path = EPHEMERAL) -> int:
    """First port of the kernel's own range; 32768 where it cannot be read."""
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


def free_blocks(allocation: str, address: str = "0.0.0.0") -> Iterator[PortBlock]:
    """Those of the allocation's blocks of which every port can be bound now; the next one if another job was faster.

    Raises BootstrapError when there are no more.
    """
    among = port_range(ephemeral_floor())
    for block in candidate_blocks(allocation, among=among):
        if all(_can_bind(address, port) for port in range(block.base, block.base + BLOCK)):
            yield block
    raise BootstrapError(
        f"no free block of {BLOCK} ports between {among[0]} and {among[-1]} on {address}: "
        "too many jobs on this node; ask for whole nodes with cluster.exclusive=true"
    )


def _can_bind(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for host in (address, "::1" if family == socket.AF_INET6 else "127.0.0.1"):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # Without it, a port whose last owner ended a minute ago (TIME_WAIT) looks taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True
