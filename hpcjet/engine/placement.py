"""Which replica runs where: its nodes, GPUs and cores, and the cores that are left to the agents."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hpcjet.config.check import bad
from hpcjet.config.engine import Device, ServedConfig
from hpcjet.engine.topology import Topology, closest
from hpcjet.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class EngineNode:
    """What one node has for engines."""

    host: str
    name: str = ""
    """Which it is among the nodes of all allocations, two of which may be on one host; empty: its host."""
    gpus: tuple[str, ...] = ()
    """As CUDA_VISIBLE_DEVICES names them: numbers or UUIDs."""
    cores: tuple[int, ...]
    """The cores that the job may use there."""
    topology: Topology | None = None
    """Of exactly these GPUs, in this order."""

    @property
    def key(self) -> str:
        return self.name or self.host


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part of a replica that runs on one node."""

    node: str
    """Its key."""
    host: str
    rank: int
    """0 leads: it listens for requests. The others follow it."""
    gpus: tuple[str, ...]
    """Empty on a CPU."""
    cores: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ReplicaPlace:
    """One replica: a share on each of its nodes."""

    number: int
    shares: tuple[Share, ...]

    @property
    def name(self) -> str:
        return f"replica-{self.number}"

    @property
    def leader(self) -> Share:
        return self.shares[0]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """All replicas of a run."""

    replicas: tuple[ReplicaPlace, ...]
    agents: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Key of a node -> cores there that no engine has."""
    idle_gpus: int = 0
    """GPUs of which no replica could be made."""


def place(config: ServedConfig, nodes: Sequence[EngineNode], *, grows: bool = False) -> Placement:
    """Lay the replicas out over the nodes, in their order.

    A replica that one node can hold is never spread over two. Raises ConfigError if not even one replica, or not the
    number that was asked for, has room; `grows`: other nodes may still hold what these do not.
    """
    on_gpus = config.device is Device.gpu or (config.device is Device.auto and any(node.gpus for node in nodes))
    spots = _on_gpus(config, nodes) if on_gpus else _on_cpus(config, nodes)
    asked = config.num_replicas
    if not spots or ((asked or 0) > len(spots) and not grows):
        raise _too_few(config, nodes, room=len(spots), on_gpus=on_gpus)
    chosen = spots[:asked]
    return _with_cores(config, nodes, chosen)


def place_alone(config: ServedConfig, node: EngineNode, *, most: int | None = None) -> Placement:
    """The replicas of one node that joins by itself: as many as it holds whole, one if it has no GPUs; at most `most`.

    Raises ConfigError if it holds none.
    """
    found = place(replace(config, replicas="auto"), [node])
    fewer = most is not None and most < len(found.replicas)
    return place(replace(config, replicas=str(most)), [node]) if fewer else found


def nodes_per_replica(config: ServedConfig, gpus_per_node: int) -> int:
    """Over how many nodes, with equal parts, a replica is spread: as few as can be."""
    size = config.tensor_parallel * config.pipeline_parallel
    return next(count for count in range(1, size + 1) if size % count == 0 and size // count <= gpus_per_node)


_Spot = list[tuple[EngineNode, tuple[str, ...]]]
"""The nodes of one replica, each with its GPUs."""


def _on_gpus(config: ServedConfig, nodes: Sequence[EngineNode]) -> list[_Spot]:
    most = max((len(node.gpus) for node in nodes), default=0)
    if not most:
        return []
    spread = nodes_per_replica(config, most)
    part = config.tensor_parallel * config.pipeline_parallel // spread
    parts = [(node, gpus) for node in nodes for gpus in _sets(node, part)]
    if spread == 1:
        return [[each] for each in parts]
    # The parts of one replica are on nodes of their own, neighbours in Slurm's order.
    rounds: dict[int, _Spot] = {}
    for node in nodes:
        for number, gpus in enumerate(gpus for other, gpus in parts if other is node):
            rounds.setdefault(number, []).append((node, gpus))
    return [row[first : first + spread] for row in rounds.values() for first in range(0, len(row) - spread + 1, spread)]


def _sets(node: EngineNode, size: int) -> list[tuple[str, ...]]:
    """As many sets of `size` GPUs as the node has, each of GPUs that are close to each other."""
    free, sets = list(range(len(node.gpus))), []
    while len(free) >= size:
        chosen = closest(node.topology, free, size)
        sets.append(tuple(node.gpus[each] for each in chosen))
        free = [each for each in free if each not in chosen]
    return sorted(sets, key=lambda names: node.gpus.index(names[0]))


def _on_cpus(config: ServedConfig, nodes: Sequence[EngineNode]) -> list[_Spot]:
    """One on each node, or as many more as are asked for, in turn."""
    turns = -(-(config.num_replicas or 1) // max(1, len(nodes)))
    limit = min(len(node.cores) for node in nodes) // (config.cores or 1) if nodes else 0
    return [[(node, ())] for _ in range(min(turns, limit)) for node in nodes]


def _with_cores(config: ServedConfig, nodes: Sequence[EngineNode], spots: list[_Spot]) -> Placement:
    free = {node.key: list(node.cores) for node in nodes}
    here = {node.key: sum(each is node for spot in spots for each, _ in spot) for node in nodes}
    replicas = []
    for number, spot in enumerate(spots):
        shares = []
        for rank, (node, gpus) in enumerate(spot):
            wanted = _wanted_cores(config, node, gpus, here[node.key])
            cores = _near(node, gpus, free[node.key])[:wanted]
            free[node.key] = [core for core in free[node.key] if core not in cores]
            shares.append(Share(node=node.key, host=node.host, rank=rank, gpus=gpus, cores=tuple(sorted(cores))))
        replicas.append(ReplicaPlace(number=number, shares=tuple(shares)))
    used = sum(len(gpus) for spot in spots for _, gpus in spot)
    return Placement(
        replicas=tuple(replicas),
        agents={key: tuple(cores) for key, cores in free.items()},
        idle_gpus=sum(len(node.gpus) for node in nodes) - used,
    )


def _wanted_cores(config: ServedConfig, node: EngineNode, gpus: tuple[str, ...], replicas_here: int) -> int:
    """An engine keeps a core busy for each GPU, one for the scheduler and one for its server; never all of a node's."""
    if config.cores:
        return config.cores
    wanted = len(gpus) + 2 if gpus else max(1, len(node.cores) // 2)
    most = max(1, (len(node.cores) - 1) // max(1, replicas_here))
    return min(wanted if gpus else max(1, wanted // replicas_here), most)


def _near(node: EngineNode, gpus: tuple[str, ...], free: list[int]) -> list[int]:
    """The free cores, those of the GPUs' own memory first."""
    if node.topology is None or not gpus:
        return free
    near = {core for name in gpus for core in node.topology.cores[node.gpus.index(name)]}
    return sorted(free, key=lambda core: (core not in near, core))


def _too_few(config: ServedConfig, nodes: Sequence[EngineNode], *, room: int, on_gpus: bool) -> ConfigError:
    gpus = sum(len(node.gpus) for node in nodes)
    size = config.tensor_parallel * config.pipeline_parallel
    if on_gpus and not gpus:
        return bad("engine.device", "gpu", "no node has a GPU", "set cluster.gpus_per_node, or engine.device=cpu")
    if not room and on_gpus:
        return bad(
            "engine.tensor_parallel",
            config.tensor_parallel,
            f"with engine.pipeline_parallel={config.pipeline_parallel} a replica takes {size} GPUs, and the "
            f"{len(nodes)} nodes have {gpus}",
            "lower one of the two, or ask for more nodes or GPUs",
        )
    if not room:
        return bad(
            "engine.cores",
            config.cores,
            f"the smallest node has {min((len(node.cores) for node in nodes), default=0)} cores",
            "lower it, or raise cluster.cpus_per_node",
        )
    what = f"{gpus} GPUs, {size} for each" if on_gpus else f"{len(nodes)} nodes without GPUs"
    return bad("engine.replicas", config.replicas, f"there is room for {room} ({what})", f"set engine.replicas={room}")
