"""The index of all fragments: metadata only, without Ray."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from hpcjet.config.check import at_least
from hpcjet.config.swarm.pool import PoolConfig, WhenFull
from hpcjet.config.swarm.staleness import StalenessConfig, TooOld
from hpcjet.swarm.pool.cell import Held
from hpcjet.swarm.pool.counts import Losses, NodeCounts
from hpcjet.swarm.pool.entry import Entry, Key
from hpcjet.swarm.pool.limits import check_limits, rate_limiter
from hpcjet.swarm.pool.sample import Chosen, Sample
from hpcjet.swarm.pool.shelf import Shelf
from hpcjet.swarm.pool.sources import Sources


class Verdict(Enum):
    """What became of an insert."""

    admitted = "admitted"
    stale = "stale"
    """Its version is too old, or one that the learner does not know: it went back."""
    late = "late"
    """It is of an old attempt, or of a pool that is gone."""
    wait = "wait"
    """Not now: learning is behind, or the index is full."""


class Index:
    """Says what may be begun, admitted and sampled. Not safe for threads; all of it is quick.

    Sources ask `begin` for each fragment, node pools `insert` what came of it, learners `sample`, then tell by `done`
    that they have what was chosen, or by `give_back` that they will not. What pools may free is in `take_freed`.
    `seats` are the sources that are kept in step. Raises ConfigError for limits that cannot be met.
    """

    def __init__(self, config: PoolConfig, staleness: StalenessConfig, *, seed: int, seats: Iterable[str] = ()) -> None:
        check_limits(config, staleness)
        self.config, self.staleness = config, staleness
        self.losses = Losses()
        self.nodes: defaultdict[str, NodeCounts] = defaultdict(NodeCounts)
        self.over_quota = 0
        self.sources = Sources(staleness, None if config.ahead < 0 else config.ahead, seats, self.losses)
        self.budget, self.pacing = self.sources.budget, self.sources.pacing
        self.limiter = rate_limiter(config, staleness)
        self.rng = np.random.default_rng(seed)
        self.shelf = Shelf(config, self.rng)
        self.out: dict[int, list[Held]] = {}
        """Of each sample that is not done: what is used up by it."""
        self._pools: dict[str, str] = {}
        self._freed: dict[str, list[int]] = {}
        self._samples = 0

    def __len__(self) -> int:
        return len(self.shelf)

    # pools and sources

    def join(self, pool: str, node: str) -> None:
        """A node pool began. One that was started again has another name: the other one's entries are lost."""
        for old in [name for name, at in self._pools.items() if at == node and name != pool]:
            self.pool_lost(old)
        self._pools[pool] = node

    def pool_lost(self, pool: str) -> int:
        """What it held is never chosen again. How many fragments nobody had learned from."""
        self._pools.pop(pool, None)
        self._freed.pop(pool, None)
        return sum(self._lose(held, "node") for held in self.shelf.of(lambda held: held.key.pool == pool))

    def node_lost(self, node: str) -> int:
        """Its pools, and what its sources had begun. How many fragments were lost."""
        lost = sum(self.pool_lost(pool) for pool in [name for name, at in self._pools.items() if at == node])
        return lost + sum(self.source_lost(source) for source in self.sources.on(node))

    def source_lost(self, source: str) -> int:
        """It ended. What it had begun is given to others; what it made before counts as long as its pool lives."""
        return self.sources.lost(source)

    def expect(self, sources: Iterable[str]) -> None:
        """These are the seats: they are kept in step (pool.ahead)."""
        self.pacing.expect(sources)

    def begin(self, source: str, attempt: int, node: str, n: int = 1, *, ticket: int | None = None) -> bool:
        """Whether this source may begin n fragments now, with weights of `budget.freshness.oldest` or newer.

        n is how many it makes at a time: one for each group, or part of it, that has a policy of its own.
        `ticket` says which ones, such as by their first step: asked twice, since an answer was lost, they count once.
        """
        return self.sources.begin(source, attempt, node, n, ticket)

    # entries

    def insert(self, key: Key, entry: Entry) -> Verdict:
        """An entry of a fragment that stands in its pool. Unless it is admitted (or `wait`) its pool frees it."""
        if key in self.shelf.held:
            return Verdict.admitted
        if key.pool not in self._pools or not self.sources.came(entry.source, entry.attempt):
            self.losses.late += 1
            return Verdict.late
        if entry.version > self.budget.version or not self.budget.freshness.allows(entry.version):
            self.sources.give_up(entry.source, 1)
            self.losses.stale += 1
            return Verdict.stale
        if not self._may_insert():
            return Verdict.wait
        if len(self) >= self.config.capacity:
            oldest = self.shelf.oldest
            self._free(oldest)
            self._lose(oldest, "evicted")
        self.sources.admit(entry.source)
        if self.limiter is not None:
            self.limiter.inserted(1)
        self.nodes[entry.node].insert(entry.nbytes)
        self.shelf.add(key, entry)
        return Verdict.admitted

    def evicted(self, pool: str, numbers: Iterable[int]) -> None:
        """The pool has these no more."""
        for number in numbers:
            if (held := self.shelf.held.get(Key(pool, number))) is not None:
                self._lose(held, "evicted")

    def update_priorities(self, keys: Sequence[Key], priorities: Sequence[float]) -> None:
        """Of entries that were learned from; those that are gone are passed over. Raises ValueError below 0."""
        for key, priority in zip(keys, priorities, strict=True):
            if (held := self.shelf.held.get(key)) is not None:
                self.shelf.prioritise(held, priority)

    # learning

    def advance(self, version: int) -> None:
        """The learner has made this version. Call it before the version is published.

        What became too old is dropped (too_old=drop), and others may be begun in its place.
        """
        self.budget.advance(version)
        if self.staleness.too_old is TooOld.drop:
            self._drop_unfit()

    def recover(self, version: int) -> None:
        """A learner goes on at this version, which may be one before the last. What it had chosen is given back."""
        for number in list(self.out):
            self.give_back(number)
        self.budget.version = version
        self._drop_unfit()
        self.budget.recover(version, sum(held.times == 0 for held in self.shelf.held.values()))

    def available(self, policy: str) -> int:
        """Fragments that may be sampled."""
        return self.shelf.available(policy)

    def sample(self, policy: str, n: int) -> Sample | None:
        """n fragments of a policy, or None: not now.

        With quotas it waits for other nodes and groups; if none can bring more, the batch is filled all the same.
        """
        at_least("sample.n", n, 1)
        if self.limiter is not None and not self.limiter.may_sample(n):
            return None
        drawn = self._choose(policy, n, (self.config.node_quota, self.config.group_quota))
        over = 0
        if len(drawn) < n and self._stuck() and self.available(policy):
            within = len(drawn)
            drawn = self._choose(policy, n, (1.0, 1.0))
            over = len(drawn) - within
        if len(drawn) < n:
            return None
        self.over_quota += over
        return self._hand_out(policy, drawn, over)

    def done(self, number: int, missing: Iterable[Key] = ()) -> None:
        """What was chosen has been fetched, but for what was missing. Pools may free what is used up.

        In place of what was missing others may be begun, and sampled.
        """
        lost = set(missing)
        for held in self.out.pop(number, []):
            if held.key in lost:
                self._miss(held)
            self._free(held)
        for key in lost & self.shelf.held.keys():
            held = self.shelf.held[key]
            self.shelf.take(held)
            self._miss(held)

    def give_back(self, number: int) -> None:
        """What was chosen will not be learned from, since the learner was lost: it may be chosen again."""
        for held in self.out.pop(number, []):
            if self.limiter is not None:
                self.limiter.sampled(-1)
            if held.key.pool in self._pools:
                self.shelf.add(held.key, held.entry, times=held.times - 1, mass=held.mass)
            else:
                self._miss(held)

    def take_freed(self) -> dict[str, list[int]]:
        """What pools may free since the last time."""
        freed, self._freed = self._freed, {}
        return freed

    # checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Metadata alone: fragments stay in their pools."""
        out = [(held, 1) for those in self.out.values() for held in those]
        all_held = [*((held, 0) for held in self.shelf.held.values()), *out]
        return {
            "budget": self.budget.state_dict(),
            "entries": [(held.key, held.entry, held.times - more, self.shelf.mass(held)) for held, more in all_held],
            "inserts": 0 if self.limiter is None else self.limiter.inserts,
            "samples": 0 if self.limiter is None else self.limiter.samples - len(out),
            "attempts": dict(self.sources.attempts),
            "rng": self.rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> int:
        """Go on from there, in an index that has no entries yet, with the pools that have joined.

        The limits are those of this configuration. How many entries were lost, since their pools are gone.
        """
        self.sources.attempts = dict(state["attempts"])
        self.rng.bit_generator.state = state["rng"]
        if self.limiter is not None:
            self.limiter.inserts, self.limiter.samples = state["inserts"], state["samples"]
        lost = 0
        for key, entry, times, mass in state["entries"]:
            if key.pool in self._pools:
                self.shelf.add(key, entry, times=times, mass=mass)
            else:
                lost += 1
                self._forget_samples(times)
        self.losses.node += lost
        self.recover(int(state["budget"]["version"]))
        return lost

    # inside

    def _may_insert(self) -> bool:
        full = len(self) >= self.config.capacity and self.config.when_full is WhenFull.wait
        return not full and (self.limiter is None or self.limiter.may_insert(1))

    def _stuck(self) -> bool:
        """Nothing more can come before something is sampled."""
        over = self.budget.room is not None and self.budget.room <= 0 and not self.budget.in_flight
        return over or not self._may_insert()

    def _fit(self, held: Held) -> bool:
        return self.budget.freshness.allows(held.entry.version)

    def _choose(self, policy: str, n: int, shares: tuple[float, float]) -> list[Held]:
        masked = self.staleness.too_old is TooOld.mask
        return self.shelf.choose(policy, n, shares, lambda held: masked or self._fit(held))

    def _hand_out(self, policy: str, drawn: list[Held], over: int) -> Sample:
        fit = [self._fit(held) for held in drawn]
        weights = self.shelf.weights(policy, drawn)
        chosen = tuple(
            Chosen(held.key, held.entry, float(weight), valid)
            for held, weight, valid in zip(drawn, weights, fit, strict=True)
        )
        if self.limiter is not None:
            self.limiter.sampled(len(drawn))
        self._samples += 1
        out = self.out[self._samples] = []
        for held, valid in zip(drawn, fit, strict=True):
            held.times += 1
            if valid:
                self.nodes[held.entry.node].sample(held.entry.nbytes)
            if held.key in self.shelf.held and (not valid or held.times == self.config.max_times):
                self.shelf.take(held)
                out.append(held)
        return Sample(self._samples, self.budget.version, chosen, over)

    def _lose(self, held: Held, why: str) -> int:
        """1 if nobody had learned from it."""
        self.shelf.take(held)
        self._forget_samples(held.times)
        if held.times:
            return 0
        self.sources.lose(held.entry.source, again=why != "evicted")
        self.losses.add(why, 1)
        self.nodes[held.entry.node].lost += 1
        return 1

    def _miss(self, held: Held) -> None:
        self.losses.missing += 1
        self.nodes[held.entry.node].lost += 1
        self.sources.lose(held.entry.source)
        self._forget_samples(held.times)

    def _forget_samples(self, times: int) -> None:
        if self.limiter is not None:
            self.limiter.lost(times)

    def _free(self, held: Held) -> None:
        if held.key.pool in self._pools:
            self._freed.setdefault(held.key.pool, []).append(held.key.number)

    def _drop_unfit(self) -> None:
        newest = self.budget.version
        for held in self.shelf.of(lambda held: held.entry.version > newest or not self._fit(held)):
            self._free(held)
            self._lose(held, "stale")
