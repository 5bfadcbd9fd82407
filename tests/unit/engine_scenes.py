"""A tiny task in a real git tree, and real engines and sandboxes around it, for the tests of engines and scaffolds."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from free_port import free_port

from hpcjet.config.engine import EngineConfig, OracleConfig
from hpcjet.config.sandbox import SandboxConfig
from hpcjet.engine import Engine, EngineSite, build_engine
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.keyfile import new_key
from hpcjet.sandbox import Sandbox, SandboxSpec, View, open_sandbox, probe
from hpcjet.sandbox.identity import identity
from hpcjet.tasks.jsonl import dump_tasks
from hpcjet.tasks.task import TESTBED, Recipe, Task

BROKEN = "def double(x):\n    return x + x + 1\n\n\ndef half(x):\n    return x / 2\n"
FIXED = BROKEN.replace(" + 1", "")
BINARY_BEFORE = bytes(range(256))
BINARY_AFTER = bytes(reversed(range(256))) * 3
LATIN_BEFORE = b"# caf\xe9\nname = 'x'\n"
LATIN_AFTER = b"# caf\xe9\nname = 'z\xfc'\n"
RECIPE = Recipe(
    test_command="python3 {tests} > {junit}", rebuild="cp calc.py built.py", rebuild_paths=("*.py",), junk=("*.pyc",)
)
TESTS = "import calc\nassert calc.double(2) == 4, calc.double(2)\nprint('fine')\n"


@dataclass(frozen=True)
class Scene:
    """A task, the folder with its base tree, and the tasks file."""

    task: Task
    base: Path
    file: Path


def git(*arguments: str, cwd: Path) -> bytes:
    clean = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    who = [f"{name}={value}" for name, value in (("user.name", "t"), ("user.email", "t@localhost"))]
    options = [part for setting in who for part in ("-c", setting)]
    return subprocess.run(["git", *options, *arguments], cwd=cwd, env=clean, check=True, stdout=subprocess.PIPE).stdout


def make_scene(folder: Path, *, kind: str = "text") -> Scene:
    """`kind`: text, binary (with a changed binary file), latin (no UTF-8) or huge (a patch over any argument limit)."""
    base = folder / "base"
    base.mkdir()
    git("init", "-q", cwd=base)
    for name, content in before(kind).items():
        (base / name).write_bytes(content)
    git("add", ".", cwd=base)
    git("commit", "-qm", "base", cwd=base)
    for name, content in after(kind).items():
        (base / name).write_bytes(content)
    patch = git("diff", "--binary", cwd=base).decode("utf-8", "surrogateescape")
    git("checkout", "-q", ".", cwd=base)
    task = Task(
        instance_id=f"tiny__calc-{kind}",
        repo="tiny/calc",
        base_commit=git("rev-parse", "HEAD", cwd=base).decode().strip(),
        problem_statement="double() is wrong:\n\n  `double(2)` gives 5, not 4.\nSee <report> & more.",
        patch=patch,
        test_patch="",
        tests=("test_calc.py",),
        recipe=RECIPE,
    )
    file = folder / "tasks.jsonl"
    dump_tasks(file, [task])
    return Scene(task, base, file)


def before(kind: str) -> dict[str, bytes]:
    files = {"calc.py": BROKEN.encode(), "test_calc.py": TESTS.encode()}
    extra = {"binary": {"logo.png": BINARY_BEFORE}, "latin": {"names.py": LATIN_BEFORE}, "huge": {"table.txt": b"0\n"}}
    return files | extra.get(kind, {})


def after(kind: str) -> dict[str, bytes]:
    """The files that the reference patch changes."""
    table = b"".join(os.urandom(24).hex().encode() + b"\n" for _ in range(4000)) if kind == "huge" else b""
    extra = {"binary": {"logo.png": BINARY_AFTER}, "latin": {"names.py": LATIN_AFTER}, "huge": {"table.txt": table}}
    return {"calc.py": FIXED.encode()} | extra.get(kind, {})


@contextmanager
def sandbox_of(scene: Scene) -> Iterator[Sandbox]:
    """A sandbox with the scene's tree at TESTBED; skips the test where the machine offers none."""
    config = SandboxConfig()
    if (found := probe(config)).runtime is None:
        pytest.skip(found.reason)
    with tempfile.TemporaryDirectory(prefix="hpcjet-test-") as near:
        # Not under pytest's private folder: the sandbox's user must get there.
        Path(near).chmod(0o755)
        subprocess.run(["cp", "-a", str(scene.base), f"{near}/base"], check=True)
        for path in (Path(near) / "base", *(Path(near) / "base").rglob("*")):
            identity(config).own(path)
        spec = SandboxSpec(scratch=Path(near) / "scratch", view=View(lowers=(Path(near) / "base",), at=TESTBED))
        with open_sandbox(config, spec) as sandbox:
            yield sandbox


def read(sandbox: Sandbox, name: str) -> bytes:
    return sandbox.run(f"cat {TESTBED}/{name}", timeout_s=300).output


@contextmanager
def running(config: EngineConfig, tasks: Path) -> Iterator[tuple[Engine, Endpoint]]:
    """An engine that is ready."""
    site = EngineSite(
        host="127.0.0.1",
        port=free_port(),
        folder=tasks.parent / "engine",
        log=tasks.parent / "engine.log",
        api_key=new_key(),
        tasks=tasks,
    )
    engine = build_engine(config, site)
    try:
        engine.start()
        yield engine, engine.wait_ready(deadline=time.monotonic() + 240)
    finally:
        engine.stop()


def oracle(mode: str = "solve", **settings: object) -> OracleConfig:
    from hpcjet.config.engine import OracleMode

    return OracleConfig(mode=OracleMode[mode], **settings)  # type: ignore[arg-type]
