"""What answers the agents of a run, whatever engine it is: one server, or a pool of replicas behind a gateway."""

from collections.abc import Mapping
from typing import Protocol

from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.spec import Engine
from hpcjet.errors import EngineError


class Serving(Protocol):
    """Made by the workload on the head. `start` and `stop` frame it, whatever happens between."""

    def start(self) -> None:
        """Begin without waiting. Raises EngineError for what is wrong already."""
        ...

    def wait_ready(self, *, deadline: float) -> None:
        """Wait until it answers; `deadline` is in time.monotonic(). Raises EngineError, which names the log."""
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

    @property
    def agent_cores(self) -> Mapping[str, int]:
        """Host -> cores that the engine leaves to the agents, where it takes some."""
        ...

    def stop(self) -> None:
        """End it within a few seconds."""
        ...


class OneServer:
    """Serving by one engine of this node, or of somebody else."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._endpoint: Endpoint | None = None

    def start(self) -> None:
        self._engine.start()

    def wait_ready(self, *, deadline: float) -> None:
        self._endpoint = self._engine.wait_ready(deadline=deadline)

    def endpoint(self, session: str, *, valid_s: float) -> Endpoint:
        assert self._endpoint is not None, "wait_ready comes first"
        return self._endpoint

    def finish(self, session: str) -> None:
        pass

    def check(self) -> None:
        if not self._engine.alive():
            raise EngineError("the engine ended in mid-run")

    @property
    def agent_cores(self) -> Mapping[str, int]:
        return {}

    def stop(self) -> None:
        self._engine.stop()
