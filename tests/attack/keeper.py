"""Opens sandboxes as the user that it is started as, on behalf of a test: JSON lines in, JSON lines out.

A process of its own, because it is part of the scene: what runs inside must get at nothing of it.
"""

import base64
import ctypes
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from hpcjet.config.sandbox import SandboxConfig, SandboxKind
from hpcjet.sandbox import Limits, Mount, ReadySandboxes, Sandbox, SandboxSpec, View, open_sandbox, probe, read_back
from hpcjet.sandbox.identity import identity

_boxes: dict[str, Sandbox] = {}
_out = threading.Lock()
_ready_first = False
"""Whether sandboxes with a view stand ready before they are asked for."""


def main() -> None:
    given = json.loads(sys.argv[1])
    global _ready_first
    kind, _ready_first = SandboxKind(given.pop("kind")), given.pop("ready", False)
    config = SandboxConfig(kind=kind, **{key: Path(value) for key, value in given.items()})
    _hold_a_key()
    found = probe(config)
    _answer(
        {
            "kind": found.kind,
            "overlay": found.overlay,
            "reason": found.reason,
            "landlock": getattr(found.runtime, "landlock", 0),
        }
    )
    for line in sys.stdin:
        threading.Thread(target=_serve, args=(config, json.loads(line)), daemon=True).start()


def _hold_a_key() -> None:
    """In a session keyring of its own, as a login keeps its tickets."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(ctypes.c_long(250), ctypes.c_long(1), None)
    secret = os.environ["LLM_API_KEY"].encode()
    libc.syscall(248, b"user", b"hpcjet-attack", secret, len(secret), -3)


def _answer(message: dict[str, Any]) -> None:
    with _out:
        print(json.dumps(message), flush=True)


def _serve(config: SandboxConfig, request: dict[str, Any]) -> None:
    number, what = request.pop("id"), request.pop("what")
    try:
        _answer({"id": number, "result": _DO[what](config, **request)})
    except Exception as error:
        _answer({"id": number, "error": f"{type(error).__name__}: {error}"})


def _open(config: SandboxConfig, box: str, scratch: str, lowers: list[str], **how: Any) -> str | None:
    mounts = tuple(Mount(source=Path(m[0]), target=m[1], writable=m[2]) for m in how.get("mounts", []))
    view = View(lowers=tuple(map(Path, lowers)), at="/testbed") if lowers else None
    spec = SandboxSpec(
        scratch=Path(scratch), view=view, mounts=mounts, env=how.get("env", {}), cwd=how.get("cwd", "/tmp"),
        limits=Limits(**how.get("limits", {})), keep_scratch=how.get("keep_scratch", False),
    )  # fmt: skip
    num = 1 if _ready_first and view else 0
    with ReadySandboxes(config, spec, folder=Path(f"{scratch}-ready"), num=num) as ready:
        if num and ready.wait(60) != num:
            raise RuntimeError("no sandbox stands ready")
        _boxes[box] = open_sandbox(config, spec, ready=ready)
    upper = _boxes[box].upper
    return str(upper) if upper else None


def _run(config: SandboxConfig, box: str, command: str, timeout_s: float, stdin: str) -> dict[str, Any]:
    done = _boxes[box].run(command, timeout_s=timeout_s, stdin=base64.b64decode(stdin))
    return {**vars(done), "output": base64.b64encode(done.output).decode()}


def _outside(config: SandboxConfig, command: str, stdin: str, env: dict[str, str]) -> str:
    """The same command without any sandbox, as the user that sandboxes run as."""
    done = subprocess.run(
        ["bash", "-c", command], input=base64.b64decode(stdin), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, **env}, cwd="/tmp", timeout=60, check=False, **identity(config).popen(),
    )  # fmt: skip
    return base64.b64encode(done.stdout).decode()


_DO: dict[str, Any] = {
    "open": _open,
    "run": _run,
    "outside": _outside,
    "end_background": lambda config, box: _boxes[box].end_background(),
    "close": lambda config, box: _boxes.pop(box).close(),
    "read_back": lambda config, folder, name: base64.b64encode(read_back(Path(folder), name)).decode(),
    "rss": lambda config: _own_rss(),
}


def _own_rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
