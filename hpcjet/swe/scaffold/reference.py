"""scaffold=reference: applies the task's own solution, without a model. What fails with it is a fault of the task."""

import time
from pathlib import Path

from hpcjet.engine.endpoint import Endpoint
from hpcjet.errors import SandboxError
from hpcjet.sandbox.spec import Completed, Sandbox
from hpcjet.swe.scaffold.settings import ScaffoldSettings
from hpcjet.swe.scaffold.spec import Outcome
from hpcjet.swe.scaffold.trajectory import TrajectoryFile
from hpcjet.tasks.task import TESTBED, Task

_WAYS = ("git apply --whitespace=nowarn -", "patch -p1 --forward --batch")
_TAIL_BYTES = 2000


class ReferenceScaffold:
    """Plays the reference patch."""

    name = "reference"

    def __init__(self, settings: ScaffoldSettings) -> None:
        self._settings = settings

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
        tried: list[tuple[str, Completed]] = []
        outcome = Outcome(exit_status="Submitted")
        try:
            for way in _WAYS if task.patch else ():
                limit_s = max(0.1, min(deadline - time.monotonic(), self._settings.command_timeout_s))
                result = sandbox.run(way, timeout_s=limit_s, cwd=TESTBED, stdin=task.patch_bytes)
                tried.append((way, result))
                if result.returncode == 0:
                    break
        except SandboxError as error:
            outcome = Outcome(exit_status="SandboxError", failure="sandbox", detail=str(error))
        outcome = _summed(outcome, tried)
        TrajectoryFile(trajectory).write(
            {
                "info": {"scaffold": self.name, "session": session, "exit_status": outcome.exit_status},
                "commands": [{"command": way, "returncode": r.returncode, "output": _text(r)} for way, r in tried],
            }
        )
        return outcome


def _summed(outcome: Outcome, tried: list[tuple[str, Completed]]) -> Outcome:
    refused = bool(tried) and not outcome.failure and tried[-1][1].returncode != 0
    return Outcome(
        exit_status="PatchRefused" if refused else outcome.exit_status,
        failure=outcome.failure,
        detail=_text(tried[0][1]) if refused else outcome.detail,
        steps=len(tried),
        commands_s=sum(result.seconds for _, result in tried),
    )


def _text(result: Completed) -> str:
    return result.output[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
