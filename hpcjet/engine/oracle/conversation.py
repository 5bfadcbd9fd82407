"""What has happened in a conversation so far, read from its messages alone."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TEXT_ACTION = re.compile(r"```mswea_bash_command\s*\n(.*?)\n```", re.DOTALL)
"""How commands look when no tools are offered: the fenced block of mini-swe-agent's text mode."""
_RETURNCODE = re.compile(r"return_?code\W{1,5}?(-?\d+)")


@dataclass
class Turn:
    """One answer whose commands were run, and how they ended."""

    commands: list[str]
    returncodes: list[int] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return any(self.returncodes)


@dataclass
class Conversation:
    """A task's prompt, the turns since, and the complaints about answers that could not be used."""

    prompt: str = ""
    turns: list[Turn] = field(default_factory=list)
    complaints: int = 0


def read_conversation(messages: Sequence[Mapping[str, Any]]) -> Conversation:
    """Raises ValueError for what is no list of chat messages."""
    talk = Conversation()
    pending: Turn | None = None
    asked = False
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError("each message must be an object with a role")
        role, text = message["role"], _text(message.get("content"))
        if role == "assistant":
            pending = Turn(_commands(message, text))
        elif pending and pending.commands and _is_result(role, text):
            if not pending.returncodes:
                talk.turns.append(pending)
            pending.returncodes.append(_returncode(text))
        elif role == "user" and asked:
            talk.complaints += 1
        else:
            asked = asked or role == "user"
            talk.prompt += text + "\n"
    return talk


def _is_result(role: str, text: str) -> bool:
    return role == "tool" or (role == "user" and _RETURNCODE.search(text) is not None)


def _returncode(text: str) -> int:
    """0 where a scaffold does not tell."""
    match = _RETURNCODE.search(text)
    return int(match[1]) if match else 0


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))


def _commands(message: Mapping[str, Any], text: str) -> list[str]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return TEXT_ACTION.findall(text)
    found = (_command(call) for call in calls)
    return [command for command in found if command is not None]


def _command(call: Any) -> str | None:
    try:
        return str(json.loads(call["function"]["arguments"])["command"])
    except (KeyError, TypeError, ValueError):
        return None
