"""One run of mini-swe-agent's agent. Imports mini-swe-agent: only MiniScaffold imports this, after its preparations."""

import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.exceptions import TimeExceeded

from hpcjet.engine.endpoint import Endpoint
from hpcjet.errors import SandboxError
from hpcjet.sandbox.spec import Sandbox
from hpcjet.swe.scaffold.meter import Meter
from hpcjet.swe.scaffold.mini_environment import SandboxEnvironment, exit_message
from hpcjet.swe.scaffold.mini_model import ChatModel
from hpcjet.swe.scaffold.settings import ScaffoldSettings
from hpcjet.swe.scaffold.spec import Outcome
from hpcjet.swe.scaffold.trajectory import TrajectoryFile
from hpcjet.tasks.task import TESTBED, Recipe, Task

TEMPLATES = Path(__file__).with_name("mini.yaml")
_JUNIT = "/tmp/junit.xml"


class DeadlineAgent(DefaultAgent):
    """DefaultAgent that stops at a deadline and writes its trajectory now and then instead of at every step."""

    def __init__(self, *args: Any, deadline: float, trajectory: TrajectoryFile, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline = deadline
        self._trajectory = trajectory

    def query(self) -> dict[str, Any]:
        if time.monotonic() >= self._deadline:
            raise TimeExceeded(exit_message("TimeExceeded", "the time of the attempt was over"))
        message: dict[str, Any] = super().query()
        return message

    def save(self, path: Path | None, *extra_dicts: dict[str, Any]) -> dict[str, Any]:
        """Called after every step; `path` is not used, the trajectory file knows its own."""
        if self.messages[-1]["role"] == "exit":
            self._trajectory.write(self.serialize(*extra_dicts))
        else:
            self._trajectory.offer(lambda: self.serialize(*extra_dicts))
        return {}


def run_agent(
    task: Task,
    sandbox: Sandbox,
    settings: ScaffoldSettings,
    *,
    endpoint: Endpoint,
    session: str,
    deadline: float,
    trajectory: Path,
) -> Outcome:
    """Let the agent work on the task; what the agent, the engine or the sandbox did becomes an Outcome."""
    meter = Meter()
    templates = load_templates()
    agent = DeadlineAgent(
        ChatModel(endpoint, settings, templates=templates, session=session, deadline=deadline, meter=meter),
        SandboxEnvironment(sandbox, settings, meter=meter, deadline=deadline),
        deadline=deadline,
        trajectory=TrajectoryFile(trajectory),
        system_template=templates["system_template"],
        instance_template=templates["instance_template"],
        step_limit=settings.step_limit,
        cost_limit=settings.cost_limit,
        max_consecutive_format_errors=settings.format_error_limit,
    )
    try:
        end = agent.run(_printable(task.problem_statement), **prompt_variables(task.recipe, settings))
    except SandboxError as error:
        return _outcome(meter, exit_status="SandboxError", failure="sandbox", detail=str(error))
    status = str(end.get("exit_status", ""))
    failure = "engine" if status == "EngineFailed" else ""
    return _outcome(meter, exit_status=status, failure=failure, detail=str(end.get("detail", "")))


def prompt_variables(recipe: Recipe, settings: ScaffoldSettings) -> dict[str, Any]:
    """What the templates are given besides the task. The names of the deciding tests are not told."""
    return {
        "testbed": TESTBED,
        "tool_calls": settings.tool_calls,
        "command_timeout_s": f"{settings.command_timeout_s:g}",
        "rebuild": recipe.rebuild.replace("{cpus}", "$(nproc)"),
        "rebuild_paths": " ".join(recipe.rebuild_paths),
        "test_command": recipe.test_command.replace("{junit}", _JUNIT).replace("{tests}", "TESTS"),
    }


@lru_cache(maxsize=1)
def load_templates() -> Mapping[str, str]:
    templates: Mapping[str, str] = yaml.safe_load(TEMPLATES.read_text(encoding="utf-8"))
    return templates


def _printable(statement: str) -> str:
    """Bytes that were no UTF-8 stand as lone surrogates, which servers refuse."""
    return statement.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _outcome(meter: Meter, *, exit_status: str, failure: str = "", detail: str = "") -> Outcome:
    return Outcome(
        exit_status=exit_status,
        steps=meter.steps,
        tokens=dict(meter.tokens),
        llm_s=meter.llm_s,
        commands_s=meter.commands_s,
        failure=failure,
        detail=detail,
    )
