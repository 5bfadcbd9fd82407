"""A real HTTP server that answers what a test wrote down: for answers that no engine gives on demand."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hpcjet.engine.endpoint import Endpoint


@dataclass
class Scripted:
    """Its address and the requests it got."""

    endpoint: Endpoint
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


def said(text: str | None = "", *, command: str | None = None, **message: Any) -> tuple[int, dict[str, Any]]:
    """A usual completion."""
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": command})}}
    ]
    whole = {"role": "assistant", "content": text, **({"tool_calls": calls} if command is not None else {}), **message}
    choice = {"index": 0, "message": whole, "finish_reason": "tool_calls" if command is not None else "stop"}
    return 200, {"id": "x", "choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


@contextlib.contextmanager
def scripted(*answers: Any, pause_s: float = 0, model: str = "m") -> Iterator[Scripted]:
    """Answers one after the other, the last one for ever: (status, JSON or bytes[, headers]), or a function of the
    handler that writes to its socket itself."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(b"")

        def do_POST(self) -> None:
            self.answer(self.rfile.read(int(self.headers["Content-Length"])))

        def answer(self, raw: bytes) -> None:
            seen.requests.append({"path": self.path, **(json.loads(raw) if raw else {})})
            seen.headers.append(dict(self.headers.items()))
            time.sleep(pause_s)
            with lock:
                chosen = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(chosen, Callable):  # type: ignore[arg-type]
                chosen(self)
                return
            status, body, *headers = chosen
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **(headers[0] if headers else {})}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    lock = threading.Lock()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    seen = Scripted(Endpoint(base_url=f"http://127.0.0.1:{server.server_port}/v1", model=model, api_key="sesame-key"))
    try:
        yield seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
