"""Which points may share a job array: those that ask Slurm for the same. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hpcjet.config.cluster import LocalConfig
from hpcjet.config.plain import from_dict
from hpcjet.config.root import LaunchConfig
from hpcjet.sweep.folder import About
from hpcjet.sweep.points import Point, canonical, config_of

PARALLELISM = 64
"""Allocations at a time on Slurm, unless it is said."""


@dataclass(frozen=True)
class Group:
    """Points with one batch script."""

    config: LaunchConfig
    """Of the first of them."""
    indices: tuple[int, ...]

    @property
    def pack(self) -> int:
        return self.config.sweep.pack

    @property
    def num_allocations(self) -> int:
        return -(-len(self.indices) // self.pack)

    @property
    def parallelism(self) -> int:
        """Most allocations at a time; on this machine points."""
        here = isinstance(self.config.cluster, LocalConfig)
        return min(self.config.sweep.parallelism or (1 if here else PARALLELISM), len(self.indices))


def groups_of(about: About, points: Sequence[Point], chosen: Iterable[int]) -> list[Group]:
    """The chosen points by what they ask Slurm for; on this machine they are one group."""
    by_key: dict[str, list[Point]] = {}
    wanted = set(chosen)
    for point in points:
        if point.index in wanted:
            by_key.setdefault("" if about.cluster == "local" else _asked(point), []).append(point)
    return [
        Group(from_dict(config_of(about.base, mine[0])), tuple(point.index for point in mine))
        for mine in by_key.values()
    ]


def _asked(point: Point) -> str:
    """What of a point is in the batch script. Its environment is not: the node agent sets it."""
    return canonical(
        {
            key: value
            for key, value in point.changes.items()
            if key.startswith(("cluster.", "kinds.")) and key != "cluster.env"
        }
    )


def split(group: Group, *, max_array_size: int) -> Iterator[tuple[int, ...]]:
    """The points of each array: as many elements as the controller takes."""
    most = max_array_size * group.pack
    for begin in range(0, len(group.indices), most):
        yield group.indices[begin : begin + most]
