"""The node pools that there are."""

from collections.abc import Iterable

from hpcjet.swarm.pool.entry import Key


class Pools:
    """By name: on which node each is, and what it may free."""

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}
        self._freed: dict[str, list[int]] = {}

    def __contains__(self, pool: object) -> bool:
        return pool in self._nodes

    def add(self, pool: str, node: str) -> None:
        self._nodes[pool] = node

    def remove(self, pool: str) -> None:
        self._nodes.pop(pool, None)
        self._freed.pop(pool, None)

    def on(self, node: str) -> list[str]:
        return [name for name, at in self._nodes.items() if at == node]

    def free(self, keys: Iterable[Key]) -> None:
        """Nobody needs these any more."""
        for key in keys:
            if key.pool in self._nodes:
                self._freed.setdefault(key.pool, []).append(key.number)

    def take_freed(self) -> dict[str, list[int]]:
        """Numbers that each pool may free since the last time."""
        freed, self._freed = self._freed, {}
        return freed
