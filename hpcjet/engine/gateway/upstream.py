"""One try of a request at the router or server: an answer within its limits, or a Trouble that says what came."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp

from hpcjet.engine.gateway.settings import GatewaySettings
from hpcjet.engine.gateway.trouble import Trouble, trouble_of
from hpcjet.engine.http import proxy_of

_KEEPALIVE_S = 30.0
_ERROR_BYTES = 1 << 20
TIMEOUTS = (TimeoutError, asyncio.TimeoutError)  # two classes in Python 3.10


class Upstream:
    """Connections to the router or server, kept open between requests."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._base = settings.url.rstrip("/")
        self._proxy = proxy_of(urlsplit(settings.url))
        self._key = settings.upstream_key
        self._limits = settings.limits
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S)
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=True, cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=1 << 20
        )

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        within_s: float,
        stream: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The head of a 200 answer; leaving the block early hangs up. Raises Trouble, also for what the block raises
        when the connection breaks."""
        sent = {"Content-Type": "application/json", **(headers or {})}
        if self._key:
            sent["Authorization"] = f"Bearer {self._key}"
        try_s, connect_s = min(within_s, self._limits.try_s), self._limits.connect_s
        # A stream may go on for longer than a try, once it has begun.
        timeout = aiohttp.ClientTimeout(total=within_s if stream else try_s, sock_read=try_s, sock_connect=connect_s)
        try:
            async with self._session.request(
                method,
                self._base + path,
                data=body,
                headers=sent,
                timeout=timeout,
                allow_redirects=False,
                proxy=self._proxy,
            ) as response:
                if response.status != 200:
                    text = await response.content.read(_ERROR_BYTES)
                    raise trouble_of(response.status, text, retry_after=response.headers.get("Retry-After"))
                yield response
        except TIMEOUTS as error:
            connecting = isinstance(error, aiohttp.ConnectionTimeoutError)
            what = "connection" if connecting else "answer in full"
            raise Trouble("lost" if connecting else "stalled", 504, f"no {what} in time") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Trouble("lost", 502, f"the connection to the engine broke: {type(error).__name__}") from None

    async def pieces(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The body as it comes. Raises Trouble "stalled" where no byte comes for too long."""
        content = response.content
        while not content.at_eof():
            # What is there already needs no timer, and that is most often all.
            piece = content.read_nowait()
            if not piece:
                try:
                    piece = await asyncio.wait_for(content.readany(), self._limits.stall_s)
                except TIMEOUTS:
                    raise Trouble("stalled", 504, f"no byte for {self._limits.stall_s:g} s within an answer") from None
            if piece:
                yield piece

    async def whole(self, response: aiohttp.ClientResponse) -> bytes:
        """The body. Raises Trouble as `pieces` does."""
        return b"".join([piece async for piece in self.pieces(response)])
