"""A real gateway in front of a stub replica, as a client sees it."""

import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from free_port import free_port
from scene import HOST, KEY, SECRET, StubReplica, wait_until

from hpcjet.config.engine import Recording
from hpcjet.engine.chat import ChatError, ChatSettings, ContextExceeded, complete
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.gateway import Gateway, Limits, attempt_key, read_calls
from hpcjet.engine.http import Answer, Late, Unanswered, request
from hpcjet.errors import EngineError

BODY = {"model": "stub", "messages": [{"role": "user", "content": "hi"}]}
LIMITS = Limits(total_s=6, try_s=3, stall_s=1)


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[StubReplica]:
    replica = StubReplica("s0", tmp_path)
    replica.start()
    yield replica
    replica.kill()


@pytest.fixture
def gateway(stub: StubReplica, tmp_path: Path) -> Iterator[Gateway]:
    one = new_gateway(stub, tmp_path)
    started(one)
    yield one
    one.stop()


@pytest.fixture
def patient(stub: StubReplica, tmp_path: Path) -> Iterator[Gateway]:
    """Where a request shall come through at last, however slow this machine is."""
    one = new_gateway(stub, tmp_path, limits=replace(LIMITS, total_s=90))
    started(one)
    yield one
    one.stop()


@pytest.fixture
def unlimited(stub: StubReplica, tmp_path: Path) -> Iterator[Gateway]:
    """Which gives up nothing while a test lasts."""
    one = new_gateway(stub, tmp_path, limits=Limits(total_s=600, try_s=600, stall_s=600))
    started(one)
    yield one
    one.stop()


def new_gateway(stub: StubReplica, folder: Path, **more: Any) -> Gateway:
    given: dict[str, Any] = {"record": Recording.logprobs, "limits": LIMITS, "api_key": KEY, "port": free_port()} | more
    return Gateway(stub.url, SECRET, folder / "records", host=HOST, log=folder / "gateway.log", **given)


def started(gateway: Gateway) -> None:
    gateway.start()
    gateway.wait_ready(deadline=time.monotonic() + 200)


def ask(where: Endpoint, *, timeout_s: float = 300, path: str = "/chat/completions", **more: Any) -> Answer:
    url = where.base_url + path
    return request("POST", url, timeout_s=timeout_s, api_key=where.api_key, body={**BODY, **more})


def endpoint(gateway: Gateway, name: str = "task/1~0~1") -> Endpoint:
    return gateway.endpoint(name, model="stub", valid_s=600)


def error_code(answer: Answer) -> str:
    return str(answer.json()["error"]["code"])


def test_a_call_is_answered_recorded_and_shows_no_more_than_was_asked(
    gateway: Gateway, stub: StubReplica, tmp_path: Path
) -> None:
    where = endpoint(gateway)
    answer = ask(where)
    assert answer.status == 200
    data = answer.json()
    assert "prompt_token_ids" not in data and data["choices"][0]["logprobs"] is None
    (call,) = read_calls(tmp_path / "records")
    assert (call.attempt, call.replica, call.model_version, call.model) == ("task/1~0~1", "s0", "0", "stub")
    assert call.prompt_ids == [0, 1, 2, 3] and call.choices[0]["ids"] == list(range(100, 108))
    assert call.choices[0]["logprobs"][0] == -0.1 and call.messages == BODY["messages"]
    seen = stub.seen()
    assert "x-session-id: task/1~0~1" in seen["head"].lower()
    assert f"Bearer {KEY}" in seen["head"] and where.api_key not in seen["head"]


def test_secrets_are_in_no_argv_and_no_log(gateway: Gateway, tmp_path: Path) -> None:
    argv = Path(f"/proc/{gateway.pid}/cmdline").read_bytes()
    environment = Path(f"/proc/{gateway.pid}/environ").read_bytes()
    for secret in (KEY, SECRET):
        assert secret.encode() not in argv + environment + (tmp_path / "gateway.log").read_bytes()


@pytest.mark.parametrize("key", ["", KEY, SECRET, "other", "expired", "forged"])
def test_only_its_own_key_opens_an_address(gateway: Gateway, stub: StubReplica, key: str) -> None:
    where = endpoint(gateway)
    keys = {
        "other": endpoint(gateway, "task/1~0~2").api_key,
        "expired": attempt_key(SECRET, "task/1~0~1", time.time() - 1),
        "forged": attempt_key("f" * 40, "task/1~0~1", time.time() + 600),
    }
    given = Endpoint(base_url=where.base_url, model="stub", api_key=keys.get(key, key))
    answer = ask(given)
    assert answer.status == 401 and stub.seen()["seen"].get("chat") is None
    assert ("expired" in answer.body.decode()) is (key == "expired")


def test_metrics_want_their_own_key(gateway: Gateway) -> None:
    ask(endpoint(gateway))
    assert 'hpcjet_gateway_requests_total{class="ok"} 1' in gateway.metrics()
    for key in ("", endpoint(gateway).api_key):
        assert request("GET", f"{gateway.url}/metrics", timeout_s=60, api_key=key).status == 401


@pytest.mark.parametrize(
    ("body", "status"), [(b"{", 400), (b"[]", 400), (b'{"messages":[]}', 400), (b'{"messages":3}', 400)]
)
def test_what_is_no_request_is_refused(gateway: Gateway, body: bytes, status: int) -> None:
    where = endpoint(gateway)
    connection = http.client.HTTPConnection(HOST, int(gateway.url.rpartition(":")[2]), timeout=60)
    path = where.base_url.partition(gateway.url)[2] + "/chat/completions"
    connection.request("POST", path, body, {"Authorization": f"Bearer {where.api_key}"})
    response = connection.getresponse()
    assert response.status == status and json.loads(response.read())["error"]["code"] == "refused"
    connection.close()


def test_other_paths_do_not_reach_the_engine(gateway: Gateway) -> None:
    where = endpoint(gateway)
    for path in ("/completions", "/../health", "/chat/completions/../../../add_worker"):
        assert ask(where, path=path).status in (401, 404)
    models = request("GET", f"{where.base_url}/models", timeout_s=60, api_key=where.api_key)
    assert models.json()["data"][0]["id"] == "stub"


def test_a_full_context_is_never_tried_again_and_stays_the_engines_word(gateway: Gateway, stub: StubReplica) -> None:
    stub.set(chances={"context": 1})
    answer = ask(endpoint(gateway))
    assert answer.status == 400 and "maximum context length" in answer.body.decode()
    assert stub.seen()["seen"] == {"chat": 1, "context": 1}
    with pytest.raises(ContextExceeded):
        complete(endpoint(gateway), BODY, settings=ChatSettings(), session="x", deadline=time.monotonic() + 300)


@pytest.mark.parametrize("fault", ["500", "503", "429", "cut"])
def test_what_may_pass_is_tried_again(patient: Gateway, stub: StubReplica, tmp_path: Path, fault: str) -> None:
    stub.set(chances={fault: 0.6})
    answers = [ask(endpoint(patient, f"task~{number}~1")) for number in range(4)]
    # Not all: with bad luck a whole deadline of failures is met.
    assert sum(answer.status == 200 for answer in answers) >= 3
    assert max(call.tries for call in read_calls(tmp_path / "records")) > 1
    kind = {"500": "server", "503": "unavailable", "429": "busy", "cut": "lost"}[fault]
    assert f'hpcjet_gateway_retries_total{{class="{kind}"}}' in patient.metrics()


@pytest.mark.parametrize(
    ("fault", "kind", "status"),
    [("hang", "late", 504), ("slow", "late", 504), ("503", "unavailable", 503), ("500", "server", 500)],
)
def test_what_does_not_pass_ends_within_the_deadline_with_its_class(
    gateway: Gateway, stub: StubReplica, tmp_path: Path, fault: str, kind: str, status: int
) -> None:
    stub.set(chances={fault: 1}, tokens=60)
    began = time.monotonic()
    answer = ask(endpoint(gateway))
    assert time.monotonic() - began < LIMITS.total_s + 100
    assert answer.status == status or error_code(answer) == "stalled"
    assert error_code(answer) in (kind, "stalled")
    (call,) = read_calls(tmp_path / "records")
    assert call.error in (kind, "stalled") and call.choices == []


def test_a_replica_that_is_gone_for_a_while_costs_no_request(patient: Gateway, stub: StubReplica) -> None:
    import threading

    stub.kill()
    back = threading.Timer(1.5, stub.start)
    back.start()
    answer = ask(endpoint(patient), timeout_s=200)
    back.join()
    assert answer.status == 200


def test_ids_that_the_engine_does_not_return_are_refused(gateway: Gateway, stub: StubReplica, tmp_path: Path) -> None:
    for fault in ("no_ids", "no_logprobs"):
        stub.set(chances={fault: 1})
        answer = ask(endpoint(gateway))
        assert answer.status == 422 and "engine.record=text" in answer.body.decode()
        with pytest.raises(ChatError, match=r"engine\.record=text"):
            complete(endpoint(gateway), BODY, settings=ChatSettings(), session="x", deadline=time.monotonic() + 300)
        with pytest.raises(EngineError, match=r"engine\.record=logprobs.*422"):
            gateway.check(model="stub", deadline=time.monotonic() + 300)
    assert all(call.error == "unrecorded" and not call.choices for call in read_calls(tmp_path / "records"))
    stub.set(chances={})
    gateway.check(model="stub", deadline=time.monotonic() + 300)


def stream(where: Endpoint, **more: Any) -> list[str]:
    answer = ask(where, stream=True, **more)
    assert answer.status == 200
    return [line[6:] for line in answer.body.decode().split("\n\n") if line.startswith("data: ")]


def test_a_stream_is_passed_on_and_recorded_like_any_answer(gateway: Gateway, tmp_path: Path) -> None:
    events = stream(endpoint(gateway))
    assert events[-1] == "[DONE]" and "token_ids" not in "".join(events) and '"usage"' not in "".join(events)
    text = "".join(json.loads(each)["choices"][0]["delta"].get("content") or "" for each in events[:-1])
    assert text == "w " * 8
    (call,) = read_calls(tmp_path / "records")
    assert call.choices[0]["ids"] == list(range(100, 108)) and len(call.choices[0]["logprobs"]) == 8
    assert call.usage and call.usage["completion_tokens"] == 8 and call.first_byte_s is not None
    events = stream(endpoint(gateway), stream_options={"include_usage": True}, return_token_ids=True)
    assert '"usage"' in events[-2] and '"token_ids":[107]' in "".join(events).replace(" ", "")


@pytest.mark.parametrize("fault", ["cut", "slow"])
def test_a_stream_that_breaks_off_never_looks_whole(
    gateway: Gateway, stub: StubReplica, tmp_path: Path, fault: str
) -> None:
    stub.set(chances={fault: 1}, tokens=20)
    events = stream(endpoint(gateway))
    assert "[DONE]" not in events and '"finish_reason":"stop"' not in "".join(events).replace(" ", "")
    assert json.loads(events[-1])["error"]["code"] in ("lost", "stalled", "late")
    (call,) = read_calls(tmp_path / "records")
    assert call.error in ("lost", "stalled", "late")


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
def test_a_client_that_hangs_up_ends_the_request_at_the_engine(
    unlimited: Gateway, stub: StubReplica, tmp_path: Path, streaming: bool
) -> None:
    stub.set(chances={"slow": 1} if streaming else {"hang": 1}, tokens=50)
    with pytest.raises((Late, Unanswered)):
        ask(endpoint(unlimited), timeout_s=4, stream=streaming)
    wait_until(lambda: stub.seen()["seen"].get("client gone"))
    wait_until(lambda: [call.error for call in read_calls(tmp_path / "records")] == ["gone"])
    assert "hpcjet_gateway_in_flight 0" in unlimited.metrics()


def test_killed_with_9_it_comes_back_and_what_was_answered_is_recorded(gateway: Gateway, tmp_path: Path) -> None:
    where = endpoint(gateway)
    assert [ask(where).status for _ in range(5)] == [200] * 5
    assert gateway.pid
    os.kill(gateway.pid, signal.SIGKILL)
    wait_until(lambda: gateway.restarts == 1)
    gateway.wait_ready(deadline=time.monotonic() + 200)
    assert ask(where).status == 200
    assert len(list(read_calls(tmp_path / "records", attempt="task/1~0~1"))) == 6


def test_records_that_cannot_be_written_fail_the_call(stub: StubReplica, tmp_path: Path) -> None:
    (tmp_path / "records").write_text("a file where the folder should be")
    one = new_gateway(stub, tmp_path)
    started(one)
    try:
        answer = ask(endpoint(one))
        assert answer.status == 507 and error_code(answer) == "undurable" and "engine.record" in answer.body.decode()
    finally:
        one.stop()


def test_where_text_is_recorded_answers_pass_as_they_are(stub: StubReplica, tmp_path: Path) -> None:
    one = new_gateway(stub, tmp_path, record=Recording.text)
    started(one)
    try:
        direct = request("POST", f"{stub.url}/v1/chat/completions", timeout_s=60, api_key=KEY, body=BODY)
        assert ask(endpoint(one)).body == direct.body
        (call,) = read_calls(tmp_path / "records")
        assert call.choices[0]["message"]["content"] and "ids" not in call.choices[0]
    finally:
        one.stop()


def test_a_port_that_is_taken_is_told_with_the_log(stub: StubReplica, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        one = new_gateway(stub, tmp_path, port=taken.getsockname()[1])
        one.start()
        try:
            with pytest.raises(EngineError, match=r"gateway\.log\n(.|\n)*cannot listen"):
                one.wait_ready(deadline=time.monotonic() + 10)
        finally:
            one.stop()


def test_a_short_secret_is_refused(stub: StubReplica, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="has 3 characters"):
        Gateway(stub.url, "abc", tmp_path, host=HOST, port=1, api_key=KEY, log=tmp_path / "log")
