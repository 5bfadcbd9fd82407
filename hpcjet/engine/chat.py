"""Chat completions with a deadline and bounded repeats."""

import re
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.http import Answer, Late, Unanswered, request
from hpcjet.engine.session import SESSION_HEADER

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_SHOWN = 500
_CONTEXT = re.compile(
    r"context[ _-]?(length|window|size)|longer than the model|maximum (model|input|prompt) length",
    re.IGNORECASE,
)
_TRANSIENT = {408, 409, 425, 429}
_NO_SPACE = 507
"""The gateway's word for a record that cannot be written: others would fail alike."""


class ChatError(Exception):
    """The engine gave no usable answer, repeats included. The text never holds the key."""


class ContextExceeded(ChatError):
    """The conversation is longer than the model's context: final, and the agent's own doing."""


class DeadlinePassed(ChatError):
    """The caller's deadline passed before or during the first try; in a repeat it is the engine that is to blame."""


@dataclass(frozen=True, kw_only=True)
class ChatSettings:
    """How requests are made; see EngineConfig."""

    request_timeout_s: float = 600.0
    retries: int = 5
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int = 0
    """0: the server samples as it likes. Else each session has a seed of its own, made of this one."""

    def body(self, session: str = "") -> dict[str, Any]:
        """The part of a request body that these set."""
        seed = zlib.crc32(f"{self.seed} {session}".encode()) & 0x7FFFFFFF if self.seed else None
        chosen = {"temperature": self.temperature, "max_tokens": self.max_tokens, "seed": seed}
        return {key: value for key, value in chosen.items() if value is not None}


def complete(
    endpoint: Endpoint, body: Mapping[str, Any], *, settings: ChatSettings, session: str, deadline: float
) -> dict[str, Any]:
    """One chat completion, as the decoded response; `deadline` is in time.monotonic().

    Raises ContextExceeded, DeadlinePassed, and ChatError for the rest: at once where a repeat cannot help, such as a
    wrong key, and after `settings.retries` repeats otherwise.
    """
    whole = {"model": endpoint.model, **settings.body(session), **body}
    trouble, tries = "", 0
    for repeat in range(settings.retries + 1):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        tries, retry_after_s = repeat + 1, None
        try:
            answer = _post(endpoint, whole, session=session, timeout_s=min(settings.request_timeout_s, left))
            if (completion := _completion(answer)) is not None:
                return completion
            trouble, retry_after_s = _trouble(answer, endpoint), answer.retry_after_s
            _raise_if_final(answer, trouble)
        except Unanswered as error:
            trouble = str(error)
            if isinstance(error, Late) and repeat == 0 and time.monotonic() >= deadline:
                raise DeadlinePassed(trouble) from None
        if repeat < settings.retries:
            time.sleep(max(0.0, min(pause_s(repeat, retry_after_s), deadline - time.monotonic())))
    if not trouble:
        raise DeadlinePassed("the deadline had passed before the request")
    raise ChatError(f"{endpoint.base_url} gave no answer in {tries} tries; last: {trouble}")


def _post(endpoint: Endpoint, body: Mapping[str, Any], *, session: str, timeout_s: float) -> Answer:
    url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
    # Quoted: an instance id may hold what no header may.
    headers = {SESSION_HEADER: quote(session)}
    return request("POST", url, timeout_s=timeout_s, api_key=endpoint.api_key, headers=headers, body=body)


def _completion(answer: Answer) -> dict[str, Any] | None:
    data = answer.json() if answer.status == 200 else None
    if not isinstance(data, dict):
        return None
    choices = data.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return data if isinstance(first, dict) and isinstance(first.get("message"), dict) else None


def error_text(answer: Answer, *, api_key: str) -> str:
    """What a server says is wrong, short and without the key."""
    data = answer.json()
    error = data.get("error", data) if isinstance(data, dict) else None
    if isinstance(error, dict):
        text = " ".join(str(error[key]) for key in ("code", "message") if error.get(key))
    else:
        text = answer.body[:_SHOWN].decode("utf-8", "replace")
    return (text.replace(api_key, "***") if api_key else text)[:_SHOWN]


def _trouble(answer: Answer, endpoint: Endpoint) -> str:
    if answer.status == 200:
        return "HTTP 200 without a usable choice"
    return f"HTTP {answer.status}: {error_text(answer, api_key=endpoint.api_key)}"


def _raise_if_final(answer: Answer, trouble: str) -> None:
    if answer.status in (400, 413, 422) and _CONTEXT.search(trouble):
        raise ContextExceeded(trouble)
    if (400 <= answer.status < 500 and answer.status not in _TRANSIENT) or answer.status == _NO_SPACE:
        raise ChatError(trouble)


def pause_s(repeat: int, retry_after_s: float | None = None) -> float:
    """Seconds before a repeat: doubling, or what the server asked for, up to a limit."""
    wanted = _FIRST_PAUSE_S * 2 ** min(repeat, 30) if retry_after_s is None else retry_after_s
    return min(wanted, _LONGEST_PAUSE_S)
