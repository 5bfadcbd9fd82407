"""The oracle's HTTP server: OpenAI's chat-completions interface over aiohttp."""

import asyncio
import hmac
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from hpcjet.config.engine import OracleConfig
from hpcjet.engine.oracle.behaviour import choose_behaviour
from hpcjet.engine.oracle.conversation import read_conversation
from hpcjet.engine.oracle.known import KnownTasks
from hpcjet.engine.oracle.player import Reply, next_reply
from hpcjet.engine.session import SESSION_HEADER, parse_session

MODEL = "oracle"
_MAX_BODY_BYTES = 256 * 1024**2
_CHARACTERS_PER_TOKEN = 4
_OPEN_PATHS = {"/health"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Refused(Exception):
    """A request that is answered with an error in OpenAI's form."""

    def __init__(
        self, status: int, message: str, *, kind: str = "invalid_request_error", code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": code}}


class OracleServer:
    """Answers for the tasks it knows. Holds no state of any conversation."""

    def __init__(self, tasks: KnownTasks, *, config: OracleConfig, api_key: str) -> None:
        self._tasks = tasks
        self._config = config
        self._expected = f"Bearer {api_key}".encode()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._guard])
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The key, and every error in OpenAI's form."""
        try:
            if request.path not in _OPEN_PATHS:
                self._check_key(request)
            return await handler(request)
        except Refused as error:
            return web.json_response(error.body, status=error.status)
        except web.HTTPException as error:
            return web.json_response(Refused(error.status, error.reason).body, status=error.status)

    def _check_key(self, request: web.Request) -> None:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._expected):
            raise Refused(401, "Incorrect API key provided.", kind="authentication_error", code="invalid_api_key")

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "tasks": len(self._tasks)})

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "hpcjet"}]})

    async def _chat(self, request: web.Request) -> web.Response:
        raw = await request.read()
        body = _parse(raw)
        if self._config.latency_s:
            await asyncio.sleep(self._config.latency_s)
        prompt_tokens = _tokens(json.dumps(body["messages"], ensure_ascii=False))
        self._check_context(prompt_tokens)
        tool = _tool_name(body.get("tools"))
        reply = self._reply(body["messages"], unquote(request.headers.get(SESSION_HEADER, "")), tools=tool is not None)
        return web.json_response(_completion(reply, tool=tool, prompt_tokens=prompt_tokens))

    def _check_context(self, prompt_tokens: int) -> None:
        limit = self._config.context_tokens
        if limit and prompt_tokens > limit:
            raise Refused(
                400,
                f"This model's maximum context length is {limit} tokens. Your messages hold {prompt_tokens} tokens.",
                code="context_length_exceeded",
            )

    def _reply(self, messages: list[Mapping[str, Any]], session: str, *, tools: bool) -> Reply:
        try:
            talk = read_conversation(messages)
        except ValueError as error:
            raise Refused(400, str(error)) from None
        known = self._tasks.recognise(talk.prompt, session)
        if known is None:
            raise Refused(
                400,
                "The oracle plays known solutions and knows no task with this statement; "
                "start it with the tasks file of the run, or choose an engine that is a model.",
                code="unknown_task",
            )
        attempt = parse_session(session)[1]
        behaviour = choose_behaviour(
            self._config.mode, instance_id=known.instance_id, attempt=attempt, seed=self._config.seed
        )
        return next_reply(known, talk, behaviour=behaviour, run_tests=self._config.run_tests, tools=tools)


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError:
        raise Refused(400, "The body is no JSON.") from None
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise Refused(400, "The body must be an object with a list of messages.")
    if body.get("model") != MODEL:
        raise Refused(
            404, f"The model {body.get('model')!r} does not exist; there is {MODEL!r}.", code="model_not_found"
        )
    if body.get("stream"):
        raise Refused(400, "Streaming is not supported; leave stream out.", code="unsupported_value")
    if body.get("n") not in (None, 1):
        raise Refused(400, "One choice is given for each request; leave n out.", code="unsupported_value")
    return body


def _tool_name(tools: Any) -> str | None:
    """The first offered function that takes a command; None where no tools are offered."""
    if not tools:
        return None
    for tool in tools if isinstance(tools, list) else []:
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and "command" in (function.get("parameters") or {}).get("properties", {}):
            return str(function.get("name"))
    raise Refused(400, "None of the tools takes a parameter named command.", code="unsupported_value")


def _completion(reply: Reply, *, tool: str | None, prompt_tokens: int) -> dict[str, Any]:
    message = _tool_message(reply, tool) if tool else _text_message(reply)
    written = _tokens(json.dumps(message))
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": written,
            "total_tokens": prompt_tokens + written,
        },
    }


def _tool_message(reply: Reply, tool: str) -> dict[str, Any]:
    arguments = ['{"command": "sed -n 1,40p'] if reply.broken else [json.dumps({"command": c}) for c in reply.commands]
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if arguments:
        message["tool_calls"] = [
            {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": {"name": tool, "arguments": text}}
            for text in arguments
        ]
    return message


def _text_message(reply: Reply) -> dict[str, Any]:
    commands = ["ls", "pwd"] if reply.broken else reply.commands
    blocks = "".join(f"\n\n```mswea_bash_command\n{command}\n```" for command in commands)
    return {"role": "assistant", "content": f"{reply.text}{blocks}"}


def _tokens(text: str) -> int:
    return max(1, len(text) // _CHARACTERS_PER_TOKEN)
