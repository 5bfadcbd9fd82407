"""A streamed answer: cut into events, put together for the record."""

from collections.abc import Iterator
from typing import Any

from hpcjet.engine.gateway.jsons import loads

DONE = b"[DONE]"
_LONGEST_EVENT = 64 * 1024**2


class Events:
    """Cuts bytes into the data of server-sent events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The data of each event that is whole now. Raises ValueError for an event without end."""
        *whole, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._rest) > _LONGEST_EVENT:
            raise ValueError("an event of the stream has no end")
        for event in whole:
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield b"\n".join(lines)


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


class Assembly:
    """Puts chunks together to what the same answer would have been without streaming."""

    def __init__(self) -> None:
        self._whole: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    @property
    def ended(self) -> bool:
        """Whether every choice that began has a finish reason."""
        return bool(self._choices) and all(each["finish_reason"] for each in self._choices.values())

    def add(self, chunk: dict[str, Any]) -> None:
        for name in ("id", "model", "usage", "prompt_token_ids", "sglext"):
            if chunk.get(name) is not None:
                self._whole[name] = chunk[name]
        for part in chunk.get("choices") or ():
            self._add_part(part)

    def answer(self) -> dict[str, Any]:
        return {**self._whole, "choices": [self._choices[index] for index in sorted(self._choices)]}

    def _add_part(self, part: dict[str, Any]) -> None:
        index = int(part.get("index") or 0)
        choice = self._choices.setdefault(index, {"index": index, "message": {}, "finish_reason": None})
        _merge(choice["message"], part.get("delta") or {})
        if part.get("finish_reason"):
            choice["finish_reason"] = part["finish_reason"]
        if part.get("token_ids") is not None:
            choice.setdefault("token_ids", []).extend(part["token_ids"])
        content = (part.get("logprobs") or {}).get("content")
        if content:
            choice.setdefault("logprobs", {"content": []})["content"].extend(content)


def _merge(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            _merge_calls(message.setdefault(name, []), value or ())
        elif isinstance(value, str) and isinstance(message.get(name), str) and name != "role":
            message[name] += value
        elif value is not None or name not in message:
            message[name] = value


def _merge_calls(calls: list[dict[str, Any]], parts: Any) -> None:
    for part in parts:
        index = part.get("index", len(calls))
        while len(calls) <= index:
            calls.append({"function": {"name": "", "arguments": ""}})
        call, function = calls[index], part.get("function") or {}
        call.update({key: value for key, value in part.items() if key not in ("index", "function") and value})
        for name in ("name", "arguments"):
            call["function"][name] += function.get(name) or ""


def parse_chunk(data: bytes) -> dict[str, Any]:
    """Raises ValueError for what is no JSON object."""
    chunk = loads(data)
    if not isinstance(chunk, dict):
        raise ValueError("a chunk of the stream is no object")
    return chunk
