"""Ray's side of the data plane, for the thread of a learner rank."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hpcjet.swarm.actors import get_actor, lost_errors
from hpcjet.swarm.hosts.actor import host_snapshots
from hpcjet.swarm.hosts.spec import HostState
from hpcjet.swarm.learners.chief import IndexAnew
from hpcjet.swarm.learners.spec import LearnerSpec, RankError
from hpcjet.swarm.pool.actors import INDEX, IndexIsNew, fetch
from hpcjet.swarm.pool.entry import Key
from hpcjet.swarm.pool.fetching import Batch
from hpcjet.swarm.pool.sample import Sample
from hpcjet.swarm.weights.actors import Publisher
from hpcjet.swarm.weights.cache import ServerAway

SLICE_S = 1.0
"""So long the index may wait for a batch before it says that there is none: ranks can be stopped in between."""
SLACK_S = 30.0
"""So much longer the answer itself may take, on a machine that is loaded."""
AGAIN_S = 0.2
Answer = TypeVar("Answer")


class RayPlane:
    """What a rank asks, by the names that its spec has."""

    def __init__(self, spec: LearnerSpec) -> None:
        self._spec = spec
        self._publisher = Publisher(spec.servers)

    def fetch(self, sample: Sample) -> Batch:
        return fetch(sample, self._spec.compression)

    def recover(self, version: int, state: Mapping[str, Any] | None, used: Mapping[Key, int]) -> None:
        # Seats count their attempts anew in a new run of a cluster; one that lives on knows them.
        given = None if state is None else {**state, "attempts": {}}
        self._ask(lambda index: _get(index.recover.remote(version, given, used)))

    def sample(self, policy: str, n: int) -> Sample | None:
        try:
            found: Sample | None = self._ask(lambda index: _get(index.sample.remote(policy, n, SLICE_S)))
        except IndexIsNew as error:
            raise IndexAnew from error
        return found

    def done(self, number: int, missing: Sequence[Key]) -> None:
        self._ask(lambda index: _get(index.done.remote(number, missing)))

    def update_priorities(self, priorities: Mapping[Key, float]) -> None:
        self._ask(lambda index: _get(index.update_priorities.remote(list(priorities), list(priorities.values()))))

    def advance(self, version: int) -> None:
        try:
            self._ask(lambda index: _get(index.advance.remote(version)))
        except IndexIsNew as error:
            raise IndexAnew from error

    def publish(self, version: int, weights: Mapping[str, Any]) -> None:
        # Nodes come and go: those that are there are told.
        caches = []
        for name in self._spec.caches:
            try:
                caches.append(get_actor(name))
            except lost_errors():
                continue
        self._publisher.caches = caches
        try:
            self._publisher.publish(version, weights, timeout_s=self._spec.patience_s)
        except ServerAway as error:
            raise RankError(f"version {version} could not be published: {error}") from error

    def index_state(self) -> Mapping[str, Any] | None:
        state: Mapping[str, Any] = self._ask(lambda index: _get(index.state_dict.remote()))
        return state

    def snapshots(self, seats: Sequence[str], version: int, timeout_s: float) -> dict[str, HostState]:
        return host_snapshots(seats, version, timeout_s)

    def _ask(self, call: Callable[[Any], Answer]) -> Answer:
        """Ray starts an index that died again: it is asked until it answers. Raises RankError."""
        deadline = time.monotonic() + self._spec.patience_s
        while True:
            try:
                return call(get_actor(INDEX))
            except lost_errors() as error:
                if time.monotonic() > deadline:
                    first = str(error).strip().partition("\n")[0]
                    raise RankError(
                        f"the index ({INDEX}) gave no answer for {self._spec.patience_s:g} s "
                        f"({type(error).__name__}: {first}); see whether the head's node is there, and its log"
                    ) from error
                time.sleep(AGAIN_S)


def _get(call: Any) -> Any:
    import ray

    return ray.get(call, timeout=SLICE_S + SLACK_S)
