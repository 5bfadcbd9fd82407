"""What is added to a request so that its answer can be recorded, and taken out of the answer that the client sees.

Token ids have other names in other engines. vLLM: asked for with return_token_ids; `prompt_token_ids` of the answer,
`token_ids` of a choice, in the chunks of a stream too. SGLang 0.5: asked for in the same words, but refused for a
stream; `prompt_token_ids` and `response_token_ids` of a choice. For a stream it has return_input_ids_in_sglext and
return_output_ids_in_sglext; after the last choice comes a chunk with `sglext`: `input_ids`, and `output_ids` of each
choice (sglang/srt/entrypoints/openai/protocol.py and serving_chat.py of 0.5.23).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hpcjet.config.engine import Recording
from hpcjet.engine.gateway.trouble import Trouble

_NUMBERS = (float, int)
_LARGEST = 2**31
_SGLANG_STREAM = ("return_input_ids_in_sglext", "return_output_ids_in_sglext")
_IDS = ("input_ids", "output_ids")


class Dialect(Enum):
    """In whose words an engine is asked for token ids."""

    vllm = "vllm"
    sglang = "sglang"


@dataclass(frozen=True)
class Asked:
    """What the client itself asked for, and so gets to see."""

    stream: bool
    ids: bool
    logprobs: bool
    usage: bool


def amend(
    body: Mapping[str, Any], recording: Recording, dialect: Dialect = Dialect.vllm
) -> tuple[dict[str, Any], Asked]:
    """The request as the engine gets it, and what the client asked for."""
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    asked = Asked(
        stream=bool(body.get("stream")),
        ids=any(body.get(name) for name in ("return_token_ids", *_SGLANG_STREAM)),
        logprobs=bool(body.get("logprobs")),
        usage=bool(options.get("include_usage")),
    )
    whole = dict(body)
    if recording.ids:
        in_stream = asked.stream and dialect is Dialect.sglang
        whole |= dict.fromkeys(_SGLANG_STREAM if in_stream else ("return_token_ids",), True)
    if recording is Recording.logprobs:
        whole["logprobs"] = True
    if asked.stream:
        whole["stream_options"] = {**options, "include_usage": True}
    return whole, asked


def changes_answer(asked: Asked, recording: Recording) -> bool:
    """Whether the client must see another answer than the engine gave."""
    return (recording.ids and not asked.ids) or (recording is Recording.logprobs and not asked.logprobs)


def strip(answer: dict[str, Any], asked: Asked) -> dict[str, Any]:
    """The answer, or one chunk of it, without what the client did not ask for."""
    whole = dict(answer)
    if not asked.ids:
        whole.pop("prompt_token_ids", None)
        if isinstance(extra := whole.pop("sglext", None), dict):
            rest = {name: value for name, value in extra.items() if name not in _IDS}
            whole |= {"sglext": rest} if rest else {}
    whole["choices"] = [_strip_choice(choice, asked) for choice in answer.get("choices") or ()]
    return whole


def is_empty(chunk: Mapping[str, Any]) -> bool:
    """Whether nothing is left of a chunk of a stream that a client would miss."""
    return not any(chunk.get(name) for name in ("choices", "usage", "sglext"))


def _strip_choice(choice: dict[str, Any], asked: Asked) -> dict[str, Any]:
    kept = dict(choice)
    if not asked.ids:
        for name in ("token_ids", "prompt_token_ids", "response_token_ids"):
            kept.pop(name, None)
    if not asked.logprobs and kept.get("logprobs") is not None:
        kept["logprobs"] = None
    return kept


def taken(answer: Mapping[str, Any], recording: Recording) -> dict[str, Any]:
    """What is recorded of an answer: prompt ids, choices, usage, model.

    Raises Trouble "unrecorded" if the engine did not return the ids or log-probabilities that are to be recorded, or
    returned what does not fit together.
    """
    kept: dict[str, Any] = {"model": answer.get("model"), "usage": answer.get("usage")}
    choices = [each for each in answer.get("choices") or () if isinstance(each, dict)]
    if not recording.ids:
        return {**kept, "choices": [_taken_choice(choice) for choice in choices]}
    kept["prompt_ids"] = _prompt_ids(answer, choices)
    kept["choices"] = [
        _with_ids(choice, _choice_ids(answer, choice, at), recording) for at, choice in enumerate(choices)
    ]
    return kept


def _taken_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {"message": choice.get("message"), "finish_reason": choice.get("finish_reason")}


def _with_ids(choice: Mapping[str, Any], ids: list[int], recording: Recording) -> dict[str, Any]:
    kept = {**_taken_choice(choice), "ids": ids}
    if recording is Recording.logprobs:
        kept["logprobs"] = _logprobs(choice.get("logprobs"), len(ids))
    return kept


def _prompt_ids(answer: Mapping[str, Any], choices: list[dict[str, Any]]) -> list[int]:
    places = [answer.get("prompt_token_ids"), *(each.get("prompt_token_ids") for each in choices[:1])]
    found = _ids([*places, _sglext(answer).get("input_ids")], "prompt_token_ids")
    if not found:
        raise _unrecorded("prompt_token_ids")
    return found


def _choice_ids(answer: Mapping[str, Any], choice: Mapping[str, Any], at: int) -> list[int]:
    rows = _sglext(answer).get("output_ids")
    row = rows[at] if isinstance(rows, list) and at < len(rows) else None
    return _ids([choice.get("token_ids"), choice.get("response_token_ids"), row], "token_ids")


def _sglext(answer: Mapping[str, Any]) -> dict[str, Any]:
    extra = answer.get("sglext")
    return extra if isinstance(extra, dict) else {}


def _ids(places: list[Any], name: str) -> list[int]:
    """The ids in the first of the places that holds something."""
    value = next((each for each in places if each is not None), None)
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each < _LARGEST for each in value):
        raise _unrecorded(name)
    return value


def _logprobs(value: Any, count: int) -> list[float]:
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, list):
        # An answer without a token has none, and vLLM then says null.
        if not count:
            return []
        raise _unrecorded("logprobs")
    found = [each["logprob"] for each in content if isinstance(each, dict) and type(each.get("logprob")) in _NUMBERS]
    if len(found) != count:
        raise _unrecorded("logprobs", f"{len(found)} log-probabilities for {count} token ids")
    return found


def _unrecorded(name: str, why: str = "") -> Trouble:
    return Trouble(
        "unrecorded",
        422,
        f"the engine returned no usable {name}{f' ({why})' if why else ''}, which engine.record asks for: "
        "use an engine that returns them, such as vLLM 0.32 or SGLang 0.5.23, or set engine.record=text",
    )
