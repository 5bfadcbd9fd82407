"""The index of all fragments: metadata only, without Ray."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from hpcjet.config.check import at_least
from hpcjet.config.swarm.pool import Order, PoolConfig, WhenFull
from hpcjet.config.swarm.staleness import StalenessConfig, TooOld
from hpcjet.swarm.pool.cell import Cell, Held, Kind
from hpcjet.swarm.pool.draw import Quotas, Times, draw
from hpcjet.swarm.pool.entry import Entry, Key
from hpcjet.swarm.pool.limits import check_limits, rate_limiter
from hpcjet.swarm.pool.losses import Losses
from hpcjet.swarm.pool.pacing import Pacing
from hpcjet.swarm.pool.sample import Chosen, Sample
from hpcjet.swarm.sampling import weights
from hpcjet.swarm.sampling.priorities import all_totals
from hpcjet.swarm.staleness import Budget


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
    Raises ConfigError for limits that cannot be met.
    """

    def __init__(self, config: PoolConfig, staleness: StalenessConfig, *, seed: int, seats: Iterable[str] = ()) -> None:
        check_limits(config, staleness)
        self.config, self.staleness = config, staleness
        self.budget = Budget(staleness)
        self.pacing = Pacing(0 if staleness.bound == 0 else None if config.ahead < 0 else config.ahead, seats)
        self.limiter = rate_limiter(config, staleness)
        self.rng = np.random.default_rng(seed)
        self.losses = Losses()
        self.over_quota = 0
        self._alpha = config.alpha if config.order is Order.prioritised else 0.0
        self._pools: dict[str, str] = {}
        self._attempts: dict[str, int] = {}
        self._nodes: dict[str, str] = {}
        self._tickets: dict[str, tuple[int, int]] = {}
        self._held: dict[Key, Held] = {}
        self._cells: dict[str, dict[Kind, Cell]] = {}
        self._queues: dict[str, list[tuple[Any, Key]]] = {}
        self._out: dict[int, list[Held]] = {}
        self._freed: dict[str, list[int]] = {}
        self._samples = 0

    def __len__(self) -> int:
        return len(self._held)

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
        return sum(self._lose(held, "node") for held in self._of(lambda held: held.key.pool == pool))

    def node_lost(self, node: str) -> int:
        """Its pools, and what its sources had begun. How many fragments were lost."""
        lost = sum(self.pool_lost(pool) for pool in [name for name, at in self._pools.items() if at == node])
        return lost + sum(
            self.source_lost(source) for source in [name for name, at in self._nodes.items() if at == node]
        )

    def source_began(self, source: str, attempt: int) -> bool:
        """Results of earlier attempts are ignored from now on; False if this one is such."""
        known = self._attempts.get(source, -1)
        if attempt < known:
            return False
        if attempt > known:
            self._attempts[source] = attempt
            self.losses.begun += self._give_up(source)
        return True

    def source_lost(self, source: str) -> int:
        """It ended. What it had begun is given to others; what it made before counts as long as its pool lives."""
        if source in self._attempts:
            self._attempts[source] += 1
        self._nodes.pop(source, None)
        self._tickets.pop(source, None)
        self.pacing.lost(source)
        lost = self._give_up(source)
        self.losses.begun += lost
        return lost

    def expect(self, sources: Iterable[str]) -> None:
        """These are the seats: they are kept in step (pool.ahead)."""
        self.pacing.expect(sources)

    def begin(self, source: str, attempt: int, node: str, n: int = 1, *, ticket: int | None = None) -> bool:
        """Whether this source may begin n fragments now, with weights of `budget.freshness.oldest` or newer.

        n is how many it makes at a time: one for each group, or part of it, that has a policy of its own.
        `ticket` says which ones, such as by their first step: asked twice, since an answer was lost, they count once.
        """
        if not self.source_began(source, attempt):
            return False
        self._nodes[source] = node
        if ticket is not None and self._tickets.get(source) == (attempt, ticket):
            return True
        if not (self.pacing.may_begin(source, n, self.budget.room) and self.budget.begin(source, n)):
            return False
        self.pacing.began(source, n)
        if ticket is not None:
            self._tickets[source] = (attempt, ticket)
        return True

    # entries

    def insert(self, key: Key, entry: Entry) -> Verdict:
        """An entry of a fragment that stands in its pool. Unless it is admitted (or `wait`) its pool frees it."""
        if key in self._held:
            return Verdict.admitted
        if key.pool not in self._pools or not self.source_began(entry.source, entry.attempt):
            self.losses.late += 1
            return Verdict.late
        if entry.version > self.budget.version or not self.budget.freshness.allows(entry.version):
            self._give_up(entry.source, 1)
            self.losses.stale += 1
            return Verdict.stale
        if not self._may_insert():
            return Verdict.wait
        if len(self._held) >= self.config.capacity:
            oldest = next(iter(self._held.values()))
            self._free(oldest)
            self._lose(oldest, "evicted")
        if not self.budget.admit(entry.source):
            self.pacing.began(entry.source, 1)  # under the index before this one
        if self.limiter is not None:
            self.limiter.inserted(1)
        self._add(key, entry)
        return Verdict.admitted

    def evicted(self, pool: str, numbers: Iterable[int]) -> None:
        """The pool has these no more."""
        for number in numbers:
            if (held := self._held.get(Key(pool, number))) is not None:
                self._lose(held, "evicted")

    def update_priorities(self, keys: Sequence[Key], priorities: Sequence[float]) -> None:
        """Of entries that were learned from; those that are gone are passed over. Raises ValueError below 0."""
        for key, priority in zip(keys, priorities, strict=True):
            if (held := self._held.get(key)) is not None:
                self._cell(held.kind).update(held, priority)

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
        for number in list(self._out):
            self.give_back(number)
        self.budget.version = version
        self._drop_unfit()
        self.budget.recover(version, sum(held.times == 0 for held in self._held.values()))

    def available(self, policy: str) -> int:
        """Fragments that may be sampled."""
        return sum(len(cell) for cell in self._cells.get(policy, {}).values())

    def sample(self, policy: str, n: int) -> Sample | None:
        """n fragments of a policy, or None: not now.

        With quotas it waits for other nodes and groups; if none can bring more, the batch is filled all the same.
        """
        at_least("sample.n", n, 1)
        if self.limiter is not None and not self.limiter.may_sample(n):
            return None
        drawn = self._choose(policy, n, self.config.node_quota, self.config.group_quota)
        over = 0
        if len(drawn) < n and self._stuck() and self.available(policy):
            within = len(drawn)
            drawn = self._choose(policy, n, 1.0, 1.0)
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
        for held in self._out.pop(number, []):
            if held.key in lost:
                self._miss(held)
            self._free(held)
        for held in self._of(lambda held: held.key in lost) if lost else ():
            self._take(held)
            self._miss(held)

    def give_back(self, number: int) -> None:
        """What was chosen will not be learned from, since the learner was lost: it may be chosen again."""
        for held in self._out.pop(number, []):
            if self.limiter is not None:
                self.limiter.sampled(-1)
            if held.key.pool in self._pools:
                self._add(held.key, held.entry, times=held.times - 1, mass=held.mass)
            else:
                self._miss(held)

    def take_freed(self) -> dict[str, list[int]]:
        """What pools may free since the last time."""
        freed, self._freed = self._freed, {}
        return freed

    # checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Metadata alone: fragments stay in their pools."""
        out = [(held, 1) for those in self._out.values() for held in those]
        all_held = [*((held, 0) for held in self._held.values()), *out]
        return {
            "budget": self.budget.state_dict(),
            "entries": [(held.key, held.entry, held.times - more, self._mass(held)) for held, more in all_held],
            "inserts": 0 if self.limiter is None else self.limiter.inserts,
            "samples": 0 if self.limiter is None else self.limiter.samples - len(out),
            "attempts": dict(self._attempts),
            "rng": self.rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> int:
        """Go on from there with the pools that have joined; the limits are those of this configuration.

        How many entries were lost, since their pools are gone.
        """
        self._attempts = dict(state["attempts"])
        self.rng.bit_generator.state = state["rng"]
        if self.limiter is not None:
            self.limiter.inserts, self.limiter.samples = state["inserts"], state["samples"]
        lost = 0
        for key, entry, times, mass in state["entries"]:
            if key.pool in self._pools:
                self._add(key, entry, times=times, mass=mass)
            else:
                lost += 1
                self._forget_samples(times)
        self.losses.node += lost
        self.recover(int(state["budget"]["version"]))
        return lost

    # inside

    def _give_up(self, source: str, n: int | None = None) -> int:
        lost = self.budget.give_up(source, n)
        self.pacing.again(source, lost)
        return lost

    def _may_insert(self) -> bool:
        full = len(self._held) >= self.config.capacity and self.config.when_full is WhenFull.wait
        return not full and (self.limiter is None or self.limiter.may_insert(1))

    def _stuck(self) -> bool:
        """Nothing more can come before something is sampled."""
        over = self.budget.room is not None and self.budget.room <= 0 and not self.budget.in_flight
        return over or not self._may_insert()

    def _fit(self, held: Held) -> bool:
        return self.budget.freshness.allows(held.entry.version)

    def _choose(self, policy: str, n: int, node_quota: float, group_quota: float) -> list[Held]:
        cells = {kind: cell for kind, cell in self._cells.get(policy, {}).items() if len(cell)}
        quotas, times = Quotas(n, cells, node_quota, group_quota), Times(self.config.max_times)
        if self.config.order is Order.in_order:
            return self._next_in_order(policy, n, quotas)
        masked = self.staleness.too_old is TooOld.mask
        return draw(cells, n, self.rng, may=lambda held: masked or self._fit(held), quotas=quotas, times=times)

    def _next_in_order(self, policy: str, n: int, quotas: Quotas) -> list[Held]:
        queue = self._queues.setdefault(policy, [])
        chosen: list[Held] = []
        passed: dict[Key, tuple[Any, Key]] = {}
        while queue and len(chosen) < n:
            item = heapq.heappop(queue)
            # An entry that was given back stands in the queue twice.
            if (held := self._held.get(item[1])) is None or item[1] in passed:
                continue
            passed[item[1]] = item
            if quotas.allow(held.kind):
                quotas.take(held.kind)
                chosen.append(held)
        for item in passed.values():
            heapq.heappush(queue, item)
        return chosen

    def _hand_out(self, policy: str, drawn: list[Held], over: int) -> Sample:
        totals = all_totals(cell.priorities.totals for cell in self._cells[policy].values())
        mass = np.array([self._mass(held) for held in drawn])
        weight = weights(mass, totals, beta=self.config.beta) if self._alpha else np.ones(len(drawn))
        chosen = tuple(
            Chosen(held.key, held.entry, float(w), self._fit(held)) for held, w in zip(drawn, weight, strict=True)
        )
        if self.limiter is not None:
            self.limiter.sampled(len(drawn))
        self._samples += 1
        out = self._out[self._samples] = []
        for held in drawn:
            held.times += 1
            unfit = not self._fit(held)
            if held.key in self._held and (unfit or held.times == self.config.max_times):
                self._take(held)
                out.append(held)
        return Sample(self._samples, self.budget.version, chosen, over)

    def _add(self, key: Key, entry: Entry, *, times: int = 0, mass: float | None = None) -> None:
        kind = Kind(entry.policy, entry.node, entry.group)
        most = self._most(entry.policy)
        held = self._held[key] = self._cell(kind).add(key, entry, kind)
        held.times = times
        if mass is None and entry.priority is not None:
            self._cell(kind).update(held, entry.priority)
        else:
            self._cell(kind).restore(held, most if mass is None else mass)
        if self.config.order is Order.in_order:
            heapq.heappush(self._queues.setdefault(entry.policy, []), (entry.place_in_run, key))

    def _most(self, policy: str) -> float:
        """What new entries get: as much as the greatest, so that each is drawn soon."""
        if not self._alpha:
            return 1.0
        return max((cell.priorities.most for cell in self._cells.get(policy, {}).values()), default=0.0) or 1.0

    def _cell(self, kind: Kind) -> Cell:
        return self._cells.setdefault(kind.policy, {}).setdefault(kind, Cell(self._alpha))

    def _mass(self, held: Held) -> float:
        return self._cell(held.kind).mass(held) if held.key in self._held else held.mass

    def _of(self, which: Any) -> list[Held]:
        return [held for held in self._held.values() if which(held)]

    def _take(self, held: Held) -> None:
        del self._held[held.key]
        self._cell(held.kind).remove(held)

    def _lose(self, held: Held, why: str) -> int:
        """1 if nobody had learned from it."""
        self._take(held)
        self._forget_samples(held.times)
        if held.times:
            return 0
        self.budget.lose(1)
        self.losses.add(why, 1)
        if why != "evicted":
            self.pacing.again(held.entry.source, 1)
        return 1

    def _miss(self, held: Held) -> None:
        self.losses.missing += 1
        self.budget.lose(1)
        self.pacing.again(held.entry.source, 1)
        self._forget_samples(held.times)

    def _forget_samples(self, times: int) -> None:
        if self.limiter is not None:
            self.limiter.lost(times)

    def _free(self, held: Held) -> None:
        if held.key.pool in self._pools:
            self._freed.setdefault(held.key.pool, []).append(held.key.number)

    def _drop_unfit(self) -> None:
        newest = self.budget.version
        for held in self._of(lambda held: held.entry.version > newest or not self._fit(held)):
            self._free(held)
            self._lose(held, "stale")
