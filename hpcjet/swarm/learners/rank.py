"""What every rank does: begin together, then order after order: fetch, tell, learn."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from hpcjet.swarm.learners.spec import LearnerSpec
from hpcjet.swarm.learners.split import Order
from hpcjet.swarm.learning.priority import priorities_of
from hpcjet.swarm.learning.ranks import Ranks
from hpcjet.swarm.policy.backends import backend
from hpcjet.swarm.policy.interface import Learner
from hpcjet.swarm.pool.entry import Key
from hpcjet.swarm.pool.fetching import Batch
from hpcjet.swarm.pool.sample import Sample
from hpcjet.swarm.seeds import LEARNER, POLICY, part_seed
from hpcjet.swarm.weights.digest import digest

Thing = TypeVar("Thing")

log = logging.getLogger(__name__)


class Talk(Protocol):
    """How ranks tell each other things. All must make the same calls in the same order."""

    @property
    def ranks(self) -> Ranks: ...

    def share(self, thing: Thing | None) -> Thing:
        """What rank 0 has; the others give None."""

    def gather(self, thing: Thing) -> list[Thing]:
        """What each rank has, on all of them."""


class Fetches(Protocol):
    """The part of the data plane that every rank has."""

    def fetch(self, sample: Sample) -> Batch:
        """What was chosen, as far as it is there."""


class Leads(Protocol):
    """What rank 0 does besides; see `chief`."""

    def begin(self) -> Mapping[str, Any] | None:
        """The learners' states that all go on from; None for new ones."""

    def began(self) -> None:
        """All ranks are as rank 0 is."""

    def prioritise(self, left: Sequence[Mapping[Key, float]]) -> None:
        """The priorities of what each rank learned from."""

    def states(self) -> Mapping[str, Any]:
        """The learners' states as they are now."""

    def next(self) -> Order | str | None:
        """An order; None: nothing yet; STOP: it is over."""

    def fetched(self, told: "Sequence[Told]") -> None:
        """What each rank has got."""

    def learned(self, metrics: Mapping[str, Mapping[str, float]], seconds: float) -> None:
        """All policies have their next version."""


STOP = "stop"


@dataclass(frozen=True)
class Told:
    """What a rank got of its share."""

    fragments: int
    agent_steps: int
    nbytes: int
    missing: Mapping[str, tuple[Key, ...]]
    """For each policy."""
    digest: str = ""
    """Of the weights that it has before it learns from this."""


@dataclass
class Doing:
    """What a rank is at, for those who ask; written by one thread, read by others."""

    what: str = "start"
    since: float = field(default_factory=time.monotonic)

    def __call__(self, what: str) -> None:
        self.what, self.since = what, time.monotonic()


class Rank:
    """One rank, whose learners are as those of all others after each update."""

    def __init__(self, spec: LearnerSpec, talk: Talk, plane: Fetches, *, device: str = "cpu") -> None:
        self.spec, self.talk, self.plane, self.doing = spec, talk, plane, Doing()
        self.learners = make_learners(spec, talk.ranks, device)
        self.chief: Leads | None = None
        """Rank 0 has one."""

    @property
    def version(self) -> int:
        return next(iter(self.learners.values())).policy.version

    def run(self) -> None:
        """Until rank 0 stops. Raises RankError, RanksLost, ConfigError for a checkpoint that does not fit."""
        self._begin()
        while True:
            self.doing("sample")
            order = self.talk.share(None if self.chief is None else (self.chief.next(),))[0]
            if isinstance(order, Order):
                self._update(order)
            elif order is not None:
                self.doing("end")
                return

    def _begin(self) -> None:
        # From rank 0's memory: not every node need see its disk, and all begin with the same bits.
        self._take(self.talk.share(None if self.chief is None else (self.chief.begin(),))[0])
        if self.chief is not None:
            self.chief.began()

    def _update(self, order: Order) -> None:
        self.doing("fetch")
        rank = self.talk.ranks.rank
        batches = {policy: self.plane.fetch(shares[rank]) for policy, shares in order.shares.items()}
        told = self.talk.gather(replace(_told(batches), digest=self._digest()))
        if len({each.digest for each in told}) > 1:
            self._agree()
        if self.chief is not None:
            self.chief.fetched(told)
        if not any(each.fragments for each in told):
            return  # all of it is gone
        self.doing("update")
        began = time.perf_counter()
        metrics = {
            policy: self.learners[policy].update(
                batch.fragments, nodes=[order.nodes[each.entry.node] for each in batch.chosen],
                weights=[each.weight for each in batch.chosen], rate=order.rates[policy],
            )
            for policy, batch in batches.items()
        }  # fmt: skip
        if self.spec.prioritised:
            left = self.talk.gather(self._priorities(batches))
            if self.chief is not None:
                self.chief.prioritise(left)
        if self.chief is not None:
            self.chief.learned(metrics, time.perf_counter() - began)

    def _priorities(self, batches: Mapping[str, Batch]) -> dict[Key, float]:
        """By the policies as they are now."""
        return {
            chosen.key: priority
            for name, batch in batches.items()
            for chosen, priority in zip(
                batch.chosen, priorities_of(batch.fragments, self.learners[name].policy, self.spec.learner), strict=True
            )
        }

    def _digest(self) -> str:
        alone = self.talk.ranks.size == 1
        return "" if alone else digest({name: each.policy.weights() for name, each in self.learners.items()})

    def _agree(self) -> None:
        """Nodes with different processors may round differently: then all go on from what rank 0 has."""
        log.warning("version %d: the weights of the ranks differ in their last bits; all take those of rank 0",
                    self.version)  # fmt: skip
        self._take(self.talk.share(None if self.chief is None else (self.chief.states(),))[0])

    def _take(self, states: Mapping[str, Any] | None) -> None:
        for name, state in (states or {}).items():
            self.learners[name].load_state_dict(state)


def make_learners(spec: LearnerSpec, ranks: Ranks, device: str) -> dict[str, Learner]:
    """New ones, as a trainer with the same seed has them."""
    made_by, found = backend(spec.backend), {}
    for number, (name, form) in enumerate(spec.policies.items()):
        policy = made_by.make_policy(form, spec.policy, part_seed(spec.seed, POLICY, number), device=device)
        found[name] = made_by.make_learner(
            policy, spec.learner, part_seed(spec.seed, LEARNER, number), ranks=ranks
        )  # fmt: skip
    return found


def _told(batches: Mapping[str, Batch]) -> Told:
    return Told(
        fragments=sum(len(batch.fragments) for batch in batches.values()),
        agent_steps=sum(chosen.entry.agent_steps for batch in batches.values() for chosen in batch.chosen),
        nbytes=sum(batch.nbytes for batch in batches.values()),
        missing={policy: batch.missing for policy, batch in batches.items()},
    )
