"""A STUB of a replica: answers at once what an OpenAI-like server with vLLM's token ids would, and fails on demand.

    python tests/engine/stub.py --port 8000 [--name A] [--key-file FILE]

No model: its words and ids are made up. What it shall do next is set with POST /stub/mode, and what it saw is read from
GET /stub/seen. It parses only what the router and the load generator send, so that it costs next to nothing.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTEXT_ERROR = {
    "error": {
        "message": "This model's maximum context length is 32768 tokens. However, your request has 40000 input tokens.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
}


class Behaviour:
    """What the stub does, the same for all connections."""

    def __init__(self, *, name: str, key: str, seed: int = 0) -> None:
        self.name, self.key = name, key
        self.version = "0"
        self.healthy = True
        self.chances: dict[str, float] = {}
        """Of each kind of fault: hang, cut, slow, 500, 503, 429, context, no_ids, no_logprobs."""
        self.delay_s = 0.0
        self.tokens = 8
        self.seen: Counter[str] = Counter()
        self.sessions: Counter[str] = Counter()
        self.last_head = ""
        self.last_body: dict[str, Any] = {}
        self._random = random.Random(f"{name} {seed}")

    def fault(self) -> str:
        dice = self._random.random()
        for kind, chance in self.chances.items():
            dice -= chance
            if dice < 0:
                return kind
        return ""

    def report(self) -> dict[str, Any]:
        seen = {"seen": dict(self.seen), "sessions": dict(self.sessions), "head": self.last_head}
        return {**seen, "body": self.last_body}


class Connection(asyncio.Protocol):
    """One connection: requests one after the other."""

    def __init__(self, stub: Behaviour) -> None:
        self._stub = stub
        self._buffer = b""
        self._busy = False
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, _: Exception | None) -> None:
        if self._task and not self._task.done():
            self._stub.seen["client gone"] += 1
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while not (self._task and not self._task.done()) and self._take():
            pass

    def _take(self) -> bool:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return False
        low = head.lower()
        size = int(low.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if len(rest) < size:
            return False
        body, self._buffer = rest[:size], rest[size:]
        self._answer(head, body)
        return True

    def _answer(self, head: bytes, body: bytes) -> None:
        stub = self._stub
        method, path = head.split(b" ", 2)[:2]
        if path.startswith(b"/v1/chat/completions"):
            stub.seen["chat"] += 1
            if stub.key and f"authorization: bearer {stub.key}".encode() not in _lower_name(head):
                stub.seen["refused"] += 1
                return self._send(401, {"error": {"message": "wrong key", "code": "invalid_api_key"}})
            return self._chat(head, json.loads(body))
        if path == b"/stub/mode" and method == b"POST":
            for key, value in json.loads(body).items():
                setattr(stub, key, value)
            return self._send(200, {})
        if path == b"/stub/seen":
            return self._send(200, stub.report())
        if path == b"/v1/models":
            return self._send(200, {"object": "list", "data": [{"id": "stub", "object": "model"}]})
        if path == b"/health" and stub.healthy is None:
            return None  # hangs
        return self._send(200 if stub.healthy or path != b"/health" else 503, {"status": "ok"})

    def _chat(self, head: bytes, body: dict[str, Any]) -> None:
        stub = self._stub
        session = head.lower().partition(b"x-session-id:")[2].partition(b"\r\n")[0].strip().decode()
        stub.sessions[session] += 1
        stub.last_head, stub.last_body = head.decode(), body
        fault = stub.fault()
        if fault:
            stub.seen[fault] += 1
        if fault == "context":
            self._send(400, CONTEXT_ERROR)
        elif fault.isdecimal():
            self._send(int(fault), {"error": {"message": f"made-up {fault}", "type": "stub", "code": int(fault)}})
        elif fault in ("hang", "cut", "slow") or body.get("stream") or stub.delay_s:
            self._task = asyncio.get_running_loop().create_task(self._act(fault, body))
            self._task.add_done_callback(lambda _: self.data_received(b""))
        else:
            self._send(200, completion(body, stub, fault=fault), self._headers())

    def _headers(self) -> str:
        return f"X-Model-Version: {self._stub.version}\r\nX-Replica: {self._stub.name}\r\n"

    async def _act(self, fault: str, body: dict[str, Any]) -> None:
        if fault == "hang":
            await asyncio.sleep(3600)
        await self._delay()
        if body.get("stream"):
            return await self._stream(fault, body)
        whole = json.dumps(completion(body, self._stub, fault=fault)).encode()
        head = _head(200, len(whole), self._headers())
        if fault == "cut":
            self._transport.write(head + whole[: len(whole) // 2])
            await asyncio.sleep(0.01)
            return self._transport.abort()
        if fault == "slow":
            self._transport.write(head)
            return await self._drip([whole[at : at + 40] for at in range(0, len(whole), 40)])
        self._transport.write(head + whole)
        return None

    async def _delay(self) -> None:
        """As long as is wanted now: a test may make it shorter for what has begun."""
        clock = asyncio.get_running_loop().time
        began = clock()
        while (left_s := began + self._stub.delay_s - clock()) > 0:
            await asyncio.sleep(min(left_s, 0.02))

    async def _stream(self, fault: str, body: dict[str, Any]) -> None:
        chunks = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in stream_chunks(body, self._stub, fault)]
        chunks.append(b"data: [DONE]\n\n")
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n{self._headers()}\r\n"
        )
        self._transport.write(head.encode())
        framed = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]
        if fault == "cut":
            for each in framed[: len(framed) // 2]:
                self._transport.write(each)
            await asyncio.sleep(0.01)
            return self._transport.abort()
        if fault == "slow":
            await self._drip(framed)
        else:
            for each in framed:
                self._transport.write(each)
                await asyncio.sleep(0)
        self._transport.write(b"0\r\n\r\n")
        return None

    async def _drip(self, pieces: list[bytes]) -> None:
        for each in pieces:
            self._transport.write(each)
            await asyncio.sleep(1.0)

    def _send(self, status: int, value: Any, headers: str = "") -> None:
        whole = json.dumps(value, separators=(",", ":")).encode()
        self._transport.write(_head(status, len(whole), headers) + whole)


def completion(body: dict[str, Any], stub: Behaviour, *, fault: str = "") -> dict[str, Any]:
    """A made-up answer in the form of vLLM's."""
    prompt = len(body.get("messages", ())) * 4
    ids = list(range(100, 100 + stub.tokens))
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": "w " * stub.tokens},
        "logprobs": None,
        "finish_reason": "stop",
    }
    whole: dict[str, Any] = {"id": "chatcmpl-stub", "object": "chat.completion", "created": 0, "model": "stub"}
    if body.get("logprobs") and fault != "no_logprobs":
        choice["logprobs"] = {"content": [_logprob(number) for number in ids]}
    if body.get("return_token_ids") and fault != "no_ids":
        choice["token_ids"] = ids
        whole["prompt_token_ids"] = list(range(prompt))
    usage = {"prompt_tokens": prompt, "completion_tokens": stub.tokens, "total_tokens": prompt + stub.tokens}
    return {**whole, "choices": [choice], "usage": usage}


def stream_chunks(body: dict[str, Any], stub: Behaviour, fault: str) -> list[dict[str, Any]]:
    """The same answer as chunks."""
    answer = completion(body, stub, fault=fault)
    choice = answer["choices"][0]
    base = {"id": answer["id"], "object": "chat.completion.chunk", "created": 0, "model": "stub"}
    first: dict[str, Any] = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    ids = "prompt_token_ids" in answer
    chunks = [{**base, "choices": [first], **({"prompt_token_ids": answer["prompt_token_ids"]} if ids else {})}]
    for at in range(stub.tokens):
        each: dict[str, Any] = {"index": 0, "delta": {"content": "w "}, "finish_reason": None}
        if choice["logprobs"]:
            each["logprobs"] = {"content": [choice["logprobs"]["content"][at]]}
        if ids:
            each["token_ids"] = [choice["token_ids"][at]]
        chunks.append({**base, "choices": [each]})
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({**base, "choices": [], "usage": answer["usage"]})
    return chunks


def _logprob(number: int) -> dict[str, Any]:
    return {"token": "w ", "logprob": -number / 1000, "bytes": [119, 32], "top_logprobs": []}


def _head(status: int, size: int, headers: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{headers}Content-Length: {size}\r\n\r\n".encode()


def _lower_name(head: bytes) -> bytes:
    return b"\r\n".join(b":".join([line.partition(b":")[0].lower(), line.partition(b":")[2]])
                        for line in head.replace(b"Bearer", b"bearer").split(b"\r\n"))  # fmt: skip


def event_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's, where it is installed."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop  # type: ignore[no-any-return]
    return asyncio.new_event_loop


async def serve(stub: Behaviour, host: str, port: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Connection(stub), host, port, backlog=2048)
    print(f"stub {stub.name} at {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--name", default="stub")
    parser.add_argument("--key-file", type=Path)
    given = parser.parse_args()
    key = given.key_file.read_text().strip() if given.key_file else ""
    loop = event_loop()()
    asyncio.set_event_loop(loop)
    with contextlib.suppress(KeyboardInterrupt):
        loop.run_until_complete(serve(Behaviour(name=given.name, key=key), given.host, given.port))


if __name__ == "__main__":
    sys.exit(main())
