"""What the replicas are doing: requests under way and waiting, KV cache in use, tokens per second."""

import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hpcjet.engine.http import Unanswered, request

_LOOK_S = 2.0
_NAMES = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "kv_used": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "completion_tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
}
"""Value -> the metrics that tell it, the first that is there; both engines write percentages as parts of 1."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """One look at one replica; None where the engine does not say."""

    running: float | None = None
    waiting: float | None = None
    kv_used: float | None = None
    """Part of the KV cache that is in use, 0 to 1."""
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    """Made since the replica started."""


def parse_load(text: str) -> Load:
    """From the text of a replica's GET /metrics; values of one metric with several labels are added up."""
    found: dict[str, float] = {}
    for name, value in re.findall(r"(?m)^([a-z]+:[a-z_]+)(?:\{[^\n]*\})? ([-+0-9.eE]+|NaN)$", text):
        if value != "NaN":
            found[name] = found.get(name, 0.0) + float(value)
    values = {key: next((found[name] for name in names if name in found), None) for key, names in _NAMES.items()}
    return Load(**values)


class Gauges:
    """Looks at replicas from time to time and tells the rates between two looks."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, Load]] = {}

    def look(self, url: str, *, api_key: str) -> dict[str, Any]:
        """Of the replica at http://host:port: Load as a dict, with tokens_per_s. Empty if it does not answer."""
        try:
            answer = request("GET", f"{url}/metrics", timeout_s=_LOOK_S, api_key=api_key)
        except Unanswered:
            return {}
        if answer.status != 200:
            return {}
        now, load = time.monotonic(), parse_load(answer.body.decode(errors="replace"))
        then, before = self._before.get(url, (now, load))
        self._before[url] = now, load
        return {**asdict(load), "tokens_per_s": rate(before, load, seconds=now - then)}


def rate(before: Load, after: Load, *, seconds: float) -> float | None:
    """Tokens of answers per second between two looks; None if it cannot be told, as after a restart."""
    first, last = before.completion_tokens, after.completion_tokens
    if first is None or last is None or last < first or seconds <= 0:
        return None
    return (last - first) / seconds


def prometheus(replicas: list[Mapping[str, Any]]) -> str:
    """The same for Prometheus; `replicas` are the rows of engine.json."""
    lines = []
    for key, what in (
        ("running", "Requests that a replica works on."),
        ("waiting", "Requests that wait at a replica."),
        ("kv_used", "Part of a replica's KV cache that is in use."),
        ("prompt_tokens", "Tokens of prompts that a replica has read."),
        ("completion_tokens", "Tokens of answers that a replica has made."),
        ("restarts", "Restarts of a replica."),
    ):
        rows = [(each["name"], value) for each in replicas if (value := each.get(key)) is not None]
        if rows:
            kind = "counter" if key.endswith("tokens") else "gauge"
            name = f"hpcjet_replica_{key}" + ("_total" if kind == "counter" else "")
            lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]
            lines += [f'{name}{{replica="{replica}"}} {value:g}' for replica, value in rows]
    states = [f'hpcjet_replica_up{{replica="{each["name"]}"}} {int(bool(each.get("routed")))}' for each in replicas]
    if states:
        lines += [
            "# HELP hpcjet_replica_up Whether a replica takes requests.",
            "# TYPE hpcjet_replica_up gauge",
            *states,
        ]
    return "\n".join(lines) + "\n" if lines else ""
