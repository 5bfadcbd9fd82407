"""What the sandbox tests share: a place that the sandbox user can reach, a tree, and the ways to show it."""

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcjet.config.sandbox import SandboxConfig, SandboxKind
from hpcjet.sandbox import Limits, Sandbox, SandboxSpec, View, open_sandbox, probe, processes
from hpcjet.sandbox.identity import identity
from hpcjet.sandbox.scratch import remove_tree

NAP = f"9{os.getpid()}"
"""Seconds, and a mark by which the sleeps of this test are known."""
Opener = Callable[..., Sandbox]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder like tmp_path that other users can enter: pytest's own is closed to them."""
    folder = Path(tempfile.mkdtemp(prefix="hpcjet-test-"))
    folder.chmod(0o755)
    yield folder
    remove_tree(folder)


def config_of(way: str) -> SandboxConfig:
    """A configuration for one way to make sandboxes; skips the test where this node has no such way.

    "overlay" and "copy" are bubblewrap's ways to show a view; the others are kinds.
    """
    if way == "overlay":
        config = SandboxConfig()
        found = probe(config)
        if not found.overlay:
            pytest.skip(found.reason)
        return config
    if way != "copy":
        config = SandboxConfig(kind=SandboxKind(way))
        found = probe(config)
        if found.runtime is None:
            pytest.skip(found.reason)
        return config
    old = shutil.which("bwrap", path="/usr/bin:/bin")
    if not old or b"--overlay-src" in subprocess.run([old, "--help"], capture_output=True, check=False).stdout:
        pytest.skip("no bubblewrap without overlays on this machine (Debian 12 packages 0.8)")
    config = SandboxConfig(bwrap=Path(old))
    found = probe(config)
    assert found.kind == "bwrap" and not found.overlay, found
    return config


@pytest.fixture(params=["overlay", "copy", "userns", "apptainer", "process"])
def config(request: pytest.FixtureRequest) -> SandboxConfig:
    return config_of(request.param)


@pytest.fixture
def tree(place: Path) -> Path:
    """A base folder with a file, a script and a folder."""
    return make_tree(place / "tree", {"a.txt": "one\n", "folder/b.txt": "two\n", "folder/c.txt": "three\n"})


def make_tree(tree: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    hand_over(tree)
    return tree


def hand_over(tree: Path) -> None:
    who = identity(SandboxConfig())
    for path in (tree, *tree.rglob("*")):
        who.own(path)


@pytest.fixture
def opened(place: Path, tree: Path, config: SandboxConfig) -> Iterator[Opener]:
    """Opens sandboxes on the tree, by default at /testbed, and closes them after the test."""
    boxes: list[Sandbox] = []

    def opener(**changes: object) -> Sandbox:
        spec = {
            "scratch": place / f"scratch{len(boxes)}",
            "view": View(lowers=(tree,), at="/testbed"),
            "cwd": "/testbed",
            **changes,
        }
        boxes.append(open_sandbox(config, SandboxSpec(**spec)))  # type: ignore[arg-type]
        return boxes[-1]

    yield opener
    for box in boxes:
        box.close()


@pytest.fixture
def box(opened: Opener) -> Sandbox:
    return opened(limits=Limits(output_bytes=10_000))


def has_fixed_paths(box: Sandbox) -> bool:
    """Not so for kind process, whose declared differences are: other paths, no process and no network namespace."""
    return box.where("/testbed") == "/testbed"


def needs_namespaces(box: Sandbox) -> None:
    if not has_fixed_paths(box):
        pytest.skip("kind process has no namespaces; what it has instead is in test_sandbox_process.py")


def output(box: Sandbox, command: str, **how: object) -> str:
    """The output of a command that must succeed."""
    done = box.run(command, timeout_s=300, **how)  # type: ignore[arg-type]
    assert (done.returncode, done.timed_out) == (0, False), done
    return done.output.decode()


def napping(box: Sandbox) -> int:
    """How many of the sleeps of this test (they last NAP) live in the sandbox. The pattern spares the one who looks."""
    return int(output(box, f"pgrep -fc '[s]leep {NAP}' || true"))


def processes_below(box: Sandbox) -> list[int]:
    """The processes of a sandbox, seen from the host."""
    return list(processes.descendants(box._server._process.pid))  # type: ignore[attr-defined]


def processes_showing(path: Path) -> list[int]:
    """Processes whose mounts name `path`: those of the sandboxes with a scratch folder below it."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                mounts = (process / "mountinfo").read_text()
            except OSError:
                continue
            if str(path) in mounts:
                found.append(int(process.name))
    return found


def descriptors() -> int:
    """How many are open here, without those of the thread that looks for remains of starts."""
    wait_for(lambda: not any(thread.name == "hpcjet-orphans" for thread in threading.enumerate()))
    return len(list(Path("/proc/self/fd").iterdir()))


def wait_for(condition: Callable[[], object], *, timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
