"""The processes of actors, which Ray starts again where they die."""

import os
import time
from collections.abc import Iterable
from typing import Any

from hpcjet.swarm.actors import ENDS_S, get_actor, lost_errors
from hpcjet.swarm.driver.answers import no_answer

LOOK_S = 1.0


class Processes:
    """Finds those that are others than before, by asking each for its number."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._asked: dict[str, tuple[Any, float]] = {}
        self._down: dict[str, float] = {}
        """Since when (Unix seconds) a process gives no answer."""
        self._again = 0.0

    def look(self, names: Iterable[str]) -> list[tuple[str, float | None]]:
        """Actors that have another process, and since when (Unix seconds) there was none; each is asked each second."""
        found = []
        for name, pid in self._answers():
            down = self._down.pop(name, None)
            if self._pids.setdefault(name, pid) != pid:
                self._pids[name] = pid
                found.append((name, down))
        if time.monotonic() > self._again:
            self._again = time.monotonic() + LOOK_S
            self._ask(names)
        return found

    def forget(self, name: str) -> None:
        """Its process is ended by us, so its end is no loss."""
        for known in (self._pids, self._asked, self._down):
            known.pop(name, None)

    def _answers(self) -> list[tuple[str, int]]:
        import ray

        found = []
        for name, (call, since) in list(self._asked.items()):
            if not ray.wait([call], timeout=0)[0]:
                if time.monotonic() > since + ENDS_S:
                    del self._asked[name]
                continue
            del self._asked[name]
            try:
                found.append((name, int(ray.get(call))))
            except no_answer():
                self._down.setdefault(name, time.time())
        return found

    def _ask(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._asked:
                try:
                    self._asked[name] = get_actor(name).__ray_call__.remote(_pid), time.monotonic()
                except lost_errors():
                    continue


def _pid(_actor: object) -> int:
    return os.getpid()
