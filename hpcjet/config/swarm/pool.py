"""What the pool is given."""

from dataclasses import dataclass, field
from enum import Enum

from hpcjet.config.check import at_least, bad
from hpcjet.config.swarm.compression import Compression


class Mode(Enum):
    """Where fragments are kept.

    federated: on the node where they were made; what is learned from is fetched.
    central: on the learner's node; everything is moved there.
    """

    federated = "federated"
    central = "central"


class WhenFull(Enum):
    """What a node pool does when its bytes are used up.

    wait: who inserts waits until something was learned from.
    evict: the oldest fragments make room.
    """

    wait = "wait"
    evict = "evict"


class Order(Enum):
    """How fragments are chosen.

    in_order: those that were begun first, in an order that does not depend on when they came; for synchronous runs.
    uniform: each with the same probability.
    prioritised: in proportion to priority^alpha.
    """

    in_order = "in_order"
    uniform = "uniform"
    prioritised = "prioritised"


@dataclass
class RateConfig:
    """How often what is inserted is learned from, on the average."""

    samples_per_insert: float = 1.0
    """How often each fragment is sampled."""
    min_size: int = 1
    """Nothing is sampled before so many fragments were inserted."""
    error_buffer: float = 0.0
    """By how many samples acting or learning may run ahead; 0 for no rate limit."""

    def __post_init__(self) -> None:
        at_least("exp.pool.rate.error_buffer", self.error_buffer, 0)
        at_least("exp.pool.rate.min_size", self.min_size, 1)


@dataclass
class PoolConfig:
    """The experience pool."""

    mode: Mode = Mode.federated
    """federated or central."""
    node_bytes: int = 1 << 30
    """The most bytes of fragments in one node pool."""
    capacity: int = 65536
    """The most fragments in all pools."""
    when_full: WhenFull = WhenFull.wait
    """wait or evict."""
    insert_timeout_s: float = 300.0
    """So long an insert waits for room."""
    order: Order = Order.in_order
    """in_order, uniform or prioritised."""
    ahead: int = 1
    """By how many fragments a seat may be ahead of the slowest; -1 for any number. With staleness.mode=sync it is 0:
    each seat gives one for each version."""
    max_times: int = 1
    """How often a fragment may be sampled before it is removed; 0 for any number of times."""
    alpha: float = 0.6
    """prioritised: 0 is uniform, 1 in proportion to the priority."""
    beta: float = 0.4
    """prioritised: how far importance weights make up for it; 1 is in full."""
    node_quota: float = 1.0
    """The greatest share of a batch that comes from one node, above 0. With few nodes it is 1 / their number."""
    group_quota: float = 1.0
    """The same for a group of agents."""
    compression: Compression = Compression.none
    """What is fetched: none, fp16, int8 or sparse."""
    rate: RateConfig = field(default_factory=RateConfig)

    def __post_init__(self) -> None:
        for name in ("node_bytes", "capacity"):
            at_least(f"exp.pool.{name}", getattr(self, name), 1)
        at_least("exp.pool.ahead", self.ahead, -1)
        for name in ("max_times", "alpha", "beta", "insert_timeout_s"):
            at_least(f"exp.pool.{name}", getattr(self, name), 0)
        for name in ("node_quota", "group_quota"):
            if not 0 < (share := getattr(self, name)) <= 1:
                raise bad(f"exp.pool.{name}", share, "a share above 0, up to 1", f"set exp.pool.{name}=1 for none")
        if self.rate.min_size > self.capacity:
            allowed = f"pool.capacity={self.capacity} fragments can never hold so many, and nothing would be sampled"
            raise bad("exp.pool.rate.min_size", self.rate.min_size, allowed, "lower it, or raise exp.pool.capacity")
        if self.max_times == 0 and self.when_full is WhenFull.wait:
            allowed = "nothing would ever make room (pool.when_full=wait)"
            raise bad("exp.pool.max_times", 0, allowed, "set exp.pool.when_full=evict, or a number of times")
