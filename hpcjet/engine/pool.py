"""The pool: replicas on the nodes of a run, a router that spreads conversations over them, a gateway for the agents.

It runs on the head, in the driver. The replicas belong to the sidecars of the nodes (hpcjet.engine.node).
"""

import contextlib
import json
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcjet.atomic import atomic_write
from hpcjet.cluster.lifeline import Hub
from hpcjet.cluster.members import HELLO
from hpcjet.config.engine import ServedConfig, SglangConfig
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.gateway import Dialect, Gateway, Limits
from hpcjet.engine.gateway.keys import SHARED
from hpcjet.engine.gauges import Gauges
from hpcjet.engine.members import Leave, PoolMembers, key_of
from hpcjet.engine.router import Router
from hpcjet.engine.routing import Routing
from hpcjet.engine.run_keys import engine_key, gateway_secret
from hpcjet.engine.served import kind
from hpcjet.engine.serving import awaits_nothing
from hpcjet.engine.weights import Outcome, PoolWeights, read_asked
from hpcjet.engine.words import PLACE, RESTART, RestartOrder, to_json
from hpcjet.errors import ConfigError, EngineError
from hpcjet.rundir import RunDir

LOOPBACK = "127.0.0.1"
STRAGGLERS_S = 20.0
"""How long the first node waits for the others before the replicas are laid out over those that are in."""
_LISTEN_S = 0.2
_REMEMBERED = 1024
_STATUS_S = 1.0
_LOOK_S = 2.0
_AWAIT_S = 0.5
_CHECK_S = 60.0

_log = logging.getLogger(__name__)


class Pool:
    """Serving by replicas on the nodes."""

    def __init__(
        self, config: ServedConfig, run: RunDir, *, address: str, ports: Mapping[str, int], hosts: Mapping[int, str],
        logs: Path, head: str = "", grows: bool = False,
    ) -> None:  # fmt: skip
        """`address`: of this node; `ports`: engine, router and pool on it; `logs`: folder for those of the parts.

        `hosts`: rank -> host of the nodes of the head allocation that have replicas; `head`: its
        <allocation>-<restart>; `grows`: whether nodes of other allocations have replicas too.
        """
        self._config, self._run, self._ports, self._logs = config, run, ports, logs
        self._members = PoolMembers(config, hosts, head, grows)
        self._hub: Hub | None = None
        key = engine_key(run)
        self._router = Router(host=LOOPBACK, port=ports["router"], api_key=key, log=logs / "router.log")
        limits = Limits(total_s=config.request_timeout_s, try_s=config.request_timeout_s)
        self._gateway = Gateway(
            self._router.url, gateway_secret(run), run.calls, record=config.record, dialect=Dialect(kind(config)),
            host=address, port=ports["engine"], api_key=key, log=logs / "gateway.log", limits=limits,
            status=run.engine,
        )  # fmt: skip
        self._weights = PoolWeights(api_key=key)
        self._routing = Routing(config, self._members, self._router, self._weights, self._tell_news)
        self._departing: queue.SimpleQueue[tuple[str, Leave | None]] = queue.SimpleQueue()
        """Nodes that drain, or are lost where there is no Leave."""
        self._ordered: deque[tuple[str, RestartOrder]] = deque(maxlen=_REMEMBERED)
        """Restarts of parts that others left behind: each is ordered once."""
        self._news = threading.Condition()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="pool", daemon=True)
        self._problem = ""
        self._first_hello: float | None = None
        self._next_status = 0.0
        self._gauges = Gauges()
        self._loads: dict[str, dict[str, Any]] = {}
        self._looking = threading.Thread(target=self._look, name="pool-gauges", daemon=True)

    def start(self) -> None:
        """Begin to listen for the nodes, and start router and gateway. Raises EngineError."""
        try:
            self._hub = Hub(self._ports["pool"], secret=engine_key(self._run))
        except OSError as error:
            raise EngineError(f"the pool cannot listen on port {self._ports['pool']}: {error.strerror}") from error
        self._router.start()
        self._gateway.start()
        self._thread.start()
        self._looking.start()

    def wait_ready(self, *, deadline: float, awaited: Callable[[], str] = awaits_nothing) -> None:
        """Until one replica has answered a request through the whole path."""
        allowed_s = deadline - time.monotonic()
        self._router.wait_ready(deadline=deadline)
        self._gateway.wait_ready(deadline=deadline)
        said = ""
        while not (self._routing.serves or self._problem) and time.monotonic() < deadline:
            if what := awaited():
                deadline = time.monotonic() + allowed_s
                if what != said:
                    _log.info("waiting for %s, which has the replicas", what)
            said = what
            with self._news:
                self._news.wait_for(lambda: self._routing.serves or self._problem, timeout=_AWAIT_S)
        if not self._routing.serves:
            raise EngineError(self._problem or self._too_slow())
        self._gateway.check(model=self._config.name, deadline=min(deadline, time.monotonic() + _CHECK_S))

    def endpoint(self, session: str, *, valid_s: float) -> Endpoint:
        label = f"{self._config.name} ({kind(self._config)})"
        return self._gateway.endpoint(session, model=self._config.name, valid_s=valid_s, label=label)

    def open_endpoint(self, *, valid_s: float) -> Endpoint:
        """For many clients: each conversation that names itself by X-Session-ID stays on its replica."""
        return self.endpoint(SHARED, valid_s=valid_s)

    def metrics_key(self, *, valid_s: float) -> str:
        """The key with which Prometheus may read GET /metrics, and nothing else."""
        return self._gateway.metrics_key(valid_s=valid_s)

    def finish(self, session: str) -> None:
        """Nothing more comes of this conversation."""
        self._routing.finish(session)

    def check(self) -> None:
        if self._problem:
            raise EngineError(self._problem)

    def update_weights(
        self, path: str | Path, version: int, *, policy: str = "wait", timeout_s: float = 600.0
    ) -> dict[str, Outcome]:
        """Have every replica that serves load the weights in `path`; every later answer carries `version`.

        `policy`: wait has the requests that run end first, for at most `timeout_s`; abort has them asked again. Returns
        what became of each replica; one that failed gets no requests until it has the new weights too, as does one that
        starts later. Raises ConfigError for what is wrong in the request, such as a version that is not newer, and
        EngineError if no replica changed: then the pool goes on as before.
        """
        if isinstance(self._config, SglangConfig):
            raise ConfigError("engine=sglang: a pool cannot change its weights yet; use engine=vllm")
        weights, chosen = read_asked(path, version, policy)
        numbers = {self._members.replicas[number].place.name: number for number in self._routing.numbers}
        urls = {name: self._members.replicas[number].url for name, number in numbers.items()}
        found = self._weights.change(
            urls, weights, chosen, timeout_s=timeout_s, lose=lambda name, why: self._routing.lose(numbers[name], why)
        )
        updated = sum(each.updated for each in found.values())
        _log.info("weights %d of %s: %d of %d replicas have them", version, path, updated, len(found))
        return found

    def drain(self, node: str, *, reason: str, by: float | None) -> None:
        self._departing.put((node, Leave(reason, by)))

    def lose(self, node: str) -> None:
        self._departing.put((node, None))

    def has_left(self, node: str) -> bool:
        return node in self._routing.left

    def stop(self) -> None:
        """End gateway and router; the replicas end with their sidecars."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self._gateway.stop()
        self._router.stop()
        self._routing.close()
        if self._hub:
            self._hub.close()

    @property
    def agent_cores(self) -> Mapping[str, int]:
        """Node -> cores that no replica has, of the nodes with replicas."""
        return self._members.agents

    def _serve(self) -> None:
        try:
            while not self._ending.is_set():
                self._listen()
                self._depart()
                self._place()
                self._restart()
                self._routing.look()
                if why := self._members.why_none():
                    self._fail(why)
                self._routing.look_who_left()
                self._write_status()
        except Exception as error:
            # The last resort: those who wait for the pool must hear of it.
            _log.exception("the pool failed")
            self._fail(f"the pool failed: {error}")

    def _listen(self) -> None:
        assert self._hub is not None
        for word in self._hub.serve(_LISTEN_S):
            self._members.take(word)
            if word.word == HELLO:
                self._first_hello = self._first_hello or time.monotonic()
                self._tell(key_of(word))

    def _depart(self) -> None:
        """Note which nodes drain or are lost; each is told of once."""
        while not self._departing.empty():
            node, leave = self._departing.get()
            if leave is None:
                self._members.lose(node)
            else:
                self._members.leaving[node] = leave

    def _place(self) -> None:
        """On the head allocation once, when all its nodes are in or the others take too long; then, and on other
        allocations, node by node as they join."""
        members, waited_s = self._members, time.monotonic() - (self._first_hello or time.monotonic())
        if self._problem:
            return
        seated: list[str] = []
        if not members.is_laid_out and members.any_in and (members.all_in or waited_s > STRAGGLERS_S):
            try:
                members.place()
            except ConfigError as error:
                self._fail(str(error))
                return
            seated = list(members.nodes) if members.replicas else []
        refused = len(members.without)
        seated += members.seat_late()
        for node, why in list(members.without.items())[refused:]:
            _log.warning("%s has no replica: %s", members.nodes[node].host, why)
        if seated:
            living = [each for each in members.replicas.values() if not each.retired]
            _log.info("%d replicas on %d nodes", len(living), len({node for each in living for node in each.nodes}))
        for node in seated:
            self._tell(node)

    def _tell(self, node: str) -> None:
        if self._hub and self._members.replicas and node not in self._routing.left:
            parent = self._members.stage_parent(node)
            self._hub.tell(
                node, PLACE, shares=to_json(self._members.orders(node)), parent=asdict(parent) if parent else None
            )

    def _restart(self) -> None:
        """Have replicas started again that do not get the pool's weights, and parts of which others began anew."""
        assert self._hub is not None
        orders = []
        for number, why in self._routing.take_spoiled():
            orders += self._members.restart_orders(number, why)
        for rank, order in self._members.behind():
            if (rank, order) not in self._ordered:
                self._ordered.append((rank, order))
                orders.append((rank, order))
        for rank, order in orders:
            self._hub.tell(rank, RESTART, **asdict(order))

    def _tell_news(self) -> None:
        with self._news:
            self._news.notify_all()

    def _fail(self, problem: str) -> None:
        with self._news:
            self._problem = self._problem or problem
            self._news.notify_all()

    def _too_slow(self) -> str:
        members = [each for each in self._members.replicas.values() if not each.retired]
        states = [f"{each.place.name} {each.state.value}" for each in members]
        hosts = self._members.missing[:4] or ["any node that has joined"]
        facts = states or [f"no word from the sidecar of {host}" for host in hosts]
        reasons = [each.reason for each in members if each.reason]
        return (
            f"no replica answers within engine.start_timeout_s={self._config.start_timeout_s:g}: {', '.join(facts)}"
            f"{'; ' + reasons[0] if reasons else ''}; raise it if they are still loading; "
            f"log: {self._members.first_log(self._logs) or self._logs}"
        )

    def _look(self) -> None:
        """What the replicas are doing, beside all else: one that hangs must not hold up the others."""
        key = engine_key(self._run)
        while not self._ending.wait(_LOOK_S):
            for number, member in list(self._members.replicas.items()):
                if member.serves:
                    began = time.monotonic()
                    self._loads[member.url] = self._gauges.look(member.url, api_key=key)
                    self._routing.take_load(number, self._loads[member.url], began=began)
                else:
                    self._loads.pop(member.url, None)

    def _write_status(self) -> None:
        if time.monotonic() < self._next_status:
            return
        self._next_status = time.monotonic() + _STATUS_S
        rows = [
            {
                "name": each.place.name, "hosts": [share.host for share in each.place.shares], "url": each.url,
                "state": each.state.value, "routed": self._routing.takes(number), "restarts": each.restarts,
                "reason": each.reason, "since": each.since, **self._loads.get(each.url, {}),
            }
            for number, each in self._members.replicas.items()
            if not each.retired
        ]  # fmt: skip
        with contextlib.suppress(OSError):  # a full disk is no reason to stop serving
            version = self._weights.current.version
            data = {"model": self._config.name, "version": version, "updated": time.time(), "replicas": rows}
            atomic_write(self._run.engine, json.dumps(data))
