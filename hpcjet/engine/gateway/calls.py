"""Records of calls, as lines of JSON: each call of an attempt says only how it differs from the one before.

An agent sends its whole conversation with every call. Recorded as it comes, a run of a hundred turns would fill a
hundred times its length; told as what is new, it stays its length. What a line refers to stands in the same segment.
"""

import hashlib
import logging
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcjet.engine.gateway.jsons import dumps, loads

SUFFIX = ".jsonl"
_REMEMBERED_BYTES = 128 * 1024**2
"""Room for the conversations of 1,000 agents with 32,000 tokens each."""
_REMEMBERED = 4096
"""Attempts."""
_DIGEST_BYTES = 16

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Call:
    """One call of a model, whole. Times are time.time()."""

    attempt: str
    id: str
    began: float
    ended: float
    tries: int = 1
    error: str = ""
    """The class of what went wrong; empty if the client got its answer."""
    detail: str = ""
    replica: str = ""
    model_version: str = ""
    model: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    """The request without its messages: tools, sampling."""
    messages: list[Any] = field(default_factory=list)
    prompt_ids: list[int] | None = None
    """None where ids are not recorded."""
    choices: list[dict[str, Any]] = field(default_factory=list)
    """Each with message, finish_reason and, where they are recorded, ids and logprobs of the same length."""
    usage: dict[str, Any] | None = None
    first_byte_s: float | None = None
    """Seconds until a stream began."""


@dataclass
class _Before:
    """What the last call of an attempt held."""

    id: str
    params: bytes
    messages: list[bytes]
    ids: bytes

    def size(self) -> int:
        return len(self.params) + len(self.messages) * (_DIGEST_BYTES + 33) + len(self.ids) + 500


class Encoder:
    """Turns the calls of one segment into lines. What it remembers is bounded; a forgotten attempt is told whole."""

    def __init__(self) -> None:
        self._before: OrderedDict[str, _Before] = OrderedDict()
        self._size = 0

    def line(self, call: Call) -> bytes:
        digests = [_digest(dumps(message)) for message in call.messages]
        params = _digest(dumps(call.params))
        before = self._before.get(call.attempt)
        values = {key: value for key, value in vars(call).items() if value not in ("", None)}
        if before:
            kept = _common(b"".join(before.messages), b"".join(digests)) // _DIGEST_BYTES
            values |= {"after": before.id, "messages_kept": kept, "messages": call.messages[kept:]}
            if before.params == params:
                del values["params"]
        ids = before.ids if before else b""
        if call.prompt_ids is not None:
            prompt = array("i", call.prompt_ids).tobytes()
            if before:
                kept = _common(before.ids, prompt) // 4
                values |= {"prompt_kept": kept, "prompt_ids": call.prompt_ids[kept:]}
            first = call.choices[0].get("ids") if call.choices else None
            ids = prompt + array("i", first or ()).tobytes()
        self._remember(call.attempt, _Before(call.id, params, digests, ids))
        return dumps(values) + b"\n"

    def _remember(self, attempt: str, now: _Before) -> None:
        old = self._before.pop(attempt, None)
        self._size += now.size() - (old.size() if old else 0)
        self._before[attempt] = now
        while len(self._before) > 1 and (self._size > _REMEMBERED_BYTES or len(self._before) > _REMEMBERED):
            _, gone = self._before.popitem(last=False)
            self._size -= gone.size()


class Decoder:
    """Turns the lines of one segment, in their order, into whole calls."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[Call, list[int]]] = {}

    def call(self, line: bytes) -> Call:
        """Raises ValueError for what is no record, or refers to one that is not there."""
        if not line.endswith(b"\n"):
            raise ValueError("unfinished last line: its writer was stopped, or is still writing")
        values = loads(line)
        if not isinstance(values, dict) or not isinstance(values.get("attempt"), str):
            raise ValueError("not a record of a call")
        after = values.pop("after", None)
        known, ids = self._before.get(values["attempt"], (None, []))
        if after is not None:
            if known is None or known.id != after:
                raise ValueError(f"it continues call {after}, which is not the one before it")
            values["messages"] = known.messages[: values.pop("messages_kept")] + values["messages"]
            values.setdefault("params", known.params)
            if "prompt_ids" in values:
                values["prompt_ids"] = ids[: values.pop("prompt_kept")] + values["prompt_ids"]
        try:
            call = Call(**values)
        except TypeError as error:
            raise ValueError(f"not a record of a call: {error}") from None
        if call.prompt_ids is not None:
            ids = call.prompt_ids + ((call.choices[0].get("ids") or []) if call.choices else [])
        self._before[call.attempt] = call, ids
        return call


def read_calls(folder: Path, *, attempt: str | None = None) -> Iterator[Call]:
    """The calls recorded in a folder, or those of one attempt, each segment in its order. Bad lines are logged.

    Reading needs memory for the last call of each attempt of one segment.
    """
    for segment in sorted(folder.glob(f"[!.]*{SUFFIX}")):
        decoder = Decoder()
        with segment.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    call = decoder.call(line)
                except ValueError as error:
                    _log.warning("%s:%d: %s", segment, number, error)
                    continue
                if attempt is None or call.attempt == attempt:
                    yield call


def attempts(calls: Iterator[Call]) -> Mapping[str, list[Call]]:
    """The calls by attempt, in the order in which they began."""
    found: dict[str, list[Call]] = {}
    for call in calls:
        found.setdefault(call.attempt, []).append(call)
    return {name: sorted(each, key=lambda call: call.began) for name, each in found.items()}


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _common(a: bytes, b: bytes) -> int:
    """Length of the common beginning, by halving: comparing two slices is quick, going byte by byte is not."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
