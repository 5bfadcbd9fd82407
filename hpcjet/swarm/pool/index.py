"""The index of all fragments: metadata only, without Ray."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hpcjet.config.check import at_least
from hpcjet.config.swarm.pool import PoolConfig, WhenFull
from hpcjet.config.swarm.staleness import StalenessConfig, TooOld
from hpcjet.swarm.pool.admitted import Admitted
from hpcjet.swarm.pool.cell import Held
from hpcjet.swarm.pool.counts import Counts
from hpcjet.swarm.pool.entry import Entry, Key
from hpcjet.swarm.pool.limits import check_limits, rate_limiter
from hpcjet.swarm.pool.pools import Pools
from hpcjet.swarm.pool.sample import Chosen, Sample
from hpcjet.swarm.pool.shelf import Shelf
from hpcjet.swarm.pool.sources import Sources
from hpcjet.swarm.pool.verdict import Verdict


class Index:
    """Says what may be begun, admitted and sampled. Not safe for threads; all of it is quick.

    Sources ask `begin` for each fragment, node pools `insert` what came of it, learners `sample`, then tell by `done`
    that they have what was chosen, or by `give_back` that they will not. What pools may free is in `take_freed`.
    `seats` are the sources that are kept in step. Raises ConfigError for limits that cannot be met.
    """

    def __init__(self, config: PoolConfig, staleness: StalenessConfig, *, seed: int, seats: Iterable[str] = ()) -> None:
        check_limits(config, staleness)
        self.config, self.staleness = config, staleness
        self.counts = Counts(rate_limiter(config, staleness))
        self.sources = Sources(staleness, None if config.ahead < 0 else config.ahead, seats, self.counts.losses)
        self.budget, self.pacing = self.sources.budget, self.sources.pacing
        self.rng = np.random.default_rng(seed)
        self.shelf = Shelf(config, self.rng)
        self.out: dict[int, list[Held]] = {}
        """Of each sample that is not done: what is used up by it."""
        self.pools = Pools()
        self.admitted = Admitted()
        self.used: Mapping[Key, int] = {}
        """How often fragments that pools may still hold were learned from under an index before."""
        self._samples = 0

    def __len__(self) -> int:
        return len(self.shelf)

    # pools and sources

    def join(self, pool: str, node: str) -> None:
        """A node pool began. One that was started again has another name: the other one's entries are lost."""
        for old in self.pools.on(node):
            if old != pool:
                self.pool_lost(old)
        self.pools.add(pool, node)

    def pool_lost(self, pool: str) -> int:
        """What it held is never chosen again. How many fragments nobody had learned from."""
        self.pools.remove(pool)
        return sum(self._lose(held, "node") for held in self.shelf.of(lambda held: held.key.pool == pool))

    def node_lost(self, node: str) -> int:
        """Its pools, and what its sources had begun. How many fragments were lost."""
        lost = sum(self.pool_lost(pool) for pool in self.pools.on(node))
        return lost + sum(self.source_lost(source) for source in self.sources.on(node))

    def source_lost(self, source: str, attempt: int | None = None) -> int:
        """This attempt ended, by default the newest that is known; it is refused from now on.

        What it had begun is given to others, and so many fragments that was; what it made before counts as long as
        its pool lives.
        """
        return self.sources.lost(source, attempt)

    def expect(self, sources: Iterable[str]) -> None:
        """These are the seats: they are kept in step (pool.ahead)."""
        self.pacing.expect(sources)

    def begin(self, source: str, attempt: int, node: str, n: int = 1, *, ticket: int | None = None) -> bool:
        """Whether this source may begin n fragments now, with weights of `budget.freshness.oldest` or newer.

        n is how many it makes at a time: one for each group, or part of it, that has a policy of its own.
        `ticket` says which ones, such as by their first step: asked twice, since an answer was lost, they count once.
        """
        return self.sources.begin(source, attempt, node, n, ticket)

    def is_over(self, source: str, attempt: int) -> bool:
        """Whether an attempt may never begin anything again."""
        return self.sources.is_over(source, attempt)

    # entries

    def insert(self, key: Key, entry: Entry) -> Verdict:
        """An entry of a fragment that stands in its pool. Unless it is admitted (or `wait`) its pool frees it.

        Asked again, since an answer was lost, or offered again from another place, a fragment counts once.
        """
        if key in self.shelf.held:
            return Verdict.admitted
        if key.pool not in self.pools or not self.sources.came(entry.source, entry.attempt):
            self.counts.losses.late += 1
            return Verdict.late
        if entry in self.admitted:
            return Verdict.admitted if self._is_out(key) else Verdict.counted
        used = self.used.get(key, 0)
        if 0 < self.config.max_times <= used:
            return Verdict.counted
        if entry.version > self.budget.version or not self.budget.freshness.allows(entry.version):
            if used:
                return Verdict.counted
            self.sources.give_up(entry.source, 1)
            self.counts.losses.stale += 1
            return Verdict.stale
        if not self._may_insert():
            return Verdict.wait
        if len(self) >= self.config.capacity:
            oldest = self.shelf.oldest
            self.pools.free([oldest.key])
            self._lose(oldest, "evicted")
        if used:
            self.counts.used(used)
        else:
            self.sources.admit(entry.source)
        self.counts.admit(entry)
        self.put(key, entry, times=used)
        return Verdict.admitted

    def put(self, key: Key, entry: Entry, *, times: int = 0, mass: float | None = None) -> None:
        """On the shelf; see `Shelf.add`."""
        self.shelf.add(key, entry, times=times, mass=mass)
        self.admitted.add(entry)

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
        if not self.counts.may_sample(n):
            return None
        drawn = self._choose(policy, n, (self.config.node_quota, self.config.group_quota))
        over = 0
        if len(drawn) < n and self._stuck() and self.available(policy):
            within = len(drawn)
            drawn = self._choose(policy, n, (1.0, 1.0))
            over = len(drawn) - within
        return self._hand_out(policy, drawn, over) if len(drawn) == n else None

    def done(self, number: int, missing: Iterable[Key] = ()) -> None:
        """What was chosen has been fetched, but for what was missing. Pools may free what is used up.

        In place of what was missing others may be begun, and sampled.
        """
        lost = set(missing)
        for held in self.out.pop(number, []):
            if held.key in lost:
                self._miss(held)
            self.pools.free([held.key])
        for key in lost & self.shelf.held.keys():
            held = self.shelf.held[key]
            self.shelf.take(held)
            self._miss(held)

    def give_back(self, number: int) -> None:
        """What was chosen will not be learned from, since the learner was lost: it may be chosen again."""
        for held in self.out.pop(number, []):
            self.counts.give_back()
            if held.key.pool in self.pools:
                self.shelf.add(held.key, held.entry, times=held.times - 1, mass=held.mass)
            else:
                self._miss(held)

    def take_freed(self) -> dict[str, list[int]]:
        """What pools may free since the last time."""
        return self.pools.take_freed()

    # inside

    def _is_out(self, key: Key) -> bool:
        """Whether it is chosen, and not fetched yet."""
        return any(held.key == key for those in self.out.values() for held in those)

    def _may_insert(self) -> bool:
        full = len(self) >= self.config.capacity and self.config.when_full is WhenFull.wait
        return not full and self.counts.may_insert

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
        self.counts.sample(len(drawn), [each.entry for each in chosen if each.valid], over)
        self._samples += 1
        out = self.out[self._samples] = []
        for held, valid in zip(drawn, fit, strict=True):
            held.times += 1
            if held.key in self.shelf.held and (not valid or held.times == self.config.max_times):
                self.shelf.take(held)
                out.append(held)
        return Sample(self._samples, self.budget.version, chosen, over)

    def _lose(self, held: Held, why: str) -> int:
        """1 if nobody had learned from it."""
        self.shelf.take(held)
        self.counts.forget_samples(held.times)
        if held.times:
            return 0
        if why == "node":
            self.admitted.forget(held.entry)  # its source may still have it
        self.sources.lose(held.entry.source, again=why != "evicted")
        self.counts.lose(held.entry, why)
        return 1

    def _miss(self, held: Held) -> None:
        self.admitted.forget(held.entry)
        self.sources.lose(held.entry.source)
        self.counts.lose(held.entry, "missing")
        self.counts.forget_samples(held.times)

    def _drop_unfit(self) -> None:
        newest = self.budget.version
        for held in self.shelf.of(lambda held: held.entry.version > newest or not self._fit(held)):
            self.pools.free([held.key])
            self._lose(held, "stale")
