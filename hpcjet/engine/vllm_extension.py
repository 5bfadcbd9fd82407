"""Runs inside vLLM's server, in the engine's own environment: vllm ... --middleware vllm_extension.Extension

Every answer says which replica gave it, with which version of the weights; the weights can be changed while it serves;
and no POST is answered without the key (vLLM's own check covers some paths only). No part of hpcjet is importable here.

POST /hpcjet/weights {path, version, policy, timeout_s}   load; requests of agents wait from then on, until...
POST /hpcjet/open {version}                               ...this: the whole pool changes before anyone goes on
POST /hpcjet/check {path}                                 what loading would refuse; changes nothing
GET  /hpcjet/version                                      {replica, version, path, state}
"""

import asyncio
import hmac
import json
import os
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Name -> type and shape."""

REPLICA_VARIABLE = "HPCJET_REPLICA"
CLOSED_VARIABLE = "HPCJET_OPENED_BY_POOL"
"""Set: requests of agents wait until the pool has seen which weights are here."""
PROBE_HEADER = "x-hpcjet-probe"
"""On a request of those who watch the engine: it never waits."""
POLICIES = ("wait", "abort")
HOLD_S = 60.0
"""A request that waits for longer is sent back, to be asked again, here or elsewhere."""
_LONGEST_BODY = 64 * 1024
_LONGEST_HEADER = 256 * 1024**2
_FLOATS = {"F64", "F32", "F16", "BF16"}
_OTHER_KEYS = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "eos_token_id"}
"""Of config.json, which may differ between two checkpoints of one model."""


class Refused(Exception):
    """What is asked cannot be done; nothing was changed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Gate:
    """Which requests run, and whether more may begin."""

    def __init__(self, *, is_open: bool) -> None:
        self.state = "open" if is_open else "closed"
        self._running: set[asyncio.Future[None]] = set()
        self._aborted: set[asyncio.Future[None]] = set()
        self._news = asyncio.Condition()
        self._turned_away = 0
        """How often those who waited were sent back."""

    async def enter(self, *, probe: bool) -> bool:
        """Whether a request may begin, now or after a wait."""
        if probe:
            return self.state != "loading"
        if self.state != "open":
            try:
                await asyncio.wait_for(self._opened(), HOLD_S)
            except (TimeoutError, asyncio.TimeoutError):
                return False
        return self.state == "open"

    async def _opened(self) -> None:
        before = self._turned_away
        async with self._news:
            await self._news.wait_for(lambda: self.state == "open" or self._turned_away != before)

    def began(self, running: "asyncio.Future[None]") -> None:
        self._running.add(running)

    async def ended(self, running: "asyncio.Future[None]") -> bool:
        """Whether it was aborted."""
        self._running.discard(running)
        async with self._news:
            self._news.notify_all()
        aborted = running in self._aborted
        self._aborted.discard(running)
        return aborted

    async def change(self, state: str, *, turn_away: bool = False) -> None:
        """`turn_away`: those who wait shall ask again, where they may find another replica."""
        self.state = state
        self._turned_away += turn_away
        async with self._news:
            self._news.notify_all()

    async def drain(self, policy: str, timeout_s: float) -> None:
        """Nothing runs afterwards. Raises Refused when requests take too long to end."""
        await self.change("loading")
        if policy == "abort":
            self._aborted |= self._running
            for each in self._running:
                each.cancel()
        try:
            await asyncio.wait_for(self._idle(), timeout_s)
        except (TimeoutError, asyncio.TimeoutError):
            raise Refused(504, f"{len(self._running)} requests still run after {timeout_s:g} s") from None

    async def _idle(self) -> None:
        async with self._news:
            await self._news.wait_for(lambda: not self._running)


class Extension:
    """ASGI middleware around all of vLLM's server."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._replica = os.environ.get(REPLICA_VARIABLE, "")
        self._key = os.environ["VLLM_API_KEY"].encode()
        self._gate = Gate(is_open=not os.environ.get(CLOSED_VARIABLE))
        self._version = 0
        self._path = ""
        self._broken = ""
        """Why the weights in use are of no version."""
        self._loading = asyncio.Lock()
        self._tensors: Tensors | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, self._names())
        path, headers = scope["path"], dict(scope["headers"])
        ours, asks = path.startswith("/hpcjet/"), scope["method"] not in ("GET", "HEAD", "OPTIONS")
        if (ours or asks) and not self._knows(headers.get(b"authorization", b"")):
            await answer.whole(401, {"error": {"message": "wrong or missing API key", "code": "invalid_api_key"}})
        elif ours:
            await self._serve(scope, receive, answer)
        elif asks:
            await self._generate(scope, receive, answer, probe=PROBE_HEADER.encode() in headers)
        elif path == "/health" and self._broken:
            await answer.whole(503, {"error": {"message": self._broken}})
        else:
            await self._app(scope, receive, answer.send)

    def _knows(self, authorization: bytes) -> bool:
        kind, _, key = authorization.partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)

    async def _generate(self, scope: Message, receive: Receive, answer: "_Answer", *, probe: bool) -> None:
        """A request for tokens: all of them come from the weights that are here when it begins."""
        if self._broken or not await self._gate.enter(probe=probe):
            await answer.later("the weights change; ask again")
            return
        answer.names = self._names()
        running = asyncio.ensure_future(self._app(scope, receive, answer.send))
        self._gate.began(running)
        aborted = False
        try:
            await asyncio.wait([running])
        finally:
            if not running.done():
                running.cancel()
            aborted = await self._gate.ended(running)
        if aborted:
            # Of a stream that has begun only its end can be missing: the server then closes the connection.
            if not answer.begun:
                await answer.later("the weights changed; ask again")
            return
        running.result()

    def _names(self) -> dict[bytes, bytes]:
        return {b"x-replica": self._replica.encode(), b"x-model-version": str(self._version).encode()}

    async def _serve(self, scope: Message, receive: Receive, answer: "_Answer") -> None:
        try:
            asked = json.loads(await _body(receive) or b"{}")
            done = await self._act(f"{scope['method']} {scope['path']}", asked, scope)
        except Refused as refused:
            error = {"error": {"message": str(refused)}, **self._facts()}
            await answer.whole(refused.status, error)
        except (ValueError, KeyError, TypeError) as error:
            await answer.whole(400, {"error": {"message": f"{type(error).__name__}: {error}"}, **self._facts()})
        else:
            answer.names = self._names()
            await answer.whole(200, {**self._facts(), **done})

    async def _act(self, what: str, asked: dict[str, Any], scope: Message) -> dict[str, Any]:
        if what == "GET /hpcjet/version":
            return {}
        engine = scope["app"].state.engine_client
        if what == "POST /hpcjet/check":
            await self._check(engine, Path(asked["path"]))
            return {}
        if what == "POST /hpcjet/weights":
            return await self._load(engine, asked)
        if what == "POST /hpcjet/open":
            await self._open(int(asked["version"]))
            return {}
        raise Refused(404, "there are GET /hpcjet/version, POST /hpcjet/check, /hpcjet/weights and /hpcjet/open")

    def _facts(self) -> dict[str, Any]:
        return {
            "replica": self._replica, "version": self._version, "path": self._path, "state": self._gate.state,
            "broken": self._broken,
        }  # fmt: skip

    async def _open(self, version: int) -> None:
        async with self._loading:
            if self._broken:
                raise Refused(500, self._broken)
            if version != self._version:
                raise Refused(409, f"the weights here have version {self._version}, not {version}")
            await self._gate.change("open")

    async def _load(self, engine: Any, asked: dict[str, Any]) -> dict[str, Any]:
        path, version, policy = Path(asked["path"]), int(asked["version"]), asked["policy"]
        if self._broken:
            raise Refused(500, self._broken)
        if policy not in POLICIES:
            raise Refused(400, f"policy={policy!r} is none of {', '.join(POLICIES)}")
        async with self._loading:
            if version <= self._version:
                raise Refused(409, f"version {version} is not newer than the one here, {self._version}")
            await self._check(engine, path)
            began, done = time.monotonic(), False
            try:
                await self._gate.drain(policy, float(asked["timeout_s"]))
                waited_s = time.monotonic() - began
                await self._replace(engine, path)
                self._version, self._path, done = version, str(path), True
            finally:
                await self._gate.change("closed", turn_away=not done)
        return {"waited_s": round(waited_s, 3), "loaded_s": round(time.monotonic() - began - waited_s, 3)}

    async def _check(self, engine: Any, path: Path) -> None:
        """Raises Refused for weights of another model, or files that are not whole."""
        if not (hasattr(engine, "pause_generation") and hasattr(engine, "resume_generation")):
            raise Refused(501, "this version of vLLM cannot pause, which a change of weights needs; 0.32 can")
        first = Path(engine.vllm_config.model_config.model)
        try:
            if self._tensors is None:
                self._tensors = await asyncio.to_thread(read_tensors, first)
            found = await asyncio.to_thread(read_tensors, path)
            configs = await asyncio.to_thread(lambda: (read_config(first), read_config(path)))
        except (OSError, ValueError) as error:
            raise Refused(422, f"{path}: {error}") from None
        if why := why_another(self._tensors, found, tied=bool(configs[0].get("tie_word_embeddings"))):
            raise Refused(422, f"{path} does not fit the model that runs: {why}")
        if why := why_other_config(*configs):
            raise Refused(422, f"{path}/config.json does not fit the model that runs: {why}")

    async def _replace(self, engine: Any, path: Path) -> None:
        """Raises Refused if they could not be loaded; then nothing is served here any more."""
        # What still runs has no client any more; keys and values of the old weights are forgotten with it.
        await engine.pause_generation(mode="abort", clear_cache=True)
        try:
            await engine.collective_rpc("reload_weights", kwargs={"weights_path": str(path)})
            await engine.reset_prefix_cache()
        except Exception as error:
            # Whatever it was: a part of the new weights is in use, and vLLM cannot load others over a load that failed
            # (seen with 0.32: it reports success, and the engine dies or answers nonsense). Only a new process can.
            why = f"{path} could not be loaded: {type(error).__name__}: {error}"[:2000]
            self._broken = f"{why}; what was there is spoiled, and the engine must be started again"
            raise Refused(500, self._broken) from None
        finally:
            await engine.resume_generation()


class _Answer:
    """The way back to the client, with names in the head."""

    def __init__(self, send: Send, names: dict[bytes, bytes]) -> None:
        self._send, self.names = send, names
        self.begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in self.names]
            message = {**message, "headers": [*kept, *((name, value) for name, value in self.names.items() if value)]}
        await self._send(message)

    async def later(self, message: str) -> None:
        """Have it asked again soon: not a fault of this replica, which a status of 500 and more would be."""
        await self.whole(409, {"error": {"message": message, "code": "weights_change"}}, [(b"retry-after", b"0.2")])

    async def whole(self, status: int, body: object, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
        data = json.dumps(body).encode()
        length = (b"content-length", str(len(data)).encode())
        headers = [(b"content-type", b"application/json"), length, *extra]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": data})


async def _body(receive: Receive) -> bytes:
    data = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ValueError("the client hung up")
        data += bytes(message.get("body", b""))
        if len(data) > _LONGEST_BODY:
            raise ValueError("the body is too long")
        if not message.get("more_body"):
            return data


def read_tensors(folder: Path) -> Tensors:
    """Of all files of a checkpoint. Raises ValueError for files that are missing or cut off, OSError."""
    if not folder.is_dir():
        raise ValueError("there is no such folder on this node")
    index = folder / "model.safetensors.index.json"
    if index.exists():
        files = sorted({folder / name for name in json.loads(index.read_text())["weight_map"].values()})
    else:
        files = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("consolidated"))
    if not files:
        raise ValueError("there is no file *.safetensors")
    found: Tensors = {}
    for file in files:
        found.update(_tensors_of(file))
    return found


def _tensors_of(file: Path) -> Tensors:
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _LONGEST_HEADER
        if length >= _LONGEST_HEADER:
            raise ValueError(f"{file.name} is no safetensors file")
        header = opened.read(length)
    if len(header) < length:
        raise ValueError(f"{file.name} is cut off")
    table = json.loads(header)
    table.pop("__metadata__", None)
    end = 8 + length + max((each["data_offsets"][1] for each in table.values()), default=0)
    if size != end:
        raise ValueError(f"{file.name} has {size} bytes where its header promises {end}")
    return {name: (each["dtype"], tuple(each["shape"])) for name, each in table.items()}


def read_config(folder: Path) -> dict[str, Any]:
    """Of config.json; empty if there is none: a checkpoint may be weights alone."""
    file = folder / "config.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    return found if isinstance(found, dict) else {}


def why_another(here: Tensors, new: Tensors, *, tied: bool) -> str:
    """Why tensors are not those of the same model; empty if they are."""
    optional = {"lm_head.weight"} if tied else set()
    if missing := sorted(here.keys() - new.keys() - optional):
        return f"{len(missing)} tensors are missing, such as {missing[0]}"
    if extra := sorted(new.keys() - here.keys() - optional):
        return f"{len(extra)} tensors are unknown, such as {extra[0]}"
    for name in sorted(here.keys() & new.keys()):
        (kind, shape), (new_kind, new_shape) = here[name], new[name]
        if shape != new_shape:
            return f"{name} has the shape {list(new_shape)} and not {list(shape)}"
        if kind != new_kind and not {kind, new_kind} <= _FLOATS:
            return f"{name} has the type {new_kind} and not {kind}"
    return ""


def why_other_config(here: dict[str, Any], new: dict[str, Any]) -> str:
    """Why the engine, which keeps its first config.json, would compute something else; empty if it would not."""
    if not new:
        return ""
    for key in sorted((here.keys() | new.keys()) - _OTHER_KEYS):
        if here.get(key) != new.get(key):
            return f"{key} is {json.dumps(new.get(key))[:80]} and not {json.dumps(here.get(key))[:80]}"
    return ""
