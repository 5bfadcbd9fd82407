"""One chat completion through the gateway: tried until it succeeds or its deadline passes, recorded, passed on."""

import asyncio
import logging
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any
from urllib.parse import quote

import aiohttp
from aiohttp import web

from hpcjet.engine.gateway.calls import Call
from hpcjet.engine.gateway.fields import amend, changes_answer, is_empty, strip, taken
from hpcjet.engine.gateway.jsons import dumps, loads
from hpcjet.engine.gateway.metrics import Metrics
from hpcjet.engine.gateway.recorder import Recorder
from hpcjet.engine.gateway.settings import GatewaySettings
from hpcjet.engine.gateway.stream import DONE, Assembly, Events, event, parse_chunk
from hpcjet.engine.gateway.trouble import Trouble
from hpcjet.engine.gateway.upstream import Upstream
from hpcjet.engine.session import SESSION_HEADER
from hpcjet.errors import StoreError

REPLICA_HEADER = "X-Replica"
"""By which a replica says who it is, and..."""
VERSION_HEADER = "X-Model-Version"
"""...which weights it has. The client gets both."""
CALL_HEADER = "X-Hpcjet-Call"
UNKNOWN = "unknown"
_REMEMBERED = 65_536

_log = logging.getLogger(__name__)


class Shared:
    """What all exchanges of a process use."""

    def __init__(self, settings: GatewaySettings, upstream: Upstream, recorder: Recorder, metrics: Metrics) -> None:
        self.limits, self.recording, self.dialect = settings.limits, settings.recording, settings.dialect
        self.path = f"{settings.prefix}/chat/completions"
        self.upstream, self.recorder, self.metrics = upstream, recorder, metrics
        self._tasks: set[asyncio.Task[None]] = set()
        self._homes: OrderedDict[str, str] = OrderedDict()

    def home(self, session: str) -> str:
        """The replica that answered a conversation last, where the router keeps it."""
        return self._homes.get(session, UNKNOWN)

    def settle(self, session: str, replica: str) -> None:
        self._homes[session] = replica or UNKNOWN
        self._homes.move_to_end(session)
        if len(self._homes) > _REMEMBERED:
            self._homes.popitem(last=False)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done that nobody waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Exchange:
    """One request of an attempt."""

    def __init__(self, shared: Shared, attempt: str, body: dict[str, Any], *, session: str) -> None:
        """`session`: the conversation, which stays on its replica; empty for none."""
        self._shared = shared
        self._body, self._asked = amend(body, shared.recording, shared.dialect)
        # Quoted, as hpcjet's own client does it: a name may hold what no header may.
        self._headers = {SESSION_HEADER: quote(session)} if session else {}
        self._session = session or attempt
        self._began = time.monotonic()
        self._deadline = self._began + shared.limits.total_s
        self._stream: web.StreamResponse | None = None
        self._recorded = False
        params = {key: value for key, value in body.items() if key != "messages"}
        now = time.time()
        self._call = Call(
            attempt=attempt, id=secrets.token_hex(8), began=now, ended=now, params=params, messages=body["messages"]
        )

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer for the client, recorded. Raises Trouble if there is none."""
        metrics = self._shared.metrics
        home = self._shared.home(self._session)
        metrics.in_flight[home] += 1
        ended = "internal"
        try:
            response = await self._try_until_answered(request)
            ended = "ok"
            self._shared.settle(self._session, self._call.replica)
            metrics.answered(replica=self._call.replica, usage=self._call.usage, seconds=time.monotonic() - self._began)
            return response
        except Trouble as trouble:
            ended = trouble.kind
            await self._record_failure(trouble)
            if self._stream is not None:
                return await self._break_off(self._stream, trouble)
            raise
        except asyncio.CancelledError:
            ended = "gone"
            if not self._recorded:
                self._shared.later(self._record_failure(Trouble("gone", 499, "the client hung up")))
            raise
        except Exception as error:
            _log.exception("a request of %s failed", self._call.attempt)
            failed = Trouble("internal", 500, f"the gateway failed: {type(error).__name__}")
            await self._record_failure(failed)
            if self._stream is not None:
                return await self._break_off(self._stream, failed)
            raise failed from None
        finally:
            metrics.in_flight[home] -= 1
            metrics.ended[ended] += 1

    async def _try_until_answered(self, request: web.BaseRequest) -> web.StreamResponse:
        body = dumps(self._body)
        while True:
            try:
                return await self._try(request, body)
            except Trouble as trouble:
                if self._left_s() <= 0:
                    raise Trouble("late", 504, f"no answer until the deadline; last: {trouble.message}") from None
                pause_s = trouble.pause_s(self._call.tries - 1, dice=random.random())
                if pause_s is None or self._stream is not None or pause_s >= self._left_s():
                    raise
                self._shared.metrics.retried[trouble.kind] += 1
            await asyncio.sleep(pause_s)
            self._call.tries += 1

    async def _try(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        upstream = self._shared.upstream
        asking = upstream.ask(
            "POST",
            self._shared.path,
            body=body,
            headers=self._headers,
            within_s=self._left_s(),
            stream=self._asked.stream,
        )
        async with asking as response:
            self._call.replica = response.headers.get(REPLICA_HEADER, "")
            self._call.model_version = response.headers.get(VERSION_HEADER, "")
            if self._asked.stream:
                return await self._pass_stream(request, response)
            data = await upstream.whole(response)
        return await self._pass_whole(data)

    async def _pass_whole(self, data: bytes) -> web.Response:
        recording = self._shared.recording
        try:
            answer = loads(data)
            usable = isinstance(answer, dict) and bool(answer.get("choices"))
        except ValueError:
            usable = False
        if not usable:
            raise Trouble("server", 500, "the engine's answer is no completion")
        await self._record(answer)
        if changes_answer(self._asked, recording):
            data = dumps(strip(answer, self._asked))
        return web.Response(body=data, headers={"Content-Type": "application/json", **self._shown()})

    async def _pass_stream(self, request: web.BaseRequest, response: aiohttp.ClientResponse) -> web.StreamResponse:
        pieces = self._shared.upstream.pieces(response)
        stream = None
        events, assembly, held = Events(), Assembly(), []
        async for piece in pieces:
            if stream is None:
                # From here on nothing can be tried again.
                stream = self._stream = await self._begin_stream(request)
            try:
                now = [self._event(data, assembly) for data in events.feed(piece)]
            except ValueError as error:
                raise Trouble("lost", 502, f"the engine's stream is broken: {error}") from None
            for shown in now:
                # The end of an answer is passed on when the record is on disk.
                if assembly.ended:
                    held.append(shown)
                elif shown:
                    await stream.write(shown)
        if stream is None or not assembly.ended:
            raise Trouble("lost", 502, "the engine's stream ended early")
        await self._record(assembly.answer())
        await stream.write(b"".join(held))
        await stream.write_eof()
        return stream

    def _event(self, data: bytes, assembly: Assembly) -> bytes:
        """What the client sees of an event, which the assembly has then."""
        if data == DONE:
            return event(data)
        chunk = parse_chunk(data)
        if "error" in chunk and not chunk.get("choices"):
            raise Trouble("server", 500, f"the engine says: {str(chunk['error'])[:300]}")
        assembly.add(chunk)
        if not self._asked.usage and not chunk.get("choices") and chunk.get("usage"):
            return b""
        if not changes_answer(self._asked, self._shared.recording):
            return event(data)
        shown = strip(chunk, self._asked)
        return b"" if is_empty(shown) else event(dumps(shown))

    async def _begin_stream(self, request: web.BaseRequest) -> web.StreamResponse:
        self._call.first_byte_s = round(time.monotonic() - self._began, 6)
        self._shared.metrics.first_byte.add(self._call.first_byte_s)
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", **self._shown()}
        stream = web.StreamResponse(headers=headers)
        await stream.prepare(request)
        return stream

    async def _break_off(self, stream: web.StreamResponse, trouble: Trouble) -> web.StreamResponse:
        """Tell a client that has seen a part of the answer; without [DONE] nobody takes it for the whole."""
        try:
            await stream.write(event(dumps(trouble.answer())))
            await stream.write_eof()
        except (OSError, RuntimeError):
            pass  # the client has gone as well
        return stream

    async def _record(self, answer: dict[str, Any]) -> None:
        """Raises Trouble if there is nothing to record, or no place for it."""
        vars(self._call).update(taken(answer, self._shared.recording))
        self._call.model = self._call.model or ""
        self._call.ended = time.time()
        self._recorded = True
        try:
            await self._shared.recorder.add(self._call)
        except StoreError as error:
            raise Trouble("undurable", 507, str(error)) from None

    async def _record_failure(self, trouble: Trouble) -> None:
        if trouble.kind == "undurable":
            return
        self._call.error, self._call.detail = trouble.kind, trouble.message[:500]
        self._call.ended = time.time()
        try:
            await self._shared.recorder.add(self._call)
        except StoreError as error:
            _log.error("%s", error)

    def _shown(self) -> dict[str, str]:
        shown = {CALL_HEADER: self._call.id, REPLICA_HEADER: self._call.replica}
        shown[VERSION_HEADER] = self._call.model_version
        return {name: value for name, value in shown.items() if value}

    def _left_s(self) -> float:
        return self._deadline - time.monotonic()
