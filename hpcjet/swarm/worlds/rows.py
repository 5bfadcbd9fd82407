"""Which row each agent of a world stands in."""

from collections.abc import Mapping, Sequence

from hpcjet.swarm.worlds.kinds import GroupOf
from hpcjet.swarm.worlds.world import BrokenContract

Place = tuple[str, int]
"""Group and row."""


class Rows:
    """Rows of one world: agents that are known beforehand have their own, others the lowest that is free."""

    def __init__(self, agents: Sequence[str] | None, group_of: GroupOf, sizes: Mapping[str, int]) -> None:
        self._group_of, self._sizes = group_of, sizes
        self._own: dict[str, Place] = {}
        for group, row, agent in _numbered(agents or (), group_of):
            self._own[agent] = group, row
        self._free_after = {group: row + 1 for group, row in self._own.values()}
        self.of: dict[str, Place] = {}
        """Live agents."""

    def take(self, agent: str) -> Place:
        """The row of a live agent, or of one that joins. Raises BrokenContract if there is none left."""
        place = self.of.get(agent)
        if place is None:
            place = self.of[agent] = self._own.get(agent) or self._free(agent)
        return place

    def leave(self, agent: str) -> Place:
        return self.of.pop(agent)

    def _free(self, agent: str) -> Place:
        group = self._group_of(agent)
        taken = {row for other, row in self.of.values() if other == group}
        for row in range(self._free_after.get(group, 0), self._sizes.get(group, 0)):
            if row not in taken:
                return group, row
        raise BrokenContract(
            f"there are rows for {self._sizes.get(group, 0)} agents of the group {group} only; give it more rows", agent
        )


def count(agents: Sequence[str], group_of: GroupOf) -> dict[str, int]:
    """How many of these agents each group has."""
    return {group: row + 1 for group, row, _ in _numbered(agents, group_of)}


def _numbered(agents: Sequence[str], group_of: GroupOf) -> list[tuple[str, int, str]]:
    """(group, row in it, agent)"""
    counts: dict[str, int] = {}
    numbered = []
    for agent in agents:
        group = group_of(agent)
        numbered.append((group, counts.get(group, 0), agent))
        counts[group] = counts.get(group, 0) + 1
    return numbered
