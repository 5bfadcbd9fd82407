"""The first request of an engine: whether it answers, and leaves what the run is to record."""

import time
from typing import Any

from hpcjet.config.engine import Recording
from hpcjet.engine.chat import error_text
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.gateway.fields import amend, taken
from hpcjet.engine.gateway.trouble import Trouble
from hpcjet.engine.http import Late, Unanswered, request
from hpcjet.engine.vllm_extension import PROBE_HEADER
from hpcjet.errors import EngineError

_BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
_PAUSE_S = 0.5


def check_canary(endpoint: Endpoint, *, record: Recording, tools: bool, deadline: float) -> None:
    """One short chat completion, as agents will ask for it; `deadline` is in time.monotonic().

    Raises EngineError if it is refused or lacks what `record` needs, Unanswered if none came in time.
    """
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Late("no answer to the first request in time")
        answer = request(
            "POST",
            f"{endpoint.base_url}/chat/completions",
            timeout_s=left,
            api_key=endpoint.api_key,
            headers={PROBE_HEADER: "1"},
            body=canary(endpoint.model, record=record, tools=tools),
        )
        if answer.status == 200:
            _check_record(answer.json(), record)
            return
        text = error_text(answer, api_key=endpoint.api_key)
        if answer.status in (429, 503):
            time.sleep(_PAUSE_S)
            continue
        if answer.status >= 500:
            raise Unanswered(f"the first request was answered with HTTP {answer.status}: {text}")
        raise EngineError(f"the first request is refused (HTTP {answer.status}: {text}); {_advice(text)}")


def canary(model: str, *, record: Recording, tools: bool) -> dict[str, Any]:
    """The request: a few tokens, with the extras that a record needs."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 2}
    if tools:
        body |= {"tools": [_BASH], "tool_choice": "auto"}
    return amend(body, record)[0]


def _check_record(answer: Any, record: Recording) -> None:
    """Raises EngineError if the answer lacks what is to be recorded: nothing is ever made up in its place."""
    if record is Recording.text:
        return
    try:
        kept = taken(answer if isinstance(answer, dict) else {}, record)
    except Trouble as trouble:
        raise EngineError(f"engine.record={record.value}: {trouble.message}") from None
    if not kept["choices"]:
        raise EngineError(f"engine.record={record.value}: the engine's answer has no choice; see its log")


def _advice(text: str) -> str:
    if "chat template" in text.lower():
        return "the model has none: set engine.chat_template to a Jinja file"
    if "tool" in text.lower():
        return "set engine.tool_call_parser to one that the engine has for this model"
    return "see the engine's log"
