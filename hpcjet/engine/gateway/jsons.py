"""JSON at the speed of orjson, and with the standard library's tolerance where orjson refuses (lone surrogates)."""

import json
from typing import Any


def loads(data: bytes) -> Any:
    """Raises ValueError."""
    import orjson

    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data, parse_constant=_no_constant)


def dumps(value: Any) -> bytes:
    """Without line breaks."""
    import orjson

    try:
        return orjson.dumps(value)
    except TypeError:
        # Lone surrogates, which only an escape can carry, or an integer beyond 64 bits.
        return json.dumps(value, separators=(",", ":")).encode("ascii")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
