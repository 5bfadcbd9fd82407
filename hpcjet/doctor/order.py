"""What the driver tells the looks at the nodes: a file in the run directory that they read."""

import json
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hpcjet.atomic import atomic_write
from hpcjet.config.root import LaunchConfig
from hpcjet.plan import Plan, read_plan

FOLDER = "doctor"
"""In the run directory: the order, and what the nodes answer."""


@dataclass(frozen=True)
class Order:
    """One examination of the nodes of one allocation."""

    plan: str
    """The plan file."""
    folder: str
    """Where the answers go: on the file system that all nodes share."""
    hosts: list[str]
    address: str
    """The head's, as the other nodes reach it."""
    port: int
    """On the head, for talking."""
    ring_port: int
    """On the head, for the all-reduce."""
    timeout_s: float
    secret: str = field(repr=False)


@dataclass(frozen=True)
class Scene:
    """A node of an allocation, as the looks see it."""

    order: Order
    plan: Plan
    config: LaunchConfig
    rank: int
    host: str = field(default_factory=socket.gethostname)

    @property
    def folder(self) -> Path:
        return Path(self.order.folder)

    @property
    def in_slurm(self) -> bool:
        return self.plan.cluster != "local"

    @property
    def name(self) -> str:
        """As the nodes of the allocation call this one."""
        return self.order.hosts[self.rank]


def write_order(order: Order) -> Path:
    """Leave the order in its folder; only its owner may read it."""
    file = Path(order.folder) / "order.json"
    atomic_write(file, json.dumps(asdict(order)))
    return file


def read_scene(file: Path, rank: int) -> Scene:
    order = Order(**json.loads(file.read_text()))
    plan = read_plan(Path(order.plan).read_text())
    return Scene(order, plan, plan.typed_config(), rank)


def answer_name(rank: int) -> str:
    """The file in which a node leaves what it found."""
    return f"node-{rank}.json"
