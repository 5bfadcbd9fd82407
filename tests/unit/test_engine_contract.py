"""What every engine must do; a new one joins by a line in ENGINES."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from engine_scenes import Scene, make_scene, oracle, running
from engine_scripted import scripted
from free_port import free_port

from hpcjet.config.engine import OpenAIConfig
from hpcjet.engine import Engine, EngineSite, build_engine
from hpcjet.engine.chat import ChatSettings, complete
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.http import request
from hpcjet.engine.keyfile import read_key, write_key
from hpcjet.engine.openai import OpenAIEngine
from hpcjet.engine.session import session_id
from hpcjet.errors import EngineError

Ready = Callable[[Scene], AbstractContextManager[tuple[Engine, Endpoint]]]
KEY = "HPCJET_TEST_KEY"


@contextmanager
def remote(scene: Scene) -> Iterator[tuple[Engine, Endpoint]]:
    """engine=openai, before an oracle that runs already."""
    with running(oracle(), scene.file) as (_, there):
        engine = OpenAIEngine(
            OpenAIConfig(base_url=there.base_url, model=there.model, api_key_env=KEY), env={KEY: there.api_key}
        )
        engine.start()
        yield engine, engine.wait_ready(deadline=time.monotonic() + 300)
        engine.stop()


ENGINES: dict[str, Ready] = {"oracle": lambda scene: running(oracle(), scene.file), "openai": remote}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return make_scene(tmp_path_factory.mktemp("scene"))


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_answers_once_it_is_ready_and_can_be_stopped_twice(name: str, scene: Scene) -> None:
    with ENGINES[name](scene) as (engine, endpoint):
        assert engine.alive()
        assert endpoint.label
        assert endpoint.api_key not in repr(endpoint)
        asked = {"messages": [{"role": "user", "content": scene.task.problem_statement}]}
        session = session_id(scene.task.instance_id, attempt=0)
        answer = complete(
            endpoint, asked, settings=ChatSettings(retries=0), session=session, deadline=time.monotonic() + 300
        )
        assert answer["choices"][0]["message"]["content"]
        assert answer["usage"]["prompt_tokens"] > 0
        engine.stop()
    engine.stop()


def site(tmp_path: Path, *, port: int, tasks: Path | None) -> EngineSite:
    return EngineSite(
        host="127.0.0.1", port=port, folder=tmp_path / "e", log=tmp_path / "e.log", api_key="sesame-key", tasks=tasks
    )


def test_the_key_is_in_a_private_file_and_in_no_argv_log_or_repr(scene: Scene, tmp_path: Path) -> None:
    where = site(tmp_path, port=free_port(), tasks=scene.file)
    engine = build_engine(oracle(), where)
    try:
        engine.start()
        key_file = tmp_path / "e" / "oracle.key"
        assert key_file.stat().st_mode & 0o777 == 0o600
        engine.wait_ready(deadline=time.monotonic() + 300)
        argv = Path(f"/proc/{engine.pid}/cmdline").read_bytes()  # type: ignore[attr-defined]
        assert b"hpcjet.engine.oracle" in argv
        assert b"sesame-key" not in argv
        assert "sesame-key" not in (tmp_path / "e.log").read_text()
        assert "sesame-key" not in repr(where)
    finally:
        engine.stop()
    assert not key_file.exists()


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "new" / "key"
    write_key(path, "k")
    assert read_key(path) == "k"
    path.chmod(0o644)
    with pytest.raises(EngineError, match="chmod 600"):
        read_key(path)


@pytest.mark.parametrize("fault", ["port", "tasks"])
def test_an_engine_that_ends_at_once_says_why(fault: str, scene: Scene, tmp_path: Path) -> None:
    tasks = scene.file if fault == "port" else tmp_path / "missing.jsonl"
    with scripted((401, {})) as other:
        taken = int(other.endpoint.base_url.split(":")[2].removesuffix("/v1"))
        engine = build_engine(oracle(), site(tmp_path, port=taken if fault == "port" else free_port(), tasks=tasks))
        try:
            engine.start()
            with pytest.raises(EngineError) as ended:
                engine.wait_ready(deadline=time.monotonic() + 300)
        finally:
            engine.stop()
    text = str(ended.value)
    assert str(tmp_path / "e.log") in text
    assert ("cannot listen" if fault == "port" else "missing.jsonl") in text


def test_an_engine_that_is_too_slow_says_so(scene: Scene, tmp_path: Path) -> None:
    engine = build_engine(oracle(), site(tmp_path, port=free_port(), tasks=scene.file))
    try:
        engine.start()
        with pytest.raises(EngineError, match=r"did not answer.*start_timeout_s.*e\.log"):
            engine.wait_ready(deadline=time.monotonic() + 0.01)
    finally:
        engine.stop()
    assert not engine.alive()


def test_the_oracle_needs_tasks(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"exp\.tasks"):
        build_engine(oracle(), site(tmp_path, port=1, tasks=None))


def openai_engine(base_url: str, *, model: str = "m", key: str = "sesame-key") -> OpenAIEngine:
    return OpenAIEngine(OpenAIConfig(base_url=base_url, model=model, api_key_env=KEY), env={KEY: key})


MODELS = (200, {"data": [{"id": "m"}, {"id": "n"}]})


@pytest.mark.parametrize(
    ("answers", "model", "says"),
    [
        ([(401, {"error": {"message": "bad key sesame-key"}})], "m", "refuses the key"),
        ([MODELS, (404, {"error": {"message": "no model sesame-key"}})], "x", "it has m, n; set engine.model"),
        ([(404, b""), (404, {"error": {"message": "none"}})], "x", "check engine.model"),
        ([(500, {"error": {"message": "sesame-key"}})], "m", "does not answer"),
    ],
    ids=["wrong key", "unknown model", "no list, unknown model", "broken"],
)
def test_a_remote_engine_that_cannot_be_used_is_told_clearly(answers: list[object], model: str, says: str) -> None:
    with scripted(*answers) as server:
        engine = openai_engine(server.endpoint.base_url, model=model)
        with pytest.raises(EngineError, match=says) as refused:
            engine.wait_ready(deadline=time.monotonic() + (2 if says == "does not answer" else 300))
    assert "sesame-key" not in str(refused.value)
    assert server.endpoint.base_url in str(refused.value)


def test_a_remote_engine_is_waited_for_and_an_alias_is_tried() -> None:
    with scripted((503, {}), MODELS, (200, {"choices": []})) as server:
        engine = openai_engine(server.endpoint.base_url, model="alias")
        assert engine.wait_ready(deadline=time.monotonic() + 300).model == "alias"
    assert [asked["path"] for asked in server.requests] == ["/v1/models", "/v1/models", "/v1/chat/completions"]


def test_a_remote_engine_that_is_not_there() -> None:
    engine = openai_engine(f"http://127.0.0.1:{free_port()}/v1")
    with pytest.raises(EngineError, match=r"engine\.base_url=.*refused"):
        engine.wait_ready(deadline=time.monotonic() + 0.1)


@pytest.mark.parametrize("key", ["", "two words", "line\n", "clé"], ids=["missing", "blank", "line break", "accent"])
def test_a_key_that_cannot_be_used_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(EngineError, match=KEY) as refused:
        openai_engine("http://h/v1", key=key).start()
    assert not key or key not in str(refused.value)


def test_a_server_without_keys_needs_none() -> None:
    OpenAIEngine(OpenAIConfig(base_url="http://h/v1", model="m", api_key_env=""), env={}).start()


TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"properties": {"command": {}}}}}
HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("path", "body", "key", "status", "code"),
    [
        ("/v1/models", None, "wrong", 401, "invalid_api_key"),
        ("/v1/models", None, "", 401, "invalid_api_key"),
        ("/v1/chat/completions", {"model": "gpt", "messages": HELLO}, None, 404, "model_not_found"),
        ("/v1/chat/completions", {"model": "oracle", "messages": HELLO}, None, 400, "unknown_task"),
        ("/v1/chat/completions", {"model": "oracle", "messages": ["x"]}, None, 400, None),
        ("/v1/chat/completions", {"model": "oracle", "messages": []}, None, 400, None),
        ("/v1/chat/completions", {"model": "oracle", "messages": HELLO, "stream": 1}, None, 400, "unsupported_value"),
        ("/v1/chat/completions", {"model": "oracle", "messages": HELLO, "n": 2}, None, 400, "unsupported_value"),
        ("/v1/chat/completions", {"model": "oracle", "messages": HELLO, "tools": [{}]}, None, 400, "unsupported_value"),
        ("/v1/chat/completions", {"model": "oracle", "messages": HELLO * 500}, None, 400, "context_length_exceeded"),
        ("/v1/nothing", {}, None, 404, None),
    ],
    ids=[
        "wrong_key",
        "no_key",
        "model",
        "unknown_task",
        "bad_messages",
        "no_messages",
        "stream",
        "n",
        "tools",
        "context",
        "path",
    ],
)
def test_the_oracle_refuses_in_the_form_of_openai(
    server: Endpoint, path: str, body: object, key: str | None, status: int, code: str | None
) -> None:
    url = server.base_url.removesuffix("/v1") + path
    answer = request(
        "GET" if body is None else "POST", url, timeout_s=300, api_key=server.api_key if key is None else key, body=body
    )
    assert answer.status == status
    error = answer.json()["error"]
    assert error["code"] == code
    assert error["message"]
    assert error["type"]


@pytest.fixture(scope="module")
def server(scene: Scene) -> Iterator[Endpoint]:
    with running(oracle(latency_s=0.3, context_tokens=2000), scene.file) as (_, endpoint):
        yield endpoint


@pytest.mark.parametrize("tools", [[TOOL], None], ids=["tool calls", "text"])
def test_the_oracle_answers_with_and_without_tools(server: Endpoint, scene: Scene, tools: list[object] | None) -> None:
    body = {
        "messages": [{"role": "user", "content": scene.task.problem_statement}],
        **({"tools": tools} if tools else {}),
    }
    answer = complete(server, body, settings=ChatSettings(retries=0), session="any", deadline=time.monotonic() + 300)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == ("tool_calls" if tools else "stop")
    assert bool(choice["message"].get("tool_calls")) == bool(tools)
    assert ("```mswea_bash_command" in choice["message"]["content"]) != bool(tools)


def test_many_wait_at_the_same_time(scene: Scene) -> None:
    body = {"model": "oracle", "messages": [{"role": "user", "content": scene.task.problem_statement}]}
    with running(oracle(latency_s=3.0), scene.file) as (_, server), ThreadPoolExecutor(40) as threads:
        url = f"{server.base_url}/chat/completions"
        began = time.monotonic()
        answers = list(
            threads.map(
                lambda _: request("POST", url, timeout_s=300, api_key=server.api_key, body=body).status, range(40)
            )
        )
        assert time.monotonic() - began < 40 * 3.0 / 2
    assert answers == [200] * 40
