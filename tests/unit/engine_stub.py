"""A small server in the place of an engine, which misbehaves on demand: engine_stub.py PORT KEY FOLDER WORDS...

Words: after=S begins to answer after S seconds; say=TEXT writes it to the log, exit=N ends it then; refuse=TEXT refuses
requests; noids leaves token ids out; sglang has them where SGLang has them; child starts a child that would outlive it;
shm makes a segment of shared memory, whose name stands in FOLDER/shm.
While there is a file FOLDER/hang it answers nothing, with FOLDER/mute nothing but /health, and with FOLDER/sick that
with 503. Once there is a file FOLDER/asked it was asked something.
"""

import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import shared_memory
from pathlib import Path

port, key, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
words = dict(word.partition("=")[::2] for word in sys.argv[4:])
made = 0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._stall("hang")
        if self.path == "/metrics":
            self._send(200, f'vllm:generation_tokens_total{{model="m"}} {float(made)}\n'.encode())
        elif self.path == "/v1/models":
            self._send(200, b'{"object": "list", "data": [{"id": "m"}]}')
        else:
            self._send(503 if (folder / "sick").exists() else 200, b"")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        (folder / "asked").touch()
        self._stall("hang")
        self._stall("mute")
        self._send(*self._answer())

    def _answer(self) -> tuple[int, bytes]:
        global made
        if self.headers["Authorization"] != f"Bearer {key}":
            return 401, b"{}"
        if "refuse" in words:
            return 400, json.dumps({"error": {"message": words["refuse"]}}).encode()
        made += 1
        usage = {"prompt_tokens": 1, "completion_tokens": 2}
        return 200, json.dumps({**_answer(), "model": "m", "usage": usage}).encode()

    def _stall(self, word: str) -> None:
        while (folder / word).exists():
            time.sleep(0.05)

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _answer() -> dict[str, object]:
    choice = {"message": {"role": "assistant", "content": "OK"}, "finish_reason": "stop"}
    if "noids" in words:
        return {"prompt_token_ids": [3], "choices": [choice]}
    if "sglang" in words:
        return {"choices": [{**choice, "prompt_token_ids": [3], "response_token_ids": [1, 2]}]}
    return {"prompt_token_ids": [3], "choices": [{**choice, "token_ids": [1, 2]}]}


with (folder / "starts").open("a") as file:
    file.write("x")
print("starting with", key, flush=True)
if "child" in words:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if "shm" in words:
    segment = shared_memory.SharedMemory(create=True, size=4096)
    (folder / "shm").write_text(segment.name)
time.sleep(float(words.get("after", 0)))
print(words.get("say", ""), flush=True)
if "exit" in words:
    sys.exit(int(words["exit"]))
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
