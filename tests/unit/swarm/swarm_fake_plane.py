"""A data plane without Ray around the real index: weights that are published, and fragments that were inserted."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from hpcjet.config.swarm.pool import PoolConfig
from hpcjet.config.swarm.staleness import StalenessConfig, StalenessMode
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.hosts.spec import HostSpec
from hpcjet.swarm.policy import Policy
from hpcjet.swarm.pool import Entry, Index, Key, Verdict


class Plane:
    """Shared by seats; each sees it through `of`."""

    def __init__(self, mode: StalenessMode = StalenessMode.sync, fragments: int = 1) -> None:
        self.index = Index(PoolConfig(), StalenessConfig(mode, fragments=fragments), seed=0)
        self.index.join("pool", "node")
        self.published: tuple[int, Mapping[str, Any]] | None = None
        self.inserted: list[tuple[Entry, Fragment]] = []
        self.slow = False
        """Whether inserts do not end."""
        self.asked: list[str] = []

    def publish(self, version: int, policies: Mapping[str, Policy]) -> None:
        if version:
            self.index.advance(version)
        self.published = version, {name: policy.weights() for name, policy in policies.items()}

    def of(self, spec: HostSpec, attempt: int = 0) -> "SeatPlane":
        return SeatPlane(self, spec, attempt)


class SeatPlane:
    """What one seat has of it."""

    def __init__(self, plane: Plane, spec: HostSpec, attempt: int) -> None:
        self._plane, self._spec, self._attempt = plane, spec, attempt

    def begin(self, n: int, ticket: int) -> tuple[int, int] | None:
        index = self._plane.index
        self._plane.asked.append("begin")
        if not index.begin(self._spec.seat, self._attempt, self._spec.node, n, ticket=ticket):
            return None
        return index.budget.version, index.budget.freshness.oldest

    def weights(self, policies: Mapping[str, Policy], version: int, at_least: int) -> int | None:
        self._plane.asked.append("weights")
        if self._plane.published is None or self._plane.published[0] < at_least:
            return None
        newest, weights = self._plane.published
        for name, policy in policies.items():
            policy.load_weights(weights[name], newest)
        return newest

    def insert(self, items: Sequence[tuple[Entry, Fragment]]) -> "Insert":
        self._plane.asked.append("insert")
        return Insert(self._plane, copy.deepcopy(list(items)))


class Insert:
    """It is in the index when its verdicts are asked for."""

    def __init__(self, plane: Plane, items: list[tuple[Entry, Fragment]]) -> None:
        self._plane, self._items = plane, items

    def verdicts(self, wait_s: float) -> list[Verdict] | None:
        if self._plane.slow:
            return None
        first = len(self._plane.inserted)
        self._plane.inserted += self._items
        return [self._plane.index.insert(Key("pool", first + at), entry) for at, (entry, _) in enumerate(self._items)]
