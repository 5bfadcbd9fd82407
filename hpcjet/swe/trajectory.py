"""An agent's trajectory as steps: what the model said, what it ran, what came back.

Reads the format mini-swe-agent-1.1 (`info` and `messages` in OpenAI's form, with `extra`) and whatever is like it. The
content is the model's, so nothing of its shape is relied on.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LARGEST_BYTES = 32_000_000
"""A longer file is not taken apart."""


@dataclass
class Output:
    """What a command printed."""

    text: str
    returncode: int | None = None


@dataclass
class Step:
    """A turn of the model with what came back; or, with another role than assistant, a message that it was given."""

    role: str
    text: str = ""
    reasoning: str = ""
    commands: list[str] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)


def read_trajectory(path: Path) -> list[Step]:
    """The steps in a trajectory file.

    Raises OSError if it cannot be read, ValueError, for a person, if it is too long or no trajectory.
    """
    if not path.is_file() or path.is_symlink():
        raise FileNotFoundError(path)
    if (size := path.stat().st_size) > LARGEST_BYTES:
        raise ValueError(f"it has {size:,} bytes")
    try:
        data = json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    messages = data.get("messages") if isinstance(data, dict) else None
    if not isinstance(messages, list):
        raise ValueError("it has no messages")
    return steps([each for each in messages if isinstance(each, dict)])


def steps(messages: list[dict[str, Any]]) -> list[Step]:
    """Group messages: an assistant's, and the outputs that follow it, are one step."""
    found: list[Step] = []
    for message in messages:
        extra = _dict(message.get("extra"))
        if _is_output(message, extra) and found and found[-1].role == "assistant":
            found[-1].outputs.append(_output(message, extra))
        elif message.get("role") == "assistant" or message.get("object") == "response":
            commands = list(_commands(message, extra))
            found.append(Step("assistant", _text(message), _string(message.get("reasoning_content")), commands))
        else:
            role = _string(message.get("role")) or "message"
            found.append(Step(role, _text(message) or _string(extra.get("exit_status"))))
    return found


def _is_output(message: dict[str, Any], extra: dict[str, Any]) -> bool:
    kind = message.get("role") or message.get("type")
    return kind in ("tool", "function_call_output") or (kind == "user" and "returncode" in extra)


def _output(message: dict[str, Any], extra: dict[str, Any]) -> Output:
    raw, code = extra.get("raw_output"), extra.get("returncode")
    text = raw if isinstance(raw, str) else _text(message)
    if problem := _string(extra.get("exception_info")):
        text = f"{text}\n[{problem}]" if text else f"[{problem}]"
    return Output(text, code if isinstance(code, int) else None)


def _commands(message: dict[str, Any], extra: dict[str, Any]) -> Iterator[str]:
    actions = [each for each in _list(extra.get("actions")) if isinstance(each, dict)]
    if actions:
        yield from (_string(each.get("command")) for each in actions)
        return
    for call in _list(message.get("tool_calls")):
        arguments = _string(_dict(_dict(call).get("function")).get("arguments"))
        try:
            command = _dict(json.loads(arguments)).get("command")
        except (ValueError, RecursionError):
            command = None
        yield command if isinstance(command, str) else arguments


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if content is None:
        content = message.get("output")
    if isinstance(content, str):
        return content
    return "\n".join(text for part in _list(content) for text in _part_texts(part))


def _part_texts(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict):
        if isinstance(part.get("text"), str):
            yield part["text"]
        for inner in _list(part.get("content")):
            if isinstance(inner, dict) and isinstance(inner.get("text"), str):
                yield inner["text"]


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
