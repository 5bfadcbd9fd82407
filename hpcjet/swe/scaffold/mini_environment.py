"""mini-swe-agent's Environment over a living sandbox. Imports mini-swe-agent: only mini_agent imports this."""

import time
from typing import Any

from minisweagent.exceptions import Submitted, TimeExceeded

from hpcjet.sandbox.spec import Completed, Sandbox
from hpcjet.swe.scaffold.meter import Meter
from hpcjet.swe.scaffold.settings import ScaffoldSettings
from hpcjet.tasks.task import TESTBED

SENTINEL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_SHORTEST_S = 0.1
_LONGEST_SUBMISSION = 10_000
"""Characters; for the reader only, the patch is taken from the tree."""


class SandboxEnvironment:
    """Runs an agent's commands, each in a new shell at TESTBED. SandboxError passes through: it is not the agent's."""

    def __init__(self, sandbox: Sandbox, settings: ScaffoldSettings, *, meter: Meter, deadline: float) -> None:
        self.config = None
        self._sandbox = sandbox
        self._settings = settings
        self._meter = meter
        self._deadline = deadline

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        command = action.get("command", "")
        if not isinstance(command, str) or "\0" in command:
            return _not_run("the command must be a text without NUL characters")
        began = time.monotonic()
        if began >= self._deadline:
            # One answer may hold many commands.
            raise TimeExceeded(exit_message("TimeExceeded", "the time of the attempt was over"))
        limit_s = max(_SHORTEST_S, min(self._settings.command_timeout_s, self._deadline - began))
        try:
            result = self._sandbox.run(_encodable(command), timeout_s=limit_s, cwd=cwd or TESTBED)
        finally:
            self._meter.commands_s += time.monotonic() - began
        text = result.output.decode("utf-8", "replace")
        _raise_if_submitted(text, result)
        return {
            "output": _shortened(text, self._settings.output_characters, already_cut=result.dropped_bytes),
            "returncode": result.returncode,
            "exception_info": _note(result, limit_s),
        }

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        """Nothing of this host: what templates show reaches the model."""
        return {}

    def serialize(self) -> dict[str, Any]:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        config = {"cwd": TESTBED, "timeout": self._settings.command_timeout_s}
        return {"info": {"config": {"environment": config, "environment_type": kind}}}


def exit_message(status: str, detail: str) -> dict[str, Any]:
    """The message that ends mini-swe-agent's loop."""
    return {"role": "exit", "content": detail, "extra": {"exit_status": status, "submission": "", "detail": detail}}


def _not_run(reason: str) -> dict[str, Any]:
    return {"output": "", "returncode": -1, "exception_info": f"Not run: {reason}."}


def _encodable(command: str) -> str:
    """A model can write halves of surrogate pairs, which no UTF-8 text holds."""
    return command.encode("utf-8", "replace").decode("utf-8")


def _raise_if_submitted(text: str, result: Completed) -> None:
    first, _, rest = text.lstrip().partition("\n")
    if first.strip() == SENTINEL and result.returncode == 0 and not result.timed_out:
        submission = rest[:_LONGEST_SUBMISSION]
        raise Submitted(
            {"role": "exit", "content": submission, "extra": {"exit_status": "Submitted", "submission": submission}}
        )


def _note(result: Completed, limit_s: float) -> str:
    if result.timed_out:
        return f"The command took longer than {limit_s:.0f} s and was ended; its output up to then follows."
    if result.limit:
        return f"The command was ended: it reached the limit of {result.limit}."
    return ""


def _shortened(text: str, most: int, *, already_cut: int) -> str:
    """Head and tail of a long output, with what is missing between them named."""
    if len(text) <= most:
        return text
    head, tail = text[: most // 2], text[len(text) - most // 2 :]
    missing = len(text) - len(head) - len(tail)
    more = f" and {already_cut} bytes" if already_cut else ""
    hint = "show parts of it with head, tail, sed or grep, or write it to a file first"
    return f"{head}\n[... {missing} characters{more} left out; {hint} ...]\n{tail}"
