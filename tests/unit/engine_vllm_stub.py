"""A stand-in for vLLM's server around which the real extension is put: it serves over HTTP, in a thread of the test.

Its weights are the name of the folder that was loaded last. A folder with a file `bad` makes a load fail.
"""

import asyncio
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from hpcjet.engine.http import Answer, request
from hpcjet.engine.vllm_extension import CLOSED_VARIABLE, REPLICA_VARIABLE, Extension
from hpcjet.engine.weights import ServedWeights

KEY = "sesame-0123456789"
CHAT = "/v1/chat/completions"
_ENVIRONMENT = threading.Lock()
SHAPES = {"embed.weight": (4, 2), "layer.0.weight": (2, 2)}


def checkpoint(folder: Path, *, shapes: dict[str, tuple[int, ...]] | None = None, **config: Any) -> Path:
    """A folder with a safetensors file of zeros."""
    folder.mkdir()
    table, end = {}, 0
    for name, shape in (shapes or SHAPES).items():
        size = 2
        for each in shape:
            size *= each
        table[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    header = json.dumps({"__metadata__": {"format": "pt"}, **table}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(end))
    (folder / "config.json").write_text(json.dumps({"hidden_size": 2, **config}))
    return folder


@dataclass
class StubVllm:
    """The engine and its HTTP application."""

    model: Path
    delay_s: float = 0.0
    """How long an answer takes, also one that has begun: a test that makes it shorter has it come."""
    late_s: float = 0.0
    """How long an order to change the weights takes to arrive."""
    spoils: bool = False
    """Whether a load fails half way, here alone."""
    paused: bool = False
    forgotten: int = 0
    """How often keys and values were forgotten."""
    calls: list[str] = field(default_factory=list)
    url: str = ""
    running: int = 0

    def __post_init__(self) -> None:
        self.loaded = self.model.name
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(model=str(self.model)))
        self.state = SimpleNamespace(engine_client=self)

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        self.paused, self.forgotten = True, self.forgotten + clear_cache

    async def resume_generation(self) -> None:
        self.paused = False

    async def reset_prefix_cache(self) -> None:
        self.forgotten += 1

    async def collective_rpc(self, method: str, *, kwargs: dict[str, str]) -> None:
        assert method == "reload_weights" and self.paused
        folder = Path(kwargs["weights_path"])
        self.calls.append(folder.name)
        self.loaded = f"part of {folder.name}"
        await asyncio.sleep(0.02)
        if self.spoils or (folder / "bad").exists():
            raise RuntimeError("invalid offset")
        self.loaded = folder.name

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/metrics":
            text = f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting 0\n"
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": text.encode()})
            return
        if scope["path"] != CHAT:
            await _send(send, {"ok": True})
            return
        asked = json.loads((await receive())["body"])
        before = self.loaded
        if asked.get("stream"):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"X-Replica", b"forged")]})
            await send({"type": "http.response.body", "body": b"first ", "more_body": True})
        self.running += 1
        await asyncio.sleep(0)
        began = time.monotonic()
        while (left_s := began + self.delay_s - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, 0.02))
        self.running -= 1
        message = {"role": "assistant", "content": self.loaded if self.loaded == before else "mixed"}
        answer = {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        if asked.get("stream"):
            await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
        else:
            await _send(send, answer)


async def _send(send: Any, value: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})


@contextmanager
def served(model: Path, *, name: str = "r0", pooled: bool = False, key: str = KEY, port: int = 0) -> Iterator[StubVllm]:
    """One replica over HTTP."""
    uvicorn = pytest.importorskip("uvicorn")
    stub = StubVllm(model)
    told = {"VLLM_API_KEY": key, REPLICA_VARIABLE: name, CLOSED_VARIABLE: "1" if pooled else ""}
    with _ENVIRONMENT, mock.patch.dict(os.environ, told):
        extension = Extension(stub)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/hpcjet/weights":
            await asyncio.sleep(stub.late_s)
        await extension({**scope, "app": stub}, receive, send)

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
        stub.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        settings = uvicorn.Config(application, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield stub
        finally:
            server.should_exit = True
            thread.join()


def ask(stub: StubVllm, *, key: str = KEY, timeout_s: float = 300, headers: Any = None, **body: Any) -> Answer:
    return request("POST", stub.url + CHAT, timeout_s=timeout_s, api_key=key, headers=headers, body=body)


def text(answer: Answer) -> str:
    """Which weights it came from."""
    return str(answer.json()["choices"][0]["message"]["content"])


def weights_of(stub: StubVllm) -> ServedWeights:
    return ServedWeights(stub.url, KEY)
