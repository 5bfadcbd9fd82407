"""engine=vllm and engine=sglang from config to a replica that answers, with a small server in the engine's place.

It is installed as the engine's module behind a Python of its own, so all that leads to it is real. The real vLLM is in
tests/engine.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from engine_python import stub_python
from free_port import free_port
from test_engine_model_fit import QWEN3_32B, make

from hpcjet.cluster.child import session_members
from hpcjet.config.engine import Device, Recording, ServedConfig, SglangConfig, Stage, VllmConfig
from hpcjet.engine import EngineSite, build_engine
from hpcjet.engine.chat import ChatSettings, complete
from hpcjet.engine.replica import ReplicaState
from hpcjet.engine.served import ServedEngine
from hpcjet.errors import EngineError

KEY = "sesame-0123"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return stub_python(tmp_path)


@pytest.fixture(params=[VllmConfig, SglangConfig], ids=["vllm", "sglang"])
def config(request: pytest.FixtureRequest, tmp_path: Path, python: Path) -> ServedConfig:
    model = make(tmp_path / "M", QWEN3_32B, 1000)
    found: ServedConfig = request.param(
        model=str(model),
        device=Device.cpu,
        python=str(python),
        compile_cache=tmp_path / "compiled",
        env={"STUB_FOLDER": str(tmp_path)},
        record=Recording.tokens,
        start_timeout_s=300,
        stage=Stage.disk,
    )
    return found


@pytest.fixture
def site(tmp_path: Path) -> EngineSite:
    return EngineSite(
        host="127.0.0.1", port=free_port(), folder=tmp_path / "run" / "e0", log=tmp_path / "log", api_key=KEY
    )


@pytest.fixture
def engine(config: ServedConfig, site: EngineSite) -> Iterator[ServedEngine]:
    built = build_engine(config, site)
    assert isinstance(built, ServedEngine)
    yield built
    built.stop()


def test_it_answers_keeps_its_key_to_itself_and_leaves_nothing(engine: ServedEngine, site: EngineSite) -> None:
    engine.start()
    endpoint = engine.wait_ready(deadline=time.monotonic() + 300)
    assert endpoint.model == "M" and endpoint.label.startswith("M (") and KEY not in repr(endpoint)
    asked = {"messages": [{"role": "user", "content": "hello"}]}
    answer = complete(endpoint, asked, settings=ChatSettings(retries=0), session="s", deadline=time.monotonic() + 300)
    assert answer["choices"][0]["message"]["content"] == "OK"
    pid = engine.pid
    assert pid is not None and engine.alive()
    for process in session_members(pid):
        assert KEY not in " ".join(psutil.Process(process).cmdline())
    log = site.log.read_text()
    # The stub itself writes its key once, to show what its reader makes of that; the starter hides log messages.
    assert "arguments:" in log and KEY not in log.replace(f"starting with {KEY}", "")
    assert (site.folder.parent / "models" / "M" / "config.json").exists()
    private = [path for path in site.folder.rglob("*") if path.is_file() and KEY in path.read_text(errors="replace")]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in private)
    engine.stop()
    engine.stop()
    assert session_members(pid) == [] and not engine.alive() and engine.pid is None
    assert not [path for path in site.folder.rglob("*") if path.is_file() and KEY in path.read_text(errors="replace")]
    assert list((site.folder.parent / "models").iterdir()) == []
    assert engine.replica is not None and engine.replica.change.state is ReplicaState.stopped


def test_weights_that_were_cut_short_are_told_at_once(config: ServedConfig, site: EngineSite) -> None:
    with (Path(config.model) / "model-0.safetensors").open("r+b") as file:
        file.truncate(600)
    with pytest.raises(EngineError, match=r"cut short.*log"):
        ServedEngine(config, site).start()


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"model": "/nowhere"}, ["engine.model=/nowhere"]),
        ({"python": "/nowhere/python"}, ["engine.python=/nowhere/python"]),
        ({"compile_cache": Path("/dev/null/cache")}, ["/dev/null"]),
        ({"device": Device.gpu, "gpu_memory_gb": 1.0}, ["does not fit", "engine.gpu_memory_utilization"]),
    ],
    ids=["model", "python", "cache", "memory"],
)
def test_what_is_wrong_before_the_start_is_in_the_log_as_well(
    config: ServedConfig, site: EngineSite, settings: dict[str, object], parts: list[str]
) -> None:
    engine = ServedEngine(replace(config, **settings), site)  # type: ignore[arg-type]
    with pytest.raises(EngineError) as failed:
        engine.start()
    assert all(part in str(failed.value) for part in [*parts, str(site.log)]), failed.value
    assert "did not start the engine" in site.log.read_text()
    assert not engine.alive()
    engine.stop()


def test_a_model_that_cannot_be_copied_fails_the_replica(
    config: ServedConfig, site: EngineSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcjet.engine.stage._SPARE", 1 << 60)
    engine = ServedEngine(config, site)
    try:
        engine.start()
        with pytest.raises(EngineError, match=r"engine\.stage: .*GiB free"):
            engine.wait_ready(deadline=time.monotonic() + 300)
    finally:
        engine.stop()


def test_cores_are_kept(config: ServedConfig, site: EngineSite) -> None:
    core = sorted(os.sched_getaffinity(0))[-1]
    engine = ServedEngine(config, replace(site, cores=(core,)))
    try:
        engine.start()
        engine.wait_ready(deadline=time.monotonic() + 300)
        assert engine.pid is not None and os.sched_getaffinity(engine.pid) == {core}
    finally:
        engine.stop()
