"""Which replicas of a pool get requests: those that serve, have the pool's weights, and stay."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from hpcjet.config.engine import ServedConfig, SglangConfig
from hpcjet.engine.members import PoolMembers
from hpcjet.engine.pooled import PooledReplica
from hpcjet.engine.quiet import Quiet
from hpcjet.engine.router import Router
from hpcjet.engine.weights import NotDone, PoolWeights
from hpcjet.errors import EngineError

ADD_S = 30.0
_TRIES = 3
"""How often a replica may fail to get the pool's weights before it is started again."""
_LONGEST_PAUSE_S = 30.0

_log = logging.getLogger(__name__)


class Routing:
    """Has the router know these replicas, and no others. `look` and what looks are the pool's thread; each replica is
    brought up in one of its own."""

    def __init__(
        self, config: ServedConfig, members: PoolMembers, router: Router, weights: PoolWeights,
        changed: Callable[[], None],
    ) -> None:  # fmt: skip
        """`changed` is called when the router has taken a replica."""
        self._config, self._members, self._router, self._weights = config, members, router, weights
        self._changed = changed
        self._lock = threading.Lock()
        self._adding = ThreadPoolExecutor(8, thread_name_prefix="add-replica")
        self._routed: dict[int, bool] = {}
        """Replicas that the router was told of: whether it has taken them."""
        self._lives: dict[int, int] = {}
        """The life of each when it was last added: another one begins with other weights."""
        self._tries: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        """Of replicas that failed to get the pool's weights: how often, and when they are asked again."""
        self._quiet = Quiet(config.drain_s)
        self._spoiled: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self.left: set[str] = set()
        """Nodes that drain and have nothing of a request's under way any more."""

    @property
    def numbers(self) -> list[int]:
        """Of the replicas that the router was told of."""
        return list(self._routed)

    @property
    def serves(self) -> bool:
        """Whether a replica takes requests."""
        return any(list(self._routed.values()))

    def takes(self, number: int) -> bool:
        """Whether this one takes requests."""
        return self._routed.get(number, False)

    def look(self) -> None:
        """Add replicas that have begun to serve, and lose those that no longer do, or are to leave."""
        for number, member in self._members.replicas.items():
            drains = self._drains(member) if member.serves else ""
            wanted = member.serves and not drains
            if wanted and number not in self._routed:
                if time.monotonic() >= self._not_before.get(number, 0.0):
                    self._routed[number], self._lives[number] = False, member.life
                    self._adding.submit(self._add, number, member)
            elif number in self._routed and (not wanted or self._lives[number] != member.life):
                self.lose(number, drains or f"{member.state.value} {member.reason}")

    def look_who_left(self) -> None:
        members = self._members
        for node in members.leaving.keys() - self.left:
            here = [number for number, _ in members.on_node(node)]
            if node in members.gone or not any(
                number in self._routed or not self._quiet.is_quiet(number) for number in here
            ):
                self.left.add(node)
                _log.info("%s has no requests under way any more: %s", node, members.leaving[node].reason)

    def lose(self, number: int, why: str) -> None:
        """Give it no more requests, until it serves again with the pool's weights."""
        _log.warning("replica-%d gets no more requests: %s", number, why[:300])
        with self._lock:
            self._routed.pop(number, None)
        self._router.remove(self._members.replicas[number].url)
        self._quiet.part(number)

    def take_load(self, number: int, load: Mapping[str, Any], *, began: float) -> None:
        """What a look at the replica found, which began at that time."""
        self._quiet.take(number, load, began=began)

    def take_spoiled(self) -> list[tuple[int, str]]:
        """Replicas that are to be started again since they do not get the pool's weights, and why."""
        found = []
        while not self._spoiled.empty():
            found.append(self._spoiled.get())
        return found

    def finish(self, session: str) -> None:
        """The router counts the conversations of each replica, and would count this one for ever."""
        self._adding.submit(self._router.finish_session, quote(session))  # quoted, as the gateway names it

    def close(self) -> None:
        self._adding.shutdown(wait=False, cancel_futures=True)

    def _drains(self, member: PooledReplica) -> str:
        """Why it is to get no more requests: its node is taken away soon, and another replica goes on, or it is nearly
        too late for what is under way. Empty if it goes on."""
        if any(node in self.left for node in member.nodes):
            return "its node is given back"
        now, ends, leave = time.time(), self._members.ends(member), self._members.leave_of(member)
        if leave is not None and (self._others(member) or leave.by is None or now >= leave.by - self._config.drain_s):
            return f"its node drains: {leave.reason}"
        if ends is None or now < ends - self._config.drain_s:
            return ""
        later = any((self._members.ends(each) or float("inf")) > ends for each in self._others(member))
        return "its allocation ends" if later else ""

    def _others(self, member: PooledReplica) -> list[PooledReplica]:
        """Those that serve, and stay."""
        replicas = self._members.replicas.values()
        return [
            each for each in replicas if each is not member and each.serves and self._members.leave_of(each) is None
        ]

    def _add(self, number: int, member: PooledReplica) -> None:
        if not self._bring_up(number, member):
            self._routed.pop(number, None)
            return
        try:
            self._router.add(member.url, deadline=time.monotonic() + ADD_S)
        except EngineError as error:
            _log.warning("%s", error)
            self._routed.pop(number, None)
            return
        with self._lock:
            if wanted := number in self._routed:
                _log.info("replica-%d takes requests at %s", number, member.url)
                self._routed[number] = True
                self._quiet.forget(number)
        if not wanted:  # it was lost while the router took it
            self._router.remove(member.url)
        self._changed()

    def _bring_up(self, number: int, member: PooledReplica) -> bool:
        """Whether it has the pool's weights, and takes requests."""
        if isinstance(self._config, SglangConfig):
            return True
        try:
            self._weights.bring_up(member.url)
        except EngineError as error:
            tries = self._tries[number] = self._tries.get(number, 0) + 1
            _log.warning("replica-%d has not the pool's weights: %s", number, error)
            self._not_before[number] = time.monotonic() + min(_LONGEST_PAUSE_S, 2.0**tries)
            if tries % _TRIES == 0 or (isinstance(error, NotDone) and error.broken):
                self._spoiled.put((number, f"it does not get the pool's weights: {error}"))
            return False
        self._tries.pop(number, None)
        return True
