"""What can go wrong with a request: its class, whether it is tried again, and what the client is told.

class         status     tried again
context       400        never: the conversation is longer than the model's context, the agent's own doing
refused       4xx        never: the engine does not take this request
forbidden     502        never: the engine does not take the run's key
unrecorded    422        never: the engine returned no token ids or log-probabilities, and they are to be recorded
undurable     507        never: the record could not be written
busy          429        until the deadline, or as the engine asks (Retry-After)
unavailable   503        until the deadline: no replica is there, or it says so
server        500        a few times
lost          502        until the deadline: the connection broke, the replica or the router is gone
stalled       504        until the deadline: no byte came for too long
late          504        the deadline has passed
gone          (499)      never: the client hung up; the request to the engine is ended
internal      500        never: a fault of the gateway
"""

import re
from dataclasses import dataclass
from typing import Any

ERROR_HEADER = "X-Hpcjet-Error"
_CONTEXT = re.compile(
    r"context[ _-]?(length|window|size)|longer than the model|maximum (model|input|prompt) length", re.IGNORECASE
)
_FOREVER = 1_000_000
_REPEATS = {"busy": _FOREVER, "unavailable": _FOREVER, "lost": _FOREVER, "stalled": _FOREVER, "server": 4}
_FIRST_PAUSE_S = {"busy": 0.5, "unavailable": 0.25, "lost": 0.1, "stalled": 0.1, "server": 0.5}
_LONGEST_PAUSE_S = 10.0
_LONGEST_ASKED_S = 60.0
_SHOWN = 500


# Not frozen: contextlib sets the traceback of an exception.
@dataclass(eq=False)
class Trouble(Exception):
    """One failed try, or how a request ended."""

    kind: str
    status: int
    message: str
    body: bytes | None = None
    """The engine's own answer, where the client is to see it as it is."""
    retry_after_s: float | None = None

    def pause_s(self, repeat: int, *, dice: float) -> float | None:
        """Seconds before repeat number `repeat` (from 0); None if there is none. `dice`, 0 to 1, spreads clients."""
        if repeat >= _REPEATS.get(self.kind, 0):
            return None
        if self.retry_after_s is not None:
            return min(self.retry_after_s, _LONGEST_ASKED_S)
        wanted = _FIRST_PAUSE_S[self.kind] * float(2 ** min(repeat, 20))
        return min(wanted, _LONGEST_PAUSE_S) * (0.5 + dice / 2)

    def answer(self) -> dict[str, Any]:
        """The error in OpenAI's form."""
        kind = "invalid_request_error" if 400 <= self.status < 500 else "api_error"
        return {"error": {"message": self.message, "type": kind, "param": None, "code": self.kind}}


def trouble_of(status: int, body: bytes, *, retry_after: str | None = None) -> Trouble:
    """What an answer that is not 200 means."""
    text = body[:_SHOWN].decode("utf-8", "replace")
    if status in (400, 413, 422) and _CONTEXT.search(text):
        return Trouble("context", 400, text, body)
    if status in (401, 403):
        # Its text is not shown: it may quote the run's key.
        return Trouble("forbidden", 502, f"the engine answers {status}: it does not take the key of this run")
    if status == 429:
        return Trouble("busy", status, text, body, _seconds(retry_after))
    if status in (502, 503, 504, 408, 425, 409):
        return Trouble("unavailable", 503, text, body, _seconds(retry_after))
    if status >= 500:
        # The router's words when a replica dies while it answers.
        lost = "error decoding response body" in text or "error sending request" in text
        return Trouble("lost" if lost else "server", 502 if lost else 500, text, body)
    if status >= 400:
        return Trouble("refused", status, text, body)
    return Trouble("server", 500, f"the engine answers {status} where 200 was expected")


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None
