"""A server as a child process: started in a group of its own, awaited, ended by that group."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcjet.cluster.child import Child, tail
from hpcjet.engine.http import get_status
from hpcjet.errors import EngineError

_PROBE_S = 2.0


class EngineProcess:
    """The process of one engine; its output goes to `log`."""

    def __init__(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        self._name, self._argv, self._env, self._log = name, list(argv), dict(env), log
        self._child: Child | None = None

    def start(self) -> None:
        """Call it from a thread that lives as long as the engine shall: the kernel ends the child with that thread.

        Raises EngineError if the program cannot be started.
        """
        try:
            self._child = Child(self._name, self._argv, env=self._env, log=self._log)
        except OSError as error:
            raise EngineError(
                f"{self._name}: {self._argv[0]} cannot be started ({error.strerror}); it must be a program on this "
                "node; check its path here"
            ) from error

    def wait_healthy(self, url: str, *, deadline: float, api_key: str = "") -> None:
        """Wait until a GET of `url` is answered with 200.

        Raises EngineError when the process ended or the deadline passed.
        """
        began = time.monotonic()
        pause_s = 0.02
        while True:
            if not self.alive():
                code = self._child.returncode if self._child else None
                raise EngineError(f"{self._name} ended (code {code}) before it answered at {url}; {self._evidence()}")
            left = deadline - time.monotonic()
            if left <= 0:
                raise EngineError(
                    f"{self._name} did not answer at {url} within {time.monotonic() - began:.0f} s; raise "
                    f"engine.start_timeout_s if it is still loading; {self._evidence()}"
                )
            if get_status(url, timeout_s=min(left, _PROBE_S), api_key=api_key) == 200 and self.alive():
                return
            time.sleep(min(pause_s, left))
            pause_s = min(pause_s * 1.5, 1)

    def alive(self) -> bool:
        return self._child is not None and self._child.returncode is None

    @property
    def pid(self) -> int | None:
        """Of the running process, which leads its group."""
        return self._child.pid if self._child else None

    def stop(self, *, grace_s: float = 5) -> None:
        """End the whole group: SIGTERM, and SIGKILL for what is left after `grace_s`."""
        child, self._child = self._child, None
        if child is not None:
            child.stop(grace_s)

    def _evidence(self) -> str:
        return f"log: {self._log}\n{tail(self._log)}".rstrip()
