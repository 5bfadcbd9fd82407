"""What answers the agents of a run: a gateway, and behind it one server, or a router and a pool of replicas."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from hpcjet.config.engine import EngineConfig
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.gateway import Gateway, Limits
from hpcjet.engine.run_keys import gateway_secret
from hpcjet.engine.spec import Engine
from hpcjet.errors import EngineError
from hpcjet.rundir import RunDir

CONNECT_S = 10.0
"""Until a server that may be far away takes a connection."""


def awaits_nothing() -> str:
    return ""


class Serving(Protocol):
    """Made by the workload on the head. `start` and `stop` frame it, whatever happens between."""

    def start(self) -> None:
        """Begin without waiting. Raises EngineError for what is wrong already."""
        ...

    def wait_ready(self, *, deadline: float, awaited: Callable[[], str] = awaits_nothing) -> None:
        """Wait until it answers; `deadline` is in time.monotonic(). Raises EngineError, which names the log.

        `awaited` is asked again and again which nodes have to come first, such as "a node of gpu"; as long as it names
        some, the time until the deadline does not begin.
        """
        ...

    def endpoint(self, session: str, *, valid_s: float) -> Endpoint:
        """Where the attempt with this session id asks, with a key that is good for so many seconds at least."""
        ...

    def finish(self, session: str) -> None:
        """The attempt with this session id has ended; returns at once."""
        ...

    def check(self) -> None:
        """Raises EngineError if nothing will ever answer again."""
        ...

    def drain(self, node: str, *, reason: str, by: float | None) -> None:
        """The node of this member is taken away, at `by` (Unix seconds) at the latest; told once. Its replicas get no
        new requests as soon as others go on, or when only engine.drain_s are left. Returns at once."""
        ...

    def lose(self, node: str) -> None:
        """The node of this member is gone; returns at once."""
        ...

    def has_left(self, node: str) -> bool:
        """Whether nothing is under way on a node that drains any more: it may be given back."""
        ...

    @property
    def agent_cores(self) -> Mapping[str, int]:
        """Member -> cores of its node that the engine leaves to the agents, where it takes some."""
        ...

    def stop(self) -> None:
        """End it within a few seconds."""
        ...


class OneServer:
    """Serving by one engine of this node, or of somebody else, behind a gateway: keys, deadlines and records are those
    of a pool."""

    def __init__(
        self, engine: Engine, config: EngineConfig, run: RunDir, *, address: str, port: int, logs: Path
    ) -> None:
        """`address` and `port`: where the gateway listens; `logs`: folder for its log."""
        self._engine, self._config, self._run = engine, config, run
        self._address, self._port, self._logs = address, port, logs
        self._gateway: Gateway | None = None
        self._model = self._label = ""

    def start(self) -> None:
        self._engine.start()

    def wait_ready(self, *, deadline: float, awaited: Callable[[], str] = awaits_nothing) -> None:
        config, server = self._config, self._engine.wait_ready(deadline=deadline)
        self._model, self._label = server.model, server.label
        within_s = config.request_timeout_s
        self._gateway = Gateway(
            server.base_url, gateway_secret(self._run), self._run.calls, record=config.record, host=self._address,
            port=self._port, api_key=server.api_key, log=self._logs / "gateway.log", routed=False,
            limits=Limits(total_s=within_s, try_s=within_s, connect_s=CONNECT_S),
        )  # fmt: skip
        self._gateway.start()
        self._gateway.wait_ready(deadline=deadline)
        if config.record.ids:
            self._gateway.check(model=self._model, deadline=deadline)

    def endpoint(self, session: str, *, valid_s: float) -> Endpoint:
        assert self._gateway is not None, "wait_ready comes first"
        return self._gateway.endpoint(session, model=self._model, valid_s=valid_s, label=self._label)

    def finish(self, session: str) -> None:
        pass

    def check(self) -> None:
        if not self._engine.alive():
            raise EngineError("the engine ended in mid-run")

    def drain(self, node: str, *, reason: str, by: float | None) -> None:
        pass

    def lose(self, node: str) -> None:
        pass

    def has_left(self, node: str) -> bool:
        return True

    @property
    def agent_cores(self) -> Mapping[str, int]:
        return {}

    def stop(self) -> None:
        if self._gateway is not None:
            self._gateway.stop()
        self._engine.stop()
