"""The weights that a node has, for all executors on it, without Ray."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from hpcjet.config.swarm.weights import CacheConfig
from hpcjet.errors import HpcjetError
from hpcjet.swarm.weights.server import Published

Pull = Callable[[Published | None, float], Awaitable[Published | None]]
"""Asks the primary for what is newer than what is there, and waits for it so many seconds at most."""


PATIENCE_S = 1.0
"""So long an executor that may go on with what it has waits for an answer."""
AGAIN_S = 0.1


class ServerAway(HpcjetError):
    """No primary answers just now."""


class NoWeights(HpcjetError):
    """No version that is new enough came in time."""


@dataclass(frozen=True)
class Delivery:
    """What an executor shall act with from now on."""

    version: int
    digest: str
    weights: Any
    """None if it has them; else as they were published."""


@dataclass
class Executor:
    """One that acts on this node."""

    version: int
    digest: str | None
    wishes: int = 0


class PolicyCache:
    """One for a node. However many ask at a time, one pull is on its way (single flight)."""

    def __init__(self, node: str, pull: Pull, config: CacheConfig) -> None:
        self.node, self.config = node, config
        self.newest: Published | None = None
        self.executors: dict[str, Executor] = {}
        self.pulls = 0
        """Times that weights came to this node."""
        self.failures = 0
        """Pulls that no primary answered."""
        self.wrong: dict[str, int] = {}
        """Executors that acted with other weights than those of the version they named, and with which version."""
        self._pull_from = pull
        self._flight: asyncio.Task[bool] | None = None
        self._first = 0
        self._pushed = 0
        self._pushes = 0

    @property
    def version(self) -> int:
        return -1 if self.newest is None else self.newest.version

    @property
    def missed_pushes(self) -> int:
        """Versions since the first that this node had of which no push came (yet)."""
        return max(0, max(self.version, self._pushed) - self._first - self._pushes)

    async def weights(
        self, executor: str, version: int, *, digest: str | None = None, at_least: int = 0, timeout_s: float
    ) -> Delivery:
        """What this executor, which acts with `version` now, shall act with next: `at_least` this version.

        `digest`, if given, is that of the weights it really holds; if it is wrong, it gets them anew and is named in
        `wrong`. Waits for the first version too. Raises NoWeights after `timeout_s`.
        """
        known = self._acts(executor, version, digest)
        due = known.wishes % self.config.sync_every == 0
        known.wishes += 1
        if self.version < at_least:
            await self._wait_for(at_least, timeout_s)
        elif due and self._flight is None:
            await self._refresh(PATIENCE_S, ask_for_s=0.0)
        return self._deliver(known)

    async def announce(self, version: int) -> None:
        """A push: this version can be had."""
        if version > self._pushed:
            self._pushed = version
            self._pushes += 1 if version > self._first else 0
        if version != self.version and self._flight is None:
            await self._refresh(PATIENCE_S, ask_for_s=0.0)

    def versions(self) -> dict[str, int]:
        """With which version each executor acts."""
        return {name: executor.version for name, executor in self.executors.items()}

    def laggards(self, oldest: int) -> dict[str, int]:
        """Executors that act with an older version than this."""
        return {name: version for name, version in self.versions().items() if version < oldest}

    def forget(self, executor: str) -> None:
        """It is gone."""
        self.executors.pop(executor, None)
        self.wrong.pop(executor, None)

    def _acts(self, name: str, version: int, digest: str | None) -> Executor:
        known = self.executors.setdefault(name, Executor(version, digest))
        if digest is not None and known.version == version and known.digest not in (None, digest):
            self.wrong[name] = version
        if digest is not None or known.version != version:
            known.digest = digest
        known.version = version
        return known

    def _deliver(self, executor: Executor) -> Delivery:
        newest = self.newest
        assert newest is not None
        has = executor.version == newest.version and executor.digest in (None, newest.digest)
        executor.version, executor.digest = newest.version, newest.digest
        return Delivery(newest.version, newest.digest, None if has else newest.weights)

    async def _wait_for(self, version: int, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self.version < version:
            left = deadline - loop.time()
            if left <= 0:
                raise NoWeights(
                    f"node {self.node}: no weights of version {version} came in {timeout_s:g} s, the newest here is "
                    f"{self.version}, pulls that failed: {self.failures}; see whether the learner publishes"
                )
            if not await self._refresh(left, ask_for_s=left):
                await asyncio.sleep(min(left, AGAIN_S))

    async def _refresh(self, wait_s: float, *, ask_for_s: float) -> bool:
        """Join the pull that is on its way, or begin one; whether it came to an end without failing."""
        if self._flight is None:
            self._flight = asyncio.ensure_future(self._pull(ask_for_s))
        flight = self._flight
        # Not cancelled with one who waits for it: others may too.
        await asyncio.wait({flight}, timeout=wait_s)
        return flight.done() and flight.result()

    async def _pull(self, wait_s: float) -> bool:
        try:
            published = await self._pull_from(self.newest, wait_s)
        except ServerAway:
            self.failures += 1
            return False
        finally:
            self._flight = None
        if published is None:
            return True
        if self.newest is None or published.version < self.version:  # a learner that went back
            self._first = self._pushed = published.version
            self._pushes = 0
        self.newest = published
        self.pulls += 1
        return True
