"""Ray's side of the data plane, for the thread of a host."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hpcjet.swarm.actors import get_actor, lost_errors
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.hosts.spec import HostSpec, PlaneError, attempt_over
from hpcjet.swarm.policy.interface import Policy
from hpcjet.swarm.pool.entry import Entry
from hpcjet.swarm.pool.leave import Refusal
from hpcjet.swarm.pool.node_pool import PoolFull
from hpcjet.swarm.pool.verdict import Verdict
from hpcjet.swarm.weights.actors import load
from hpcjet.swarm.weights.cache import NoWeights

SLICE_S = 1.0
"""So long is waited at a time, so that the host can be stopped."""
LEAVE_S = 20.0
"""So long the index may think about one question: there may be thousands of seats, and one index."""
SLACK_S = 30.0
"""So much longer the answer itself may take, on a machine that is loaded."""
AGAIN_S = 0.2
Answer = TypeVar("Answer")


class Away:
    """An actor, found by its name, which may be away for `patience_s`."""

    def __init__(self, name: str, what: str, patience_s: float) -> None:
        self.name, self._what, self._patience_s = name, what, patience_s
        self._since: float | None = None

    def ask(self, call: Callable[[Any], Answer]) -> Answer | None:
        """What the call with the actor's handle answers; None if the actor is away. Raises PlaneError after a while."""
        try:
            answer = call(get_actor(self.name))
        except lost_errors() as error:
            self.missed(error)
            time.sleep(AGAIN_S)
            return None
        self._since = None
        return answer

    def missed(self, error: BaseException) -> None:
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > self._patience_s:
            first = str(error).strip().partition("\n")[0]
            raise PlaneError(
                f"{self._what} ({self.name}): no answer for {self._patience_s:g} s ({type(error).__name__}: {first}); "
                "see whether its node is there, and its log"
            ) from error


class RayPlane:
    """What a seat asks, by the names that its spec has."""

    def __init__(self, spec: HostSpec, attempt: int) -> None:
        self._spec, self._attempt = spec, attempt
        self._cache = Away(spec.cache, "the cache of weights", spec.patience_s)
        self._pool = Away(spec.pool, "the pool", spec.patience_s)
        self._asked: tuple[Any, float] | None = None
        """The question for leave that is on its way, and when it is given up."""

    def begin(self, n: int, ticket: int) -> tuple[int, int] | None:
        import ray

        if self._asked is None:
            args = (self._spec.seat, self._attempt, self._spec.node, n, ticket, LEAVE_S)
            # Not the index itself: the pool asks for all seats of its node at once.
            call = self._pool.ask(lambda pool: pool.begin.remote(*args))
            if call is None:
                return None
            self._asked = call, time.monotonic() + LEAVE_S + SLACK_S
        call, deadline = self._asked
        ready, _ = ray.wait([call], timeout=SLICE_S)
        if not ready and time.monotonic() < deadline:
            return None
        self._asked = None
        leave = self._pool.ask(lambda pool: ray.get(call, timeout=0))
        if leave is Refusal.over:
            raise attempt_over(self._spec, self._attempt)
        return None if leave is None else (leave.version, leave.at_least)

    def weights(self, policies: Mapping[str, Policy], version: int, at_least: int) -> int | None:
        args = (self._spec.seat, version, None, at_least, SLICE_S)

        def ask(cache: Any) -> int:
            delivery = _get(cache.weights.remote(*args))
            load(policies, delivery)
            return int(delivery.version)

        try:
            return self._cache.ask(ask)
        except NoWeights as error:
            self._cache.missed(error)
            return None

    def insert(self, items: Sequence[tuple[Entry, Fragment]]) -> "RayInsert":
        return RayInsert(self._pool, items)


class RayInsert:
    """One call for each fragment; a call that was lost is made again."""

    def __init__(self, pool: Away, items: Sequence[tuple[Entry, Fragment]]) -> None:
        import ray

        self._pool = pool
        # Copied once, into shared memory: the pool and the learners of this node read it there.
        self._items = [(entry, ray.put(fragment)) for entry, fragment in items]
        self._calls: list[Any] = [None] * len(items)
        self._verdicts: list[Verdict | None] = [None] * len(items)
        self._call()

    def verdicts(self, wait_s: float) -> list[Verdict] | None:
        import ray

        self._call()
        calls = [call for call in self._calls if call is not None]
        done, _ = ray.wait(calls, num_returns=len(calls), timeout=wait_s) if calls else ([], [])
        for at, call in enumerate(self._calls):
            if call in done:
                self._calls[at] = None
                self._verdicts[at] = self._answer(call)
        found = [verdict for verdict in self._verdicts if verdict is not None]
        return found if len(found) == len(self._items) else None

    def _answer(self, call: Any) -> Verdict | None:
        try:
            return self._pool.ask(lambda pool: Verdict(_get(call)))
        except PoolFull as error:  # it is asked again: whoever learns may be started again just now
            self._pool.missed(error)
            return None

    def _call(self) -> None:
        """Ask for what has neither a verdict nor a call on its way."""
        for at, (entry, reference) in enumerate(self._items):
            if self._calls[at] is None and self._verdicts[at] is None:
                self._calls[at] = self._pool.ask(lambda pool, e=entry, r=reference: pool.insert.remote(e, r))  # type: ignore[misc]


def _get(call: Any) -> Any:
    import ray

    return ray.get(call, timeout=SLICE_S + SLACK_S)
