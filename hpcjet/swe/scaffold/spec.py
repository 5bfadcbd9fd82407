"""The seam between the agent workload and the scaffolds that drive an agent."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hpcjet.engine.endpoint import Endpoint
from hpcjet.sandbox.spec import Sandbox
from hpcjet.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an agent ended; what it changed is read from its tree, not from here."""

    exit_status: str
    """Submitted, LimitsExceeded, TimeExceeded, RepeatedFormatError, or the name of an exception."""
    steps: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    llm_s: float = 0.0
    commands_s: float = 0.0
    failure: str = ""
    """Class of an infrastructure failure (`engine`, `sandbox`), else empty: the agent's own failures are results."""
    detail: str = ""


class Scaffold(Protocol):
    """Drives one agent through one task in a sandbox whose working tree is at TESTBED."""

    name: str

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
        """Work on the task until done or until `deadline` (time.monotonic()); the trajectory (JSON) grows meanwhile.

        `session` is a unique id of this attempt, sent to the engine with each request. Does not raise for what an agent
        or an engine did: that is an Outcome.
        """
        ...
