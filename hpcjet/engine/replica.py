"""A replica under supervision: started, watched, started again when it crashes or hangs, ended with all it started."""

import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

from hpcjet.cluster.backoff import Backoff
from hpcjet.cluster.child import Child, kill_session
from hpcjet.config.engine import ServedConfig
from hpcjet.engine.canary import check_canary
from hpcjet.engine.ending import end_engine, session_cpu_s
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.environment import Command
from hpcjet.engine.failure import Failure, classify, last_lines, log_since
from hpcjet.engine.http import Unanswered, get_status
from hpcjet.engine.pulse import Pulse
from hpcjet.errors import EngineError

_log = logging.getLogger(__name__)

_GRACE_S = 5.0
_PROBE_S = 2.0
_GLANCE_S = 0.2
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_GOOD_S = 600.0
"""After so long a service earlier failures are forgotten."""
_ENDED = Failure("stopped", "it was stopped", True)


class ReplicaState(Enum):
    """Where a replica stands."""

    starting = "starting"
    ready = "ready"
    unhealthy = "unhealthy"
    """It does not answer its health check just now; requests had better go elsewhere."""
    restarting = "restarting"
    """It failed, and is started again after a pause."""
    failed = "failed"
    """For good; `reason` says why."""
    stopped = "stopped"


FINAL = (ReplicaState.failed, ReplicaState.stopped)


@dataclass(frozen=True, kw_only=True)
class Change:
    """A replica's new state."""

    name: str
    state: ReplicaState
    reason: str = ""
    """Of unhealthy, restarting and failed."""
    restarts: int = 0


@dataclass(frozen=True, kw_only=True)
class Service:
    """What a replica runs."""

    name: str
    """What messages call it, such as "vllm replica-0"."""
    command: Command
    log: Path
    endpoint: Endpoint | None
    """None for a part of a spread replica that only serves its leader: it is ready as soon as it runs."""
    cores: tuple[int, ...] = ()
    counters: tuple[str, ...] = ()
    """Metrics that count tokens, by which a busy engine is told from one that hangs."""
    health: str = "/health"
    around: Callable[[Callable[[], bool]], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    """What is made before the first start, such as a copy of the weights, and taken away after the last. It is given a
    function that tells whether to give up, and may raise EngineError."""


class Replica:
    """One engine process with all that it starts. Its methods may be called from any thread.

    `on_change` is called for every change of state, from the replica's own thread; it must return soon.
    """

    def __init__(
        self, service: Service, config: ServedConfig, *, on_change: Callable[[Change], None] | None = None
    ) -> None:
        self._service, self._config, self._on_change = service, config, on_change
        self._news = threading.Condition()
        self._change = Change(name=service.name, state=ReplicaState.starting)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._child: Child | None = None
        self._log_begin = 0
        self._served = False
        self._ready_at = 0.0
        self._restarts = 0
        self._restart_for = ""

    @property
    def change(self) -> Change:
        """The last change: state and reason."""
        return self._change

    @property
    def pid(self) -> int | None:
        """Of the process that leads the session of this engine, if one runs."""
        child = self._child
        return child.pid if child is not None and child.returncode is None else None

    def start(self) -> None:
        """Start it without waiting; what goes wrong is told by the state."""
        assert self._thread is None, "a replica is started once"
        # The kernel ends the engine with the thread that started it: this one lives as long as the replica.
        self._thread = threading.Thread(target=self._supervise, name=self._service.name, daemon=True)
        self._thread.start()

    def wait_ready(self, *, deadline: float) -> None:
        """Wait until it answers; `deadline` is in time.monotonic(). Raises EngineError if it failed or is too slow."""
        settled = (ReplicaState.ready, *FINAL)
        with self._news:
            self._news.wait_for(lambda: self._change.state in settled, timeout=deadline - time.monotonic())
            change = self._change
        if change.state is ReplicaState.ready:
            return
        if change.state in FINAL:
            raise EngineError(change.reason or f"{self._service.name} was stopped before it was ready")
        known = f"; the last failure: {change.reason}" if change.reason else ""
        raise EngineError(
            f"{self._service.name} is not ready in time (it is {change.state.value}){known}; raise "
            f"engine.start_timeout_s if it is still loading; {self._evidence()}"
        )

    def stop(self) -> None:
        """End the engine and all its processes within a few seconds; may be called twice."""
        self._stopping.set()
        thread, child = self._thread, self._child
        if thread is None or thread is threading.current_thread():
            return
        if child is not None:
            child.interrupt()
        thread.join(_GRACE_S + 1)
        if thread.is_alive() and child is not None:
            # A probe of a process that was suspended, say, is still waiting for its answer.
            kill_session(child.pid)
        thread.join(_GRACE_S + 5)

    def restart(self, reason: str) -> None:
        """Have it end, and start again as after a failure; nothing happens unless it runs."""
        self._restart_for = reason
        if (child := self._child) is not None:
            child.kill()  # whoever waits for its answer must not wait any longer

    def _supervise(self) -> None:
        try:
            with self._service.around(self._stopping.is_set):
                self._loop()
        except EngineError as error:
            stopped = self._stopping.is_set()
            self._tell(
                ReplicaState.stopped if stopped else ReplicaState.failed,
                "" if stopped else f"{self._service.name} failed: {error}; log: {self._service.log}",
            )
        except Exception as error:
            # The last resort: those who wait for this replica must hear of it.
            _log.exception("%s: its supervision failed", self._service.name)
            self._tell(ReplicaState.failed, f"{self._service.name}: its supervision failed: {error}")

    def _loop(self) -> None:
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _GOOD_S)
        while not self._stopping.is_set():
            self._tell(ReplicaState.starting, self._change.reason)
            self._ready_at = 0.0
            failure = self._serve()
            if self._stopping.is_set():
                break
            pause_s = backoff.pause_s(time.monotonic() - self._ready_at if self._ready_at else 0.0)
            if (failure.lasting and not self._served) or backoff.failures > self._config.max_restarts:
                self._tell(ReplicaState.failed, self._final(failure, backoff.failures))
                return
            self._restarts += 1
            self._tell(ReplicaState.restarting, failure.text)
            self._stopping.wait(pause_s)
        self._tell(ReplicaState.stopped)

    def _serve(self) -> Failure:
        """One life of the engine, from its start until nothing is left of it; why it ended."""
        endpoint = self._service.endpoint
        if endpoint is not None and (taken := port_taken(endpoint.base_url)):
            return Failure("port in use", f"port in use: {taken}; start again, for another port", True)
        self._log_begin = _size(self._service.log)
        command = self._service.command
        try:
            child = Child(self._service.name, command.argv, env=command.env, log=self._service.log)
        except OSError as error:
            return Failure("not started", f"{command.argv[0]} cannot be started: {error.strerror}", True)
        self._child, self._restart_for = child, ""
        try:
            self._pin(child)
            return self._await_ready(child) or self._watch(child)
        finally:
            # What crashed or hangs has nothing to put in order, and what it leaves behind would hold port and memory.
            end_engine(child, grace_s=_GRACE_S if self._stopping.is_set() else 0)
            self._child = None

    def _pin(self, child: Child) -> None:
        """It has one thread yet: all that it starts inherit this."""
        if self._service.cores:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(child.pid, self._service.cores)

    def _await_ready(self, child: Child) -> Failure | None:
        """None once it has answered its first request."""
        endpoint = self._service.endpoint
        if endpoint is None:
            return None
        deadline = time.monotonic() + self._config.start_timeout_s
        while self._status(endpoint) != 200:
            if failure := self._ended(child):
                return failure
            if time.monotonic() >= deadline:
                return self._too_slow(child)
            self._stopping.wait(_GLANCE_S)
        try:
            check_canary(
                endpoint,
                record=self._config.record,
                tools=self._config.tool_call_parser is not None,
                deadline=deadline,
            )
        except EngineError as error:
            return Failure("refused", str(error), True)
        except Unanswered as error:
            time.sleep(_GLANCE_S)  # an engine that died of it is about to end
            if self._restart_for:
                return self._ended(child)
            cause = classify(self._log_text(), child.returncode)
            if cause.kind != "crash":
                return cause
            return self._too_slow(child) if time.monotonic() >= deadline else Failure("crash", str(error), False)
        return self._ended(child)

    def _watch(self, child: Child) -> Failure:
        """Until it ends or hangs."""
        self._served, self._ready_at = True, time.monotonic()
        self._tell(ReplicaState.ready)
        endpoint, allowed_s = self._service.endpoint, self._config.health_timeout_s
        pulse = Pulse(endpoint, self._service.counters) if endpoint is not None else None
        good_at, look_at, pulse_at = time.monotonic(), 0.0, time.monotonic() + allowed_s / 2
        while not self._stopping.wait(_GLANCE_S):
            if failure := self._ended(child):
                return failure
            if endpoint is None or time.monotonic() < look_at:
                continue
            healthy = self._status(endpoint) == 200
            if healthy and pulse is not None and time.monotonic() >= pulse_at:
                if not pulse.beats(timeout_s=allowed_s):
                    self._stopping.wait(_GLANCE_S)
                    return self._ended(child) or self._hangs("makes no tokens")
                pulse_at = time.monotonic() + allowed_s / 2
            look_at = time.monotonic() + self._config.health_interval_s
            # A process that is dying closes its port first: a glance later it is known to have ended.
            if not healthy and (self._stopping.wait(_GLANCE_S) or child.returncode is not None):
                continue
            if healthy:
                good_at = time.monotonic()
                self._recovered()
            elif time.monotonic() - good_at >= allowed_s:
                return self._ended(child) or self._hangs("does not answer its health check")
            elif self._change.state is ReplicaState.ready:
                self._tell(ReplicaState.unhealthy, f"no healthy answer at {self._service.health}")
        return _ENDED

    def _recovered(self) -> None:
        if self._change.state is ReplicaState.unhealthy:
            self._tell(ReplicaState.ready)

    def _ended(self, child: Child) -> Failure | None:
        if self._stopping.is_set():
            return _ENDED
        if self._restart_for:
            return Failure("restart", self._restart_for, False)
        return None if child.returncode is None else classify(self._log_text(), child.returncode)

    def _status(self, endpoint: Endpoint) -> int | None:
        return get_status(endpoint.base_url.removesuffix("/v1") + self._service.health, timeout_s=_PROBE_S)

    def _too_slow(self, child: Child) -> Failure:
        text = (
            f"it did not answer within {self._config.start_timeout_s:g} s (engine.start_timeout_s), in which its "
            f"processes ran for {session_cpu_s(child.pid):.0f} s of CPU time; raise that if it was still loading"
        )
        return Failure("too slow", text, True)

    def _hangs(self, what: str) -> Failure:
        text = f"it hangs: it {what} for {self._config.health_timeout_s:g} s (engine.health_timeout_s)"
        return Failure("hang", text, False)

    def _final(self, failure: Failure, tries: int) -> str:
        started = f" after {tries} starts" if tries > 1 else ""
        return f"{self._service.name} failed{started}: {failure.text}; {self._evidence()}"

    def _evidence(self) -> str:
        return f"log: {self._service.log}\n{last_lines(self._log_text())}"

    def _log_text(self) -> str:
        endpoint = self._service.endpoint
        return log_since(self._service.log, self._log_begin, hidden=endpoint.api_key if endpoint else "")

    def _tell(self, state: ReplicaState, reason: str = "") -> None:
        change = Change(name=self._service.name, state=state, reason=reason, restarts=self._restarts)
        _log.info("%s: %s%s", change.name, state.value, f" ({reason.splitlines()[0]})" if reason else "")
        with self._news:
            self._change = change
            self._news.notify_all()
        if self._on_change is not None:
            self._on_change(change)


def port_taken(url: str) -> str:
    """The address of `url` if another process listens there, else empty.

    An engine would not notice: some share a port with whoever listens, and half of the requests go astray.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        # Connections of an earlier server that the kernel still remembers are no hindrance.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            return f"{parts.netloc}" if error.errno == errno.EADDRINUSE else ""
    return ""


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
