"""Many sessions against replicas that are killed, hang, answer slowly and fail: what each one came to."""

import asyncio
import contextlib
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from scene import Scene, StubReplica, resident_mb

from hpcjet.engine.gateway.trouble import ERROR_HEADER

FAULTS = {"hang": 0.01, "slow": 0.01, "cut": 0.02, "500": 0.03, "503": 0.03, "429": 0.03, "context": 0.01}
CLASSES = {"context", "busy", "unavailable", "server", "lost", "stalled", "late"}
WORDS = "w " * 8
MARGIN_S = 10.0
"""How late an answer may be beyond its deadline: the machine is shared."""


@dataclass
class Tally:
    """What came of all calls."""

    calls: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    answered: set[str] = field(default_factory=set)
    """Ids of the calls that got their answer."""
    slowest_s: float = 0.0
    sessions: int = 0
    memory_mb: list[dict[str, float]] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)


class Chaos:
    """Kills and restarts stub replicas, and now and then the router, until it is stopped."""

    def __init__(self, found: Scene, tally: Tally, *, pause_s: float, router_too: bool) -> None:
        self._scene, self._tally, self._pause_s, self._router_too = found, tally, pause_s, router_too
        self._dice = random.Random(7)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        for stub in self._scene.replicas:
            stub.set(chances=FAULTS)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for stub in self._scene.replicas:
            stub.set(chances={})

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s * self._dice.uniform(0.5, 1.5)):
            if self._router_too and self._dice.random() < 0.1 and self._scene.router.pid:
                self._tally.kills["router"] += 1
                with contextlib.suppress(ProcessLookupError):  # it is being restarted
                    os.kill(self._scene.router.pid, signal.SIGKILL)
                continue
            stub = self._dice.choice(self._scene.replicas)
            if self._dice.random() < 0.3:
                self._tally.kills["frozen"] += 1
                stub.kill(signal.SIGSTOP)
                self._stop.wait(2)
                stub.kill(signal.SIGCONT)
            else:
                self._tally.kills["replica"] += 1
                self._restart(stub)

    def _restart(self, stub: StubReplica) -> None:
        stub.kill()
        self._stop.wait(self._dice.uniform(0.1, 2))
        stub.start()
        stub.set(chances=FAULTS)


async def run_sessions(
    found: Scene, tally: Tally, *, sessions: int, seconds: float, think_s: float, deadline_s: float
) -> None:
    """So many sessions at a time, one after the other in each place, for so long."""
    until = time.monotonic() + seconds
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=deadline_s + 3 * MARGIN_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        watching = asyncio.create_task(_watch(found, tally))
        await asyncio.gather(
            *(_place(found, tally, http, place, until, think_s, deadline_s) for place in range(sessions))
        )
        watching.cancel()


async def _watch(found: Scene, tally: Tally) -> None:
    while True:
        pids = {"gateway": found.gateway.pid, "router": found.router.pid}
        with contextlib.suppress(OSError):
            tally.memory_mb.append({name: round(resident_mb(pid), 1) for name, pid in pids.items() if pid})
        await asyncio.sleep(2)


async def _place(
    found: Scene, tally: Tally, http: aiohttp.ClientSession, place: int, until: float, think_s: float, deadline_s: float
) -> None:
    dice = random.Random(place)
    round_ = 0
    await asyncio.sleep(dice.uniform(0, think_s))
    while time.monotonic() < until:
        round_ += 1
        tally.sessions += 1
        where = found.gateway.endpoint(f"task-{place}~{round_}~1", model="stub", valid_s=3600)
        messages: list[Any] = [{"role": "system", "content": "s" * 500}]
        for turn in range(dice.randrange(2, 8)):
            messages.append({"role": "user", "content": f"turn {turn} " + "u" * 200})
            said = await _call(tally, http, where, messages, stream=dice.random() < 0.3, deadline_s=deadline_s)
            if said is None:
                break
            messages.append({"role": "assistant", "content": said})
            await asyncio.sleep(dice.uniform(0, 2 * think_s))


async def _call(
    tally: Tally, http: aiohttp.ClientSession, where: Any, messages: list[Any], *, stream: bool, deadline_s: float
) -> str | None:
    body = {"model": "stub", "messages": messages, **({"stream": True} if stream else {})}
    headers = {"Authorization": f"Bearer {where.api_key}"}
    began = time.monotonic()
    try:
        async with http.post(f"{where.base_url}/chat/completions", json=body, headers=headers) as response:
            raw = await response.read()
            status, known = response.status, response.headers
    except Exception as error:
        tally.wrong.append(f"no answer: {type(error).__name__}: {error}")
        return None
    took_s = time.monotonic() - began
    tally.slowest_s = max(tally.slowest_s, took_s)
    if took_s > deadline_s + MARGIN_S:
        tally.wrong.append(f"an answer after {took_s:.1f} s: {status}")
    kind, said = outcome(status, raw, known.get(ERROR_HEADER, ""), stream=stream)
    tally.calls[kind] += 1
    if kind == "ok":
        tally.answered.add(known["X-Hpcjet-Call"])
        if said != WORDS:
            tally.wrong.append(f"another answer than the replica gave: {said!r}")
    elif kind not in CLASSES:
        tally.wrong.append(f"HTTP {status}, class {kind!r}: {raw[:200]!r}")
    return said if kind == "ok" else None


def outcome(status: int, raw: bytes, kind: str, *, stream: bool) -> tuple[str, str]:
    """("ok", text), or (class of the error, "")."""
    if status != 200:
        return kind or "unclassified", ""
    if not stream:
        return "ok", json.loads(raw)["choices"][0]["message"]["content"]
    events = [line[6:] for line in raw.split(b"\n\n") if line.startswith(b"data: ")]
    if not events or events[-1] != b"[DONE]":
        last = json.loads(events[-1]) if events else {}
        return last.get("error", {}).get("code", "unclassified"), ""
    return "ok", "".join(json.loads(each)["choices"][0]["delta"].get("content") or "" for each in events[:-1])
