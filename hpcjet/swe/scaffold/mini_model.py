"""mini-swe-agent's Model over hpcjet.engine.chat. Imports mini-swe-agent: only mini_agent imports this.

mini-swe-agent's own model class needs litellm: 2.9 s of CPU and 170 MB in each worker process, and 5 ms for each
request against 1. The formats, and so what the model sees, are mini-swe-agent's: this calls its parsers.
"""

import json
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from minisweagent.exceptions import FormatError, InterruptAgentFlow, TimeExceeded
from minisweagent.models.utils.actions_text import format_observation_messages, parse_regex_actions
from minisweagent.models.utils.actions_toolcall import (
    BASH_TOOL,
    format_toolcall_observation_messages,
    parse_toolcall_actions,
)

from hpcjet.engine.chat import ChatError, ContextExceeded, DeadlinePassed, complete
from hpcjet.engine.endpoint import Endpoint
from hpcjet.swe.scaffold.meter import Meter
from hpcjet.swe.scaffold.mini_environment import exit_message
from hpcjet.swe.scaffold.settings import ScaffoldSettings

_TEXT_ACTION = r"```mswea_bash_command\s*\n(.*?)\n```"
_SENT = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content", "reasoning")
_MILLION = 1e6


class EngineFailed(InterruptAgentFlow):
    """The engine gave no answer; ends the agent, and is no fault of it."""


class ContextFull(InterruptAgentFlow):
    """The conversation outgrew the model's context; ends the agent."""


class ChatModel:
    """One agent's connection to its model. Holds the key, and shows it nowhere."""

    def __init__(
        self,
        endpoint: Endpoint,
        settings: ScaffoldSettings,
        *,
        templates: Mapping[str, str],
        session: str,
        deadline: float,
        meter: Meter,
    ) -> None:
        self.config = None
        self._endpoint = endpoint
        self._settings = settings
        self._templates = templates
        self._session = session
        self._deadline = deadline
        self._meter = meter

    def query(self, messages: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        """The next message, with its actions in `extra`. Raises mini-swe-agent's interruptions only."""
        began = time.monotonic()
        try:
            response = self._complete(messages)
        finally:
            self._meter.llm_s += time.monotonic() - began
        cost = self._count(response)
        choice = response["choices"][0]
        message = _clean(choice["message"])
        extra = {"cost": cost, "timestamp": time.time(), "response": _without_message(response)}
        try:
            actions = self._actions(message, finish_reason=choice.get("finish_reason"))
        except FormatError as error:
            # The refused answer is no part of the conversation, but what was paid for is kept.
            error.messages[0].setdefault("extra", {}).update(extra, answer=message)
            raise
        return {**message, "extra": {"actions": actions, **extra}}

    def format_message(self, **message: Any) -> dict[str, Any]:
        return message

    def format_observation_messages(
        self, message: dict[str, Any], outputs: list[dict[str, Any]], template_vars: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        template = self._templates["observation_template"]
        actions = message.get("extra", {}).get("actions", [])
        if self._settings.tool_calls:
            found = format_toolcall_observation_messages(
                actions=actions, outputs=outputs, observation_template=template, template_vars=template_vars
            )
        else:
            found = format_observation_messages(outputs, observation_template=template, template_vars=template_vars)
        for each in found:
            # The same text stands in `content`.
            each["extra"].pop("raw_output", None)
        return list(found)

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        return {}

    def serialize(self) -> dict[str, Any]:
        """What is recorded of the model: never the key."""
        config = {
            "model_name": self._endpoint.model,
            "base_url": self._endpoint.base_url,
            "session": self._session,
            "model_kwargs": self._settings.chat.body(),
            "tool_calls": self._settings.tool_calls,
        }
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"model": config, "model_type": kind}}}

    def _complete(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body: dict[str, Any] = {"messages": [_sent(message) for message in messages]}
        if self._settings.tool_calls:
            body["tools"] = [BASH_TOOL]
        try:
            return complete(
                self._endpoint, body, settings=self._settings.chat, session=self._session, deadline=self._deadline
            )
        except ContextExceeded as error:
            raise ContextFull(exit_message("ContextWindowExceeded", str(error))) from None
        except DeadlinePassed as error:
            raise TimeExceeded(exit_message("TimeExceeded", str(error))) from None
        except ChatError as error:
            raise EngineFailed(exit_message("EngineFailed", str(error))) from None

    def _count(self, response: Mapping[str, Any]) -> float:
        usage = response.get("usage") or {}
        prompt, completion = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        self._meter.steps += 1
        self._meter.tokens.update(prompt=prompt, completion=completion, **({"cached": cached} if cached else {}))
        cost = (prompt * self._settings.prompt_price + completion * self._settings.completion_price) / _MILLION
        self._meter.cost += cost
        return float(cost)

    def _actions(self, message: Mapping[str, Any], *, finish_reason: str | None) -> list[dict[str, Any]]:
        template = self._templates["format_error_template"]
        given = {"finish_reason": finish_reason, "tool_calls": self._settings.tool_calls}
        if self._settings.tool_calls:
            calls = [_as_object(call) for call in message.get("tool_calls", ())]
            return list(parse_toolcall_actions(calls, format_error_template=template, template_kwargs=given))
        text = message.get("content") or ""
        return list(
            parse_regex_actions(text, action_regex=_TEXT_ACTION, format_error_template=template, template_kwargs=given)
        )


def _sent(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: message[key] for key in _SENT if message.get(key) is not None or (key == "content" and key in message)}


def _clean(message: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of an answer that may be sent back: servers refuse keys that they do not know."""
    kept = {"role": "assistant", "content": message.get("content")}
    kept |= {key: message[key] for key in ("reasoning_content", "reasoning") if message.get(key)}
    if isinstance(calls := message.get("tool_calls"), list) and calls:
        kept["tool_calls"] = [_clean_call(call, index) for index, call in enumerate(calls)]
    elif kept["content"] is None:
        kept["content"] = ""
    return kept


def _clean_call(call: Any, index: int) -> dict[str, Any]:
    call = call if isinstance(call, dict) else {}
    function = call.get("function") if isinstance(call.get("function"), dict) else {}
    arguments = function.get("arguments")
    return {
        "id": str(call.get("id") or f"call_{index}"),
        "type": "function",
        "function": {
            "name": str(function.get("name")),
            "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
        },
    }


def _as_object(call: Mapping[str, Any]) -> SimpleNamespace:
    """As the parser of mini-swe-agent wants it."""
    return SimpleNamespace(id=call["id"], function=SimpleNamespace(**call["function"]))


def _without_message(response: Mapping[str, Any]) -> dict[str, Any]:
    """Who answered, why it ended, what was counted; the message itself is kept once."""
    kept = {key: response[key] for key in ("id", "model", "created", "usage") if key in response}
    return {**kept, "finish_reason": response["choices"][0].get("finish_reason")}
