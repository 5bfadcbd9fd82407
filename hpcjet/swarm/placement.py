"""Where the parts of a training stand. Pure.

- **Learners** go to nodes with GPUs, one to each GPU, else to the nodes with the most CPUs; all under one switch where
  they fit. Where nothing is said of their number there is one on a GPU, or one for each CPU of one node: ranks add up
  their gradients after each minibatch, which costs least within a node.
- **Index and lease book** are on the head: without it there is no run.
- The **primary** parameter server is beside rank 0, the **standby** on another node, under another switch where there
  is one, so that no switch takes both.
- **Seats** fill the CPUs that learners leave; where acting waits for learning those too, since they are idle then.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpcjet.config.check import bad
from hpcjet.errors import BootstrapError

MOST_LEARNERS = 8
"""Where nothing is said: with more, each has too little of a minibatch."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One that can be used."""

    node_id: str
    """Ray's."""
    name: str
    """Unique in the run; what is counted by."""
    cpus: int
    memory_bytes: float = 0.0
    gpus: int = 0
    switches: tuple[str, ...] = ()
    """From the top of the tree to the node's own switch; empty where nobody tells."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a training asks of the nodes."""

    learners: int
    """0: as many as seem right."""
    learner_cpus: int
    """0: one."""
    waits: bool
    """Acting waits for learning."""
    worlds: int
    parts: int = 1 << 30
    """What an update learns from comes in so many pieces, or less: more learners would have nothing to do."""
    world_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Learners:
    """Where ranks and the parameter servers are, by Ray's ids of nodes."""

    ranks: tuple[str, ...]
    threads: tuple[int, ...]
    """Of each rank."""
    primary: str
    standby: str


def place_learners(nodes: Sequence[Node], needs: Needs) -> Learners:
    """Where learners stand on these nodes. Raises BootstrapError without a node."""
    if not nodes:
        raise BootstrapError("no node is left for the learners; go on with: hpcjet resume RUN")
    ranks = _ranks(nodes, needs.learners) if needs.learners else _of_one_node(nodes, needs)
    first = ranks[0]
    return Learners(
        ranks=tuple(node.node_id for node in ranks),
        threads=(needs.learner_cpus or 1,) * len(ranks),
        primary=first.node_id,
        standby=place_standby(nodes, first).node_id,
    )


def place_standby(nodes: Sequence[Node], other: Node) -> Node:
    """The node for a server that has to outlive `other`: far from it, and not `other` itself if there are more."""
    others = [node for node in nodes if node.node_id != other.node_id]
    return min(others, key=lambda node: (_shared(node, other), node.name), default=other)


def room(nodes: Sequence[Node], learners: Learners | None, needs: Needs, *, worlds_each: int = 1) -> dict[str, int]:
    """Ray's id of a node -> how many seats of so many worlds it has room for."""
    taken: Counter[str] = Counter()
    if learners is not None and not needs.waits:
        for node_id, threads in zip(learners.ranks, learners.threads, strict=True):
            taken[node_id] += threads
    found = {}
    for node in nodes:
        free = max(node.cpus - taken[node.node_id], 0)
        if needs.world_bytes:
            free = min(free, int(node.memory_bytes // (needs.world_bytes * worlds_each)))
        found[node.node_id] = free
    if nodes and not any(found.values()):
        found = _at_least_one(nodes, found, needs, worlds_each)
    return found


def number_of_seats(rooms: Mapping[str, int], worlds: int, wanted: int) -> int:
    """`wanted` if that is not 0, else one for each that there is room for."""
    return min(wanted or sum(rooms.values()), worlds)


def shares(worlds: int, seats: int, *, first: int = 0) -> list[tuple[int, int]]:
    """(number of the first world, how many) of each seat, as even as can be."""
    found, at = [], first
    for seat in range(seats):
        number = worlds // seats + (seat < worlds % seats)
        found.append((at, number))
        at += number
    return found


def deal(seats: Iterable[str], rooms: Mapping[str, int], standing: Mapping[str, str]) -> dict[str, str]:
    """A node for each of these seats, which have none; `standing` are those that have.

    The node whose share of its room is used the least comes first. More seats than there is room for are dealt out all
    the same, evenly: CPUs are then shared. Raises BootstrapError without any node.
    """
    if not rooms:
        raise BootstrapError("no node is left for the worlds; go on with: hpcjet resume RUN")
    used = Counter(node for node in standing.values() if node in rooms)
    placed = {}
    for seat in seats:
        node = min(rooms, key=lambda each: (_load(used[each] + 1, rooms[each]), each))
        used[node] += 1
        placed[seat] = node
    return placed


def moves(standing: Mapping[str, str], rooms: Mapping[str, int]) -> dict[str, str]:
    """Seats that should go to another node, since theirs has more than it has room for and others have room."""
    now: dict[str, str] = dict(standing)
    found: dict[str, str] = {}
    while True:
        used = Counter(now.values())
        crowded = [node for node in rooms if used[node] > rooms[node]]
        free = [node for node in rooms if used[node] < rooms[node]]
        if not crowded or not free:
            return found
        source = max(crowded, key=lambda node: (_load(used[node], rooms[node]), node))
        seat = max(name for name, node in now.items() if node == source)
        now[seat] = found[seat] = max(free, key=lambda node: (rooms[node] - used[node], node))


def fragments_of(policies: Mapping[str, int], fragments: int, seats: int) -> dict[str, int]:
    """Policy -> how many of its fragments an update learns from, where a seat makes `policies` at a time.

    Raises ConfigError for a number that cannot be divided among them.
    """
    routes = sum(policies.values())
    if fragments % routes:
        allowed = f"a seat makes {routes} at a time (one for each policy and group), so it must be a multiple of that"
        raise bad("exp.staleness.fragments", fragments, allowed, "change it, or set it to 0 for one of each seat")
    rounds = fragments // routes if fragments else seats
    return {policy: rounds * number for policy, number in policies.items()}


def _ranks(nodes: Sequence[Node], number: int) -> list[Node]:
    with_gpus = [node for node in nodes if node.gpus]
    size = {node.node_id: max(node.gpus, 1) for node in nodes}
    ordered = sorted(with_gpus or nodes, key=lambda node: (-node.gpus, -node.cpus, node.name))
    near = _nearest(ordered, size, number)
    # Round after round, so that no node has two ranks while another has none; GPUs are filled up.
    places = [node for node in near for _ in range(size[node.node_id])] if with_gpus else near
    return [places[rank % len(places)] for rank in range(number)]


def _nearest(ordered: Sequence[Node], size: Mapping[str, int], number: int) -> list[Node]:
    """Those of the lowest switch that has room for all, in their order; all of them if none has."""
    groups: dict[tuple[str, ...], list[Node]] = {}
    for node in ordered:
        for depth in range(1, len(node.switches) + 1):
            groups.setdefault(node.switches[:depth], []).append(node)
    fitting = [switch for switch, those in groups.items() if sum(size[each.node_id] for each in those) >= number]
    if not fitting or number == 1:
        return list(ordered)
    # The first in order of size among the deepest.
    return groups[max(fitting, key=lambda switch: (len(switch), -ordered.index(groups[switch][0])))]


def _of_one_node(nodes: Sequence[Node], needs: Needs) -> list[Node]:
    (first,) = _ranks(nodes, 1)
    if first.gpus:
        return [first]
    cpus = first.cpus if needs.waits else first.cpus // 2
    return [first] * max(1, min(MOST_LEARNERS, cpus // (needs.learner_cpus or 1), needs.parts))


def _at_least_one(nodes: Sequence[Node], found: dict[str, int], needs: Needs, worlds_each: int) -> dict[str, int]:
    """A node that is too small for learner and worlds shares its CPUs, but memory cannot be shared."""
    fits = [node for node in nodes if node.memory_bytes >= needs.world_bytes * worlds_each]
    if not fits:
        most = max(node.memory_bytes for node in nodes)
        allowed = f"no node has more than {most / 2**30:.1f} GiB, and a seat has {worlds_each} worlds"
        raise bad("exp.world_memory_gb", needs.world_bytes / 2**30, allowed, "lower it, or raise exp.seats")
    return {**found, max(fits, key=lambda node: (node.cpus, node.name)).node_id: 1}


def _load(seats: int, rooms: int) -> float:
    return seats / rooms if rooms else 1e6 * seats


def _shared(node: Node, other: Node) -> int:
    """How many switches, from the top, are above both."""
    shared = 0
    for mine, theirs in zip(node.switches, other.switches, strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared


def switches_of(address: str, pattern: str) -> tuple[str, ...]:
    """The switches above a node, of SLURM_TOPOLOGY_ADDR and SLURM_TOPOLOGY_ADDR_PATTERN; empty without any."""
    words, kinds = address.split("."), pattern.split(".")
    if len(words) != len(kinds):
        return ()
    return tuple(word for word, kind in zip(words, kinds, strict=True) if kind in ("switch", "block"))
