"""The first request of an engine: whether it answers, and leaves what the run is to record."""

import time
from typing import Any

from hpcjet.config.engine import Recording
from hpcjet.engine.chat import error_text
from hpcjet.engine.endpoint import Endpoint
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
    if record is not Recording.text:
        body["return_token_ids"] = True
    if record is Recording.logprobs:
        body["logprobs"] = True
    return body


def _check_record(answer: Any, record: Recording) -> None:
    """Raises EngineError if the answer lacks what is to be recorded: nothing is ever made up in its place."""
    if record is Recording.text:
        return
    choices = answer.get("choices") if isinstance(answer, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    if not has_token_ids(answer, choice):
        raise EngineError(
            f"engine.record={record.value} needs token ids, and this engine returns none; use a version that does "
            "(such as vLLM 0.32 or SGLang 0.5.23), or set engine.record=text"
        )
    if record is Recording.logprobs and not choice.get("logprobs"):
        raise EngineError(
            "engine.record=logprobs needs log-probabilities, and this engine returns none; set engine.record=tokens"
        )


def has_token_ids(answer: Any, choice: Any) -> bool:
    """Those of prompt and answer: vLLM and SGLang, asked in the same words, put them in different places."""
    vllm = answer.get("prompt_token_ids") and choice.get("token_ids")
    return bool(vllm or (choice.get("prompt_token_ids") and choice.get("response_token_ids")))


def _advice(text: str) -> str:
    if "chat template" in text.lower():
        return "the model has none: set engine.chat_template to a Jinja file"
    if "tool" in text.lower():
        return "set engine.tool_call_parser to one that the engine has for this model"
    return "see the engine's log"
