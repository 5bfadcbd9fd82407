"""The process that a plan wants on every node beside Ray, such as the replicas of an engine there."""

import json
import logging
import time
from typing import Any

from hpcjet.cluster.child import Child, tail
from hpcjet.cluster.site import Site

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
SETTLED_S = 60.0
"""One that ran for so long starts again at once."""
STOP_S = 10.0

_log = logging.getLogger(__name__)


class Sidecar:
    """One node's. It is told on standard input where it is, as one line of JSON, and started again when it ends."""

    def __init__(self, site: Site, env: dict[str, str], **facts: Any) -> None:
        self._site, self._env, self._facts = site, env, facts
        self._pause_s, self._again_at = FIRST_PAUSE_S, 0.0
        self._child: Child | None = None
        self._start()

    def keep(self) -> None:
        """Look after it; called again and again."""
        if self._child and self._child.returncode is not None:
            lived_s = time.monotonic() - self._started
            pause_s = 0.0 if lived_s > SETTLED_S else self._pause_s
            self._pause_s = FIRST_PAUSE_S if lived_s > SETTLED_S else min(self._pause_s * 2, LONGEST_PAUSE_S)
            _log.warning(
                "%s ended with %d; again in %.0f s; %s ends with:\n%s",
                self._child.name, self._child.returncode, pause_s, self._child.log, tail(self._child.log, 8),
            )  # fmt: skip
            self._child.stop(0)
            self._child, self._again_at = None, time.monotonic() + pause_s
        elif self._child is None and time.monotonic() >= self._again_at:
            self._start()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for what is left of its session after a while."""
        if self._child:
            self._child.stop(STOP_S)

    def _start(self) -> None:
        site = self._site
        self._child = Child("sidecar", site.plan.sidecar, env={**site.env, **self._env}, log=site.log("sidecar"))
        self._started = time.monotonic()
        place = site.place
        self._child.say(json.dumps({"rank": place.rank, "cpus": place.cpus, "gpus": place.gpus, **self._facts}))
