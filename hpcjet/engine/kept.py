"""A child process that is started again when it dies; its options, secrets among them, reach it by standard input."""

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcjet.cluster.backoff import Backoff
from hpcjet.cluster.child import Child, tail
from hpcjet.errors import EngineError

WRONG_OPTIONS = 64
"""Exit code of a child that would fail in the same way again."""
_POLL_S = 0.2
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_STEADY_S = 30.0
"""After so long a life the pauses begin anew."""

_log = logging.getLogger(__name__)


class Kept:
    """One Python module, kept running until `stop`. `meanwhile` is called about five times a second while it runs."""

    def __init__(
        self, name: str, module: str, *, options: Callable[[], Mapping[str, Any]], log: Path,
        meanwhile: Callable[[], None] = lambda: None, grace_s: float = 1,
    ) -> None:  # fmt: skip
        self.restarts = 0
        self.log = log
        self._name, self._module, self._options = name, module, options
        self._meanwhile, self._grace_s = meanwhile, grace_s
        self._ending = threading.Event()
        self._refused = False
        self._child: Child | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start it without waiting."""
        # The kernel ends a child with the thread that started it, so one thread starts them all.
        self._thread = threading.Thread(target=self._keep, name=f"hpcjet-{self._name}", daemon=True)
        self._thread.start()

    def wait(self, answers: Callable[[], bool], *, deadline: float) -> None:
        """Wait until it `answers`; `deadline` is in time.monotonic(). Raises EngineError with the tail of its log."""
        while not (self.alive() and answers()):
            if self._ending.is_set() or self._refused or time.monotonic() > deadline:
                raise EngineError(
                    f"the {self._name} did not answer in time (started {self.restarts + 1} times); "
                    f"log: {self.log}\n{tail(self.log)}"
                )
            time.sleep(0.02)

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def ending(self) -> bool:
        return self._ending.is_set()

    def alive(self) -> bool:
        return self._child is not None and self._child.returncode is None

    def stop(self) -> None:
        """End it; may be called twice."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def _keep(self) -> None:
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _STEADY_S)
        while not self._ending.is_set():
            began = time.monotonic()
            child = self._child = self._begin()
            while child.returncode is None and not self._ending.is_set():
                self._meanwhile()
                self._ending.wait(_POLL_S)
            code = child.returncode
            child.stop(self._grace_s if code is None else 0)
            if code == WRONG_OPTIONS:
                self._refused = True
                return
            if code is not None and not self._ending.is_set():
                self.restarts += 1
                lived_s = time.monotonic() - began
                _log.warning(
                    "the %s ended with code %s after %.0f s and is restarted; log: %s",
                    self._name, code, lived_s, self.log,
                )  # fmt: skip
                self._ending.wait(backoff.pause_s(lived_s))

    def _begin(self) -> Child:
        path = os.pathsep.join(each for each in sys.path if each)
        env = {**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
        child = Child(self._name, [sys.executable, "-m", self._module], env=env, log=self.log)
        child.say(json.dumps(self._options()))
        return child
