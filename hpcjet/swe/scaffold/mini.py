"""scaffold=mini: mini-swe-agent's agent loop, over our sandbox and our requests."""

import logging
import os
import tempfile
import threading
from pathlib import Path
from types import ModuleType

from hpcjet.engine.endpoint import Endpoint
from hpcjet.sandbox.spec import Sandbox
from hpcjet.swe.scaffold.settings import ScaffoldSettings
from hpcjet.swe.scaffold.spec import Outcome
from hpcjet.tasks.task import Task

_loading = threading.Lock()


class MiniScaffold:
    """mini-swe-agent's DefaultAgent, many at a time in the threads of one process."""

    name = "mini"

    def __init__(self, settings: ScaffoldSettings) -> None:
        self._settings = settings
        self._agent = _import_agent()

    def run(
        self,
        task: Task,
        sandbox: Sandbox,
        *,
        endpoint: Endpoint | None,
        session: str,
        deadline: float,
        trajectory: Path,
    ) -> Outcome:
        assert endpoint is not None
        outcome: Outcome = self._agent.run_agent(
            task, sandbox, self._settings, endpoint=endpoint, session=session, deadline=deadline, trajectory=trajectory
        )
        return outcome


def _import_agent() -> ModuleType:
    """mini_agent, with mini-swe-agent kept from greeting and from making a folder and reading keys in the home."""
    with _loading, tempfile.TemporaryDirectory(prefix="hpcjet-mini-") as empty:
        before = {name: os.environ.get(name) for name in ("MSWEA_SILENT_STARTUP", "MSWEA_GLOBAL_CONFIG_DIR")}
        os.environ.update(MSWEA_SILENT_STARTUP="1", MSWEA_GLOBAL_CONFIG_DIR=empty)
        try:
            from hpcjet.swe.scaffold import mini_agent
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
        # It gives its logger a handler that prints, and its agent logs whole conversations at DEBUG.
        logging.getLogger("minisweagent").handlers.clear()
        logging.getLogger("agent").setLevel(logging.WARNING)
    return mini_agent
