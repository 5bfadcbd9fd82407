"""The process of a gateway: its settings are one line of JSON on standard input, so that no secret is in argv."""

import asyncio
import json
import logging
import signal
import sys

from hpcjet.engine.gateway.settings import GatewaySettings, from_json

_SWITCH_S = 0.001
"""How long the thread that records may keep the event loop waiting."""


async def _serve(settings: GatewaySettings) -> None:
    from hpcjet.engine.gateway.server import GatewayServer

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    server = GatewayServer(settings)
    await server.start()
    try:
        await ended.wait()
    finally:
        await server.stop()


def main() -> int:
    import uvloop

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    settings = from_json(json.loads(sys.stdin.readline()))
    sys.setswitchinterval(_SWITCH_S)
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_serve(settings))
    except OSError as error:
        print(f"the gateway cannot listen at {settings.host}:{settings.port}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
