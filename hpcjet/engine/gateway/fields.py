"""What is added to a request so that its answer can be recorded, and taken out of the answer that the client sees."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hpcjet.engine.gateway.trouble import Trouble

_NUMBERS = (float, int)
_LARGEST = 2**31


class Recording(Enum):
    """What of each call is recorded."""

    off = "off"
    text = "text"
    tokens = "tokens"
    logprobs = "logprobs"

    @property
    def ids(self) -> bool:
        return self in (Recording.tokens, Recording.logprobs)


@dataclass(frozen=True)
class Asked:
    """What the client itself asked for, and so gets to see."""

    stream: bool
    ids: bool
    logprobs: bool
    usage: bool


def amend(body: Mapping[str, Any], recording: Recording) -> tuple[dict[str, Any], Asked]:
    """The request as the engine gets it, and what the client asked for."""
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    asked = Asked(
        stream=bool(body.get("stream")),
        ids=bool(body.get("return_token_ids")),
        logprobs=bool(body.get("logprobs")),
        usage=bool(options.get("include_usage")),
    )
    whole = dict(body)
    if recording.ids:
        whole["return_token_ids"] = True
    if recording is Recording.logprobs:
        whole["logprobs"] = True
    if asked.stream and recording is not Recording.off:
        whole["stream_options"] = {**options, "include_usage": True}
    return whole, asked


def changes_answer(asked: Asked, recording: Recording) -> bool:
    """Whether the client must see another answer than the engine gave."""
    return (recording.ids and not asked.ids) or (recording is Recording.logprobs and not asked.logprobs)


def strip(answer: dict[str, Any], asked: Asked, *, chunk: bool = False) -> dict[str, Any]:
    """The answer, or one chunk of it, without what the client did not ask for."""
    whole = dict(answer)
    if not asked.ids:
        whole.pop("prompt_token_ids", None)
    whole["choices"] = [_strip_choice(choice, asked, chunk) for choice in answer.get("choices") or ()]
    return whole


def _strip_choice(choice: dict[str, Any], asked: Asked, chunk: bool) -> dict[str, Any]:
    kept = dict(choice)
    if not asked.ids:
        kept.pop("token_ids", None)
    if not asked.logprobs and kept.get("logprobs") is not None:
        kept["logprobs"] = None
    return kept


def taken(answer: Mapping[str, Any], recording: Recording) -> dict[str, Any]:
    """What is recorded of an answer: prompt ids, choices, usage, model.

    Raises Trouble "unrecorded" if the engine did not return the ids or log-probabilities that are to be recorded, or
    returned what does not fit together.
    """
    kept: dict[str, Any] = {"model": answer.get("model"), "usage": answer.get("usage")}
    if recording.ids:
        kept["prompt_ids"] = _ids(answer.get("prompt_token_ids"), "prompt_token_ids")
        if not kept["prompt_ids"]:
            raise _unrecorded("prompt_token_ids")
    kept["choices"] = [_taken_choice(choice, recording) for choice in answer.get("choices") or ()]
    return kept


def _taken_choice(choice: Mapping[str, Any], recording: Recording) -> dict[str, Any]:
    kept = {"message": choice.get("message"), "finish_reason": choice.get("finish_reason")}
    if recording.ids:
        ids = _ids(choice.get("token_ids"), "token_ids")
        kept["ids"] = ids
        if recording is Recording.logprobs:
            kept["logprobs"] = _logprobs(choice.get("logprobs"), len(ids))
    return kept


def _ids(value: Any, name: str) -> list[int]:
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
        "use an engine that returns them, such as vLLM (return_token_ids), or set engine.record=text",
    )
