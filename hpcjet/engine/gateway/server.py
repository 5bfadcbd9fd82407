"""The gateway's HTTP server: who asks, for what, and what is answered."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from hpcjet.engine.gateway.exchange import Exchange, Shared
from hpcjet.engine.gateway.jsons import dumps, loads
from hpcjet.engine.gateway.keys import METRICS, SHARED, split_path, why_not
from hpcjet.engine.gateway.metrics import TYPE, Metrics
from hpcjet.engine.gateway.recorder import Recorder
from hpcjet.engine.gateway.settings import GatewaySettings
from hpcjet.engine.gateway.trouble import ERROR_HEADER, Trouble
from hpcjet.engine.gateway.upstream import Upstream
from hpcjet.engine.gauges import prometheus
from hpcjet.engine.router import RouterWorker, read_workers
from hpcjet.engine.session import SESSION_HEADER

_LOOK_S = 5.0
_LONGEST_SESSION = 200
_STOP_S = 1.0


class GatewayServer:
    """Serves until it is stopped."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._recorder = Recorder(settings.folder, f"{settings.host}-{settings.port}")
        self._upstream = Upstream(settings)
        self._shared = Shared(settings, self._upstream, self._recorder, self._metrics)
        server = web.Server(
            self._handle, request_factory=self._request, handler_cancellation=True, access_log=None,
            keepalive_timeout=75,
        )  # fmt: skip
        self._runner = web.ServerRunner(server, access_log=None)

    async def start(self) -> None:
        """Raises OSError if the address is taken."""
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, self._settings.host, self._settings.port, backlog=4096, reuse_address=True,
            shutdown_timeout=_STOP_S,
        )  # fmt: skip
        await site.start()

    async def stop(self) -> None:
        await self._runner.cleanup()
        await self._shared.finish()
        await self._upstream.close()
        self._recorder.close()

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        loop = asyncio.get_running_loop()
        size = self._settings.limits.body_bytes
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=size)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._dispatch(request)
        except Trouble as trouble:
            return error_answer(trouble)
        except web.HTTPRequestEntityTooLarge:
            return error_answer(Trouble("refused", 413, "The body of the request is too large."))

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.raw_path
        if path == "/health":
            return web.Response(text="ok")
        attempt, rest = (METRICS, "") if path == "/metrics" else split_path(path)
        if not attempt:
            raise Trouble("refused", 404, "Ask under /attempt/NAME/v1, the base URL of an attempt.")
        if reason := why_not(self._settings.secret, attempt, bearer(request.headers), now=time.time()):
            self._metrics.ended["unauthorized"] += 1
            raise Trouble("unauthorized", 401, reason)
        if path == "/metrics":
            return await self._show_metrics()
        if rest == "/v1/chat/completions" and request.method == "POST":
            body = parsed(await request.read())
            session = session_of(attempt, request.headers)
            return await Exchange(self._shared, attempt, body, session=session).answer(request)
        if rest == "/v1/models" and request.method == "GET":
            async with self._upstream.ask("GET", f"{self._settings.prefix}/models", within_s=_LOOK_S) as response:
                data = await self._upstream.whole(response)
            return web.Response(body=data, content_type="application/json")
        raise Trouble("refused", 404, "There are /v1/chat/completions (POST) and /v1/models (GET).")

    async def _show_metrics(self) -> web.Response:
        extra = {
            "record_bytes_total": self._recorder.bytes,
            "record_syncs_total": self._recorder.syncs,
            "record_sync_seconds_total": self._recorder.sync_s,
        }
        text = self._metrics.text(await self._workers(), extra)
        return web.Response(body=(text + self._replicas()).encode(), headers={"Content-Type": TYPE})

    def _replicas(self) -> str:
        """What the pool last told of its replicas, for Prometheus."""
        try:
            return prometheus(loads(self._settings.status.read_bytes())["replicas"]) if self._settings.status else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    async def _workers(self) -> list[RouterWorker]:
        if not self._settings.routed:
            return []
        try:
            async with self._upstream.ask("GET", "/workers", within_s=_LOOK_S) as response:
                return read_workers(loads(await self._upstream.whole(response)))
        except (Trouble, ValueError):
            return []


def parsed(raw: bytes) -> dict[str, Any]:
    """The request of a chat completion. Raises Trouble "refused"."""
    try:
        body = loads(raw)
    except ValueError:
        raise Trouble("refused", 400, "The body is no JSON.") from None
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise Trouble("refused", 400, "The body must be an object with a list of messages.")
    return body


def session_of(attempt: str, headers: Mapping[str, str]) -> str:
    """The conversation of a request: an attempt is one, of many clients each may name its own."""
    if attempt != SHARED:
        return attempt
    own = headers.get(SESSION_HEADER, "")
    return f"{SHARED}~{own[:_LONGEST_SESSION]}" if own else ""


def bearer(headers: Mapping[str, str]) -> str:
    """The key that a request carries."""
    kind, _, key = headers.get("Authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else ""


def error_answer(trouble: Trouble) -> web.Response:
    """As the engine said it where it is the engine's word on the request, else in OpenAI's form."""
    body = trouble.body if trouble.kind in ("context", "refused") else None
    return web.Response(
        status=trouble.status,
        body=dumps(trouble.answer()) if body is None else body,
        headers={"Content-Type": "application/json", ERROR_HEADER: trouble.kind},
    )
