"""vllm-router as a supervised child: spreads conversations over replicas and keeps each on its own.

The installed router (0.1.17) lets anyone who reaches its port add a worker of theirs, passes a client's Authorization
on to the replicas as it is, and by its `--api-key` checks nobody. What it does have is a check of bearer tokens by
asking a URL, for every path but /health and /liveness, and it remembers the good ones. So this process answers that
question, at loopback, and the router wants the run's key from everyone: the same key that the replicas want.
"""

import contextlib
import hmac
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from hpcjet.engine.http import Answer, Unanswered, request
from hpcjet.engine.kept import Kept
from hpcjet.errors import EngineError

_METRICS_HOST = "127.0.0.2"
"""Loopback as well, but not where the router itself listens: its port is free there."""
_POLL_S = 0.2
_RECONCILE_S = 1.0
_CALL_S = 5.0


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    """Options of vllm-router, by its own names; `extra` holds any others that the installed version knows."""

    policy: str = "sticky_least_loaded"
    """A conversation (X-Session-ID) stays on its replica; a new one goes to the replica with the fewest."""
    request_timeout_secs: int = 3600
    """More than any deadline of the gateway, which is the one that counts."""
    retry_max_retries: int = 3
    retry_initial_backoff_ms: int = 50
    retry_max_backoff_ms: int = 1000
    cb_failure_threshold: int = 3
    """Failures in a row after which a replica gets no requests..."""
    cb_timeout_duration_secs: int = 5
    """...for so many seconds; then one request tries it."""
    cb_success_threshold: int = 1
    health_check_interval_secs: int = 2
    health_check_timeout_secs: int = 5
    health_failure_threshold: int = 2
    health_success_threshold: int = 1
    worker_startup_timeout_secs: int = 4
    worker_startup_check_interval: int = 1
    log_level: str = "warning"
    extra: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """As vllm-router's RouterArgs takes them."""
        whole = asdict(self)
        extra = whole.pop("extra")
        return {**whole, **extra}


@dataclass(frozen=True)
class RouterWorker:
    """A replica as the router sees it."""

    url: str
    healthy: bool


class Router:
    """One router. `start` and `stop` frame it; workers may be added and removed at any time between, by any thread.

    It is restarted with its workers when it dies. Requests that were under way then are the gateway's to repeat.
    """

    def __init__(
        self, *, host: str, port: int, api_key: str, log: Path, settings: RouterSettings | None = None
    ) -> None:
        """`host`: loopback, or an address of the cluster's own network; `api_key`: what the replicas want."""
        if not api_key:
            raise EngineError("the router needs an API key: without one, any user of the network could add a replica")
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self._api_key = api_key
        # Its own metrics cannot be turned off, and by itself every router of a node would want port 29000 for them.
        fixed = {"host": host, "port": port, "prometheus_host": _METRICS_HOST, "prometheus_port": port}
        self._arguments = fixed | (settings or RouterSettings()).arguments()
        self._wanted: set[str] = set()
        self._adding = threading.Lock()
        self._guard: _Guard | None = None
        self._reconciled = 0.0
        self._kept = Kept(
            "router", "hpcjet.engine.router_child", options=self._options, log=log, meanwhile=self._reconcile_at_times
        )

    def start(self) -> None:
        """Start it without waiting. Raises EngineError if vllm-router is not installed."""
        if find_spec("vllm_router") is None:
            raise EngineError("vllm-router is not installed; pip install 'hpcjet[engine]'")
        self._guard = _Guard(self._api_key)
        self._kept.start()

    def wait_ready(self, *, deadline: float) -> None:
        """Wait until it answers; `deadline` is in time.monotonic(). Raises EngineError with the tail of its log."""
        self._kept.wait(self._answers, deadline=deadline)

    def add(self, url: str, *, deadline: float) -> None:
        """Have a replica take requests. Raises EngineError if the router has not taken it by the deadline."""
        url = url.rstrip("/").removesuffix("/v1")
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise EngineError(f"the replica's address {url!r} is not http://host:port; give the one it listens at")
        self._wanted.add(url)
        trouble = "not tried"
        while time.monotonic() < deadline and not self._kept.ending:
            trouble = self._add_now(url)
            if not trouble:
                return
            time.sleep(_POLL_S)
        self._wanted.discard(url)
        raise EngineError(f"the router at {self.url} did not take the replica {url}: {trouble}; is it healthy there?")

    def remove(self, url: str) -> None:
        """Give a replica no new requests; those under way end there. Nothing happens if it was not there."""
        url = url.rstrip("/").removesuffix("/v1")
        self._wanted.discard(url)
        with self._adding, contextlib.suppress(Unanswered):
            self._call("POST", f"/remove_worker?url={quote(url, safe='')}")

    def finish_session(self, session: str) -> None:
        """Forget a conversation that has ended, so that it no longer counts as load of its replica."""
        with contextlib.suppress(Unanswered):
            self._call("POST", f"/finish_session?session_id={quote(session, safe='')}")

    def workers(self) -> list[RouterWorker]:
        """Raises EngineError if the router does not answer, as while it is restarted."""
        try:
            data = self._call("GET", "/workers").json()
        except Unanswered as error:
            raise EngineError(f"the router at {self.url} does not answer: {error}") from None
        return read_workers(data)

    @property
    def pid(self) -> int | None:
        return self._kept.pid

    @property
    def restarts(self) -> int:
        """How often it died."""
        return self._kept.restarts

    def alive(self) -> bool:
        return self._kept.alive()

    def stop(self) -> None:
        """End it; may be called twice."""
        self._kept.stop()
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def _options(self) -> dict[str, Any]:
        assert self._guard is not None
        return {**self._arguments, "api_key_validation_urls": [self._guard.url]}

    def _reconcile_at_times(self) -> None:
        if time.monotonic() - self._reconciled > _RECONCILE_S and self._answers():
            self._reconcile()
            self._reconciled = time.monotonic()

    def _reconcile(self) -> None:
        with contextlib.suppress(EngineError):
            missing = self._wanted - {worker.url for worker in self.workers()}
            if missing:
                # At once, since one that does not answer holds the router for seconds.
                with ThreadPoolExecutor(len(missing)) as pool:
                    list(pool.map(self._add_now, missing))

    def _add_now(self, url: str) -> str:
        """Why it was not added; empty if it was."""
        with contextlib.suppress(EngineError):
            if any(worker.url == url for worker in self.workers()):
                return ""
        try:
            answer = self._call("POST", f"/add_worker?url={quote(url, safe='')}")
        except Unanswered as error:
            return str(error)
        with self._adding:
            if url not in self._wanted:
                # It was removed while the router was busy adding it.
                with contextlib.suppress(Unanswered):
                    self._call("POST", f"/remove_worker?url={quote(url, safe='')}")
                return ""
        text = answer.body[:200].decode(errors="replace")
        return "" if answer.status == 200 or "already exists" in text else f"HTTP {answer.status}: {text}"

    def _answers(self) -> bool:
        with contextlib.suppress(Unanswered):
            # Not /liveness, which wants no key: a stranger on this port shall not pass for the router.
            return self._call("GET", "/list_workers").status == 200
        return False

    def _call(self, method: str, path: str) -> Answer:
        return request(method, self.url + path, timeout_s=_CALL_S, api_key=self._api_key)


def read_workers(data: Any) -> list[RouterWorker]:
    """From the router's answer to GET /workers."""
    found = data.get("workers") if isinstance(data, dict) else None
    return [
        RouterWorker(str(each.get("url")), bool(each.get("is_healthy")))
        for each in found or []
        if isinstance(each, dict)
    ]


class _Guard:
    """Tells the router which bearer token is the run's."""

    def __init__(self, api_key: str) -> None:
        expected = f"Bearer {api_key}".encode()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                given = self.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
                self.send_response(200 if hmac.compare_digest(given, expected) else 401)
                self.send_header("Content-Length", "0")
                self.send_header("Connection", "close")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, name="hpcjet-router-guard", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def running(router: Router, *, timeout_s: float = 30) -> Iterator[Router]:
    """The router, ready, for the length of a block."""
    try:
        router.start()
        router.wait_ready(deadline=time.monotonic() + timeout_s)
        yield router
    finally:
        router.stop()
