"""The process that a plan wants on every node beside Ray, such as the replicas of an engine there."""

import json
import logging
import time
from typing import Any

from hpcjet.cluster.backoff import Backoff
from hpcjet.cluster.child import Child, tail
from hpcjet.cluster.site import Site

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
SETTLED_S = 60.0
"""After so long a life the pauses begin anew."""
STOP_S = 10.0

_log = logging.getLogger(__name__)


class Kept:
    """A child that is started again when it ends, the later the oftener; `begin` starts it."""

    def __init__(self) -> None:
        self._backoff, self._again_at = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, SETTLED_S), 0.0
        self._child: Child | None = None
        self._start()

    def begin(self) -> Child:
        raise NotImplementedError

    def keep(self) -> None:
        """Look after it; called again and again."""
        if self._child and self._child.returncode is not None:
            pause_s = self._backoff.pause_s(time.monotonic() - self._started)
            _log.warning(
                "%s ended with %d; again in %.0f s; %s ends with:\n%s",
                self._child.name, self._child.returncode, pause_s, self._child.log, tail(self._child.log, 8),
            )  # fmt: skip
            self._child.stop(0)
            self._child, self._again_at = None, time.monotonic() + pause_s
        elif self._child is None and time.monotonic() >= self._again_at:
            self._start()

    def heard(self) -> list[dict[str, Any]]:
        """What it said, where it has an outbox."""
        return self._child.heard() if self._child else []

    def stop(self, timeout_s: float = STOP_S) -> None:
        """SIGTERM, and SIGKILL for what is left of its session after a while."""
        if self._child:
            self._child.stop(timeout_s)

    def _start(self) -> None:
        self._child = self.begin()
        self._started = time.monotonic()


class Sidecar(Kept):
    """One node's. It is told on standard input where it is, as one line of JSON, and started again when it ends."""

    def __init__(self, site: Site, env: dict[str, str], **facts: Any) -> None:
        self._site, self._env, self._facts = site, env, facts
        super().__init__()

    def begin(self) -> Child:
        site, place = self._site, self._site.place
        child = Child("sidecar", site.plan.sidecar, env={**site.env, **self._env}, log=site.log("sidecar"))
        child.say(json.dumps({"rank": place.rank, "cpus": place.cpus, "gpus": place.gpus, **self._facts}))
        return child
