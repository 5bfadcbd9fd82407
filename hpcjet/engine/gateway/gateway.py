"""The gateway as a kept child of the process that runs the engines."""

import time
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from hpcjet.config.engine import Recording
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.gateway.fields import Dialect
from hpcjet.engine.gateway.keys import METRICS, attempt_key, attempt_url
from hpcjet.engine.gateway.settings import GatewaySettings, Limits
from hpcjet.engine.http import Unanswered, request
from hpcjet.engine.kept import Kept
from hpcjet.errors import EngineError

_NEEDS = ("aiohttp", "orjson", "uvloop")
_CANARY = "hpcjet-canary"
_LOOK_S = 5.0
_SHORTEST_SECRET = 32


class Gateway:
    """One gateway. `start` and `stop` frame it; it is restarted when it dies, and what was recorded stays."""

    def __init__(
        self,
        url: str,
        secret: str,
        folder: Path,
        *,
        record: Recording = Recording.text,
        dialect: Dialect = Dialect.vllm,
        host: str,
        port: int,
        api_key: str,
        log: Path,
        limits: Limits | None = None,
        status: Path | None = None,
        routed: bool = True,
    ) -> None:
        """`url`: of a router, without /v1, or with `routed=False` of one server, up to and with its /v1. `secret` makes
        the keys of attempts, `api_key` is what replicas or server want; `folder` is for records, `status` the file in
        which a pool tells of its replicas.

        Raises EngineError for a secret that is too short.
        """
        if len(secret) < _SHORTEST_SECRET:
            raise EngineError(f"the gateway's secret has {len(secret)} characters; it needs {_SHORTEST_SECRET} or more")
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        root, prefix = (url, "/v1") if routed else _parts(url)
        self._secret, self._record = secret, record
        self._settings = GatewaySettings(
            host=host, port=port, url=root, prefix=prefix, routed=routed, upstream_key=api_key, secret=secret,
            folder=folder.absolute(), recording=record, dialect=dialect, limits=limits or Limits(),
            status=status,
        )  # fmt: skip
        self._kept = Kept("gateway", "hpcjet.engine.gateway", options=self._settings.to_json, log=log, grace_s=5)

    def start(self) -> None:
        """Start it without waiting. Raises EngineError if a package that it needs is not installed."""
        if missing := [name for name in _NEEDS if find_spec(name) is None]:
            raise EngineError(f"the gateway needs {', '.join(missing)}; pip install 'hpcjet[swe]'")
        self._kept.start()

    def wait_ready(self, *, deadline: float) -> None:
        """Wait until it answers; `deadline` is in time.monotonic(). Raises EngineError with the tail of its log."""
        self._kept.wait(self._answers, deadline=deadline)

    def endpoint(self, attempt: str, *, model: str, valid_s: float, label: str = "") -> Endpoint:
        """Where an attempt (by its session id) asks, with a key that is good for `valid_s` seconds."""
        key = attempt_key(self._secret, attempt, time.time() + valid_s)
        return Endpoint(base_url=attempt_url(self.url, attempt), model=model, api_key=key, label=label)

    def check(self, *, model: str, deadline: float) -> None:
        """Ask for one token, as an attempt would. Raises EngineError if that fails, as where the engine does not return
        what is to be recorded; `deadline` is in time.monotonic()."""
        where = self.endpoint(_CANARY, model=model, valid_s=3600)
        body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "Say OK."}]}
        url = f"{where.base_url}/chat/completions"
        try:
            left_s = max(1.0, deadline - time.monotonic())
            answer = request("POST", url, timeout_s=left_s, api_key=where.api_key, body=body)
        except Unanswered as error:
            raise EngineError(f"the gateway at {self.url} gave no answer: {error}; log: {self._kept.log}") from None
        if answer.status != 200:
            text = answer.body[:500].decode(errors="replace")
            raise EngineError(
                f"engine.record={self._record.value}: a first request through the gateway failed with HTTP "
                f"{answer.status}: {text}; log: {self._kept.log}"
            )

    def metrics(self) -> str:
        """What GET /metrics says. Raises EngineError."""
        key = self.metrics_key(valid_s=60)
        try:
            return request("GET", f"{self.url}/metrics", timeout_s=_LOOK_S, api_key=key).body.decode()
        except Unanswered as error:
            raise EngineError(f"the gateway at {self.url} gave no answer: {error}; log: {self._kept.log}") from None

    def metrics_key(self, *, valid_s: float) -> str:
        """The key with which Prometheus may read GET /metrics, and nothing else."""
        return attempt_key(self._secret, METRICS, time.time() + valid_s)

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
        """End it within a few seconds; may be called twice."""
        self._kept.stop()

    def _answers(self) -> bool:
        try:
            url = f"{self.url}/metrics"
            # Not /health, which wants no key: a stranger on this port shall not pass for the gateway.
            return request("GET", url, timeout_s=_LOOK_S, api_key=self.metrics_key(valid_s=60)).status == 200
        except Unanswered:
            return False


def _parts(base_url: str) -> tuple[str, str]:
    """Scheme with host and port, and the path, of a base URL."""
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
