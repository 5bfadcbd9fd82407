"""Stub replicas, a router and a gateway for one test or bench."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from free_port import free_port

from hpcjet.config.engine import Recording
from hpcjet.engine.gateway import Gateway, Limits
from hpcjet.engine.http import Unanswered, request
from hpcjet.engine.router import Router, RouterSettings

KEY = "run-key-for-tests"
SECRET = "secret-for-tests-" + "x" * 32
HOST = "127.0.0.1"
STUB = Path(__file__).with_name("stub.py")


class StubReplica:
    """A stub replica as a child process."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.port = name, free_port()
        self.url = f"http://{HOST}:{self.port}"
        self._key_file = folder / f"{name}.key"
        self._key_file.write_text(KEY)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [sys.executable, str(STUB), "--port", str(self.port), "--name", self.name]
        argv += ["--key-file", str(self._key_file)]
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_until(lambda: get(f"{self.url}/health") is not None)

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self._process:
            self._process.send_signal(number)
            if number == signal.SIGKILL:
                self._process.wait()
                self._process = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def set(self, **mode: Any) -> None:
        request("POST", f"{self.url}/stub/mode", timeout_s=60, body=mode)

    def seen(self) -> dict[str, Any]:
        found: dict[str, Any] = get(f"{self.url}/stub/seen") or {}
        return found


@dataclass
class Scene:
    """What a test works with."""

    replicas: list[StubReplica]
    router: Router
    gateway: Gateway
    records: Path


def get(url: str, *, key: str = "") -> Any:
    try:
        return json.loads(request("GET", url, timeout_s=60, api_key=key).body)
    except (Unanswered, ValueError):
        return None


def wait_until(true: Any, *, timeout_s: float = 200) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.02)


@contextlib.contextmanager
def scene(
    folder: Path, *, replicas: int = 2, stubs: Sequence[StubReplica] = (), record: Recording = Recording.logprobs,
    limits: Limits | None = None, settings: RouterSettings | None = None, key: str = KEY,
) -> Iterator[Scene]:  # fmt: skip
    """Everything up and ready; all of it ended afterwards."""
    stubs = stubs or [StubReplica(f"s{number}", folder) for number in range(replicas)]
    router = Router(host=HOST, port=free_port(), api_key=key, log=folder / "router.log", settings=settings)
    gateway = Gateway(
        router.url, SECRET, folder / "records", record=record, host=HOST, port=free_port(), api_key=key,
        log=folder / "gateway.log", limits=limits,
    )  # fmt: skip
    try:
        for stub in stubs:
            stub.start()
        router.start()
        gateway.start()
        deadline = time.monotonic() + 240
        router.wait_ready(deadline=deadline)
        for stub in stubs:
            router.add(stub.url, deadline=deadline)
        gateway.wait_ready(deadline=deadline)
        yield Scene(list(stubs), router, gateway, folder / "records")
    finally:
        gateway.stop()
        router.stop()
        for stub in stubs:
            stub.kill()


def resident_mb(pid: int) -> float:
    """Memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
