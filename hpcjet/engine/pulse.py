"""Whether an engine still works, and not only its server answers: tokens that it makes, or one asked for."""

import re
import time
from collections.abc import Sequence

from hpcjet.config.engine import Recording
from hpcjet.engine.canary import check_canary
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.http import Unanswered, request
from hpcjet.errors import EngineError


class Pulse:
    """Looks at one engine from time to time. An engine that is busy is left alone: its counters move."""

    def __init__(self, endpoint: Endpoint, counters: Sequence[str]) -> None:
        self._endpoint, self._counters = endpoint, counters
        self._last: float | None = None

    def beats(self, *, timeout_s: float) -> bool:
        """Whether tokens were made since the last call, or one is made within `timeout_s` now."""
        before, self._last = self._last, self._count()
        if self._last is not None and before is not None and self._last != before:
            return True
        try:
            check_canary(self._endpoint, record=Recording.text, tools=False, deadline=time.monotonic() + timeout_s)
        except EngineError:
            return True  # it answers, be it with a refusal
        except Unanswered:
            # In a long queue the request waits: then others were answered meanwhile.
            now = self._count()
            return now is not None and self._last is not None and now != self._last
        self._last = self._count()
        return True

    def _count(self) -> float | None:
        """Tokens read and written since the start; None if the engine does not say."""
        root = self._endpoint.base_url.removesuffix("/v1")
        try:
            answer = request("GET", f"{root}/metrics", timeout_s=2.0)
        except Unanswered:
            return None
        return total(answer.body.decode(errors="replace"), self._counters) if answer.status == 200 else None


def total(metrics: str, counters: Sequence[str]) -> float | None:
    """The sum of these counters over all their labels, in Prometheus' text; None if none of them is there."""
    pattern = rf"(?m)^(?:{'|'.join(map(re.escape, counters))})(?:{{[^\n]*}})? ([0-9.eE+]+)$"
    found = re.findall(pattern, metrics)
    return sum(map(float, found)) if found else None
