import time
from typing import Any

import pytest
from engine_scripted import said, scripted

from hpcjet.engine.chat import ChatError, ChatSettings, ContextExceeded, DeadlinePassed, complete, pause_s

BODY = {"messages": [{"role": "user", "content": "hello"}]}
QUICK = {"Retry-After": "0"}


def ask(server: Any, *, deadline_s: float = 300, **settings: Any) -> dict[str, Any]:
    return complete(
        server.endpoint,
        BODY,
        settings=ChatSettings(**{"retries": 2, **settings}),
        session="a~0~1",
        deadline=time.monotonic() + deadline_s,
    )


def error(status: int, message: str, code: str | None = None) -> tuple[int, dict[str, Any], dict[str, str]]:
    return status, {"error": {"message": message, "code": code}}, QUICK


def test_a_request_carries_model_settings_session_and_key() -> None:
    with scripted(said("hi")) as server:
        assert ask(server, temperature=0.5, max_tokens=9)["choices"][0]["message"]["content"] == "hi"
    assert server.requests == [
        {"path": "/v1/chat/completions", "model": "m", "temperature": 0.5, "max_tokens": 9, **BODY}
    ]
    assert server.headers[0]["X-Session-ID"] == "a~0~1"
    assert server.headers[0]["Authorization"] == "Bearer sesame-key"


@pytest.mark.parametrize(
    "first",
    [error(503, "busy"), error(429, "slow down"), (200, b"<html>", QUICK), (200, {"choices": []}, QUICK)],
    ids=["503", "429", "no JSON", "no choice"],
)
def test_what_may_pass_is_repeated(first: Any) -> None:
    with scripted(first, said("hi")) as server:
        assert ask(server)["choices"]
    assert len(server.requests) == 2


def test_repeats_are_bounded() -> None:
    with scripted(error(500, "broken")) as server, pytest.raises(ChatError, match=r"3 tries.*HTTP 500: broken"):
        ask(server)
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_cannot_pass_is_final_at_once(status: int) -> None:
    with scripted(error(status, "no")) as server, pytest.raises(ChatError, match=f"HTTP {status}: no"):
        ask(server)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("too long", "context_length_exceeded"),
        ("This model's maximum context length is 4096 tokens. However, you requested 5000 tokens", None),
        ("The input (5000 tokens) is longer than the model's context length (4096 tokens).", None),
        ("the request exceeds the available context size, try increasing it", None),
    ],
    ids=["openai", "vllm", "sglang", "llama.cpp"],
)
def test_context_errors_are_told_apart(message: str, code: str | None) -> None:
    with scripted(error(400, message, code)) as server, pytest.raises(ContextExceeded):
        ask(server)
    assert len(server.requests) == 1


def test_an_error_text_never_shows_the_key() -> None:
    with scripted(error(401, "Incorrect API key: sesame-key")) as server, pytest.raises(ChatError) as refused:
        ask(server)
    assert "sesame-key" not in str(refused.value)
    assert "***" in str(refused.value)


def test_a_slow_engine_is_given_up_by_the_request_limit() -> None:
    with scripted(said("late"), pause_s=1) as server, pytest.raises(ChatError, match=r"1 tries.*within 0\.2 s"):
        ask(server, request_timeout_s=0.2, retries=0)


@pytest.mark.alone
def test_the_deadline_wins_over_the_request_limit_and_the_repeats() -> None:
    began = time.monotonic()
    with scripted(said("late"), pause_s=1) as server, pytest.raises(DeadlinePassed):
        ask(server, deadline_s=0.3)
    with scripted((500, {})) as server, pytest.raises(ChatError, match="HTTP 500") as blamed:
        ask(server, deadline_s=0.5, retries=50)
    assert not isinstance(blamed.value, DeadlinePassed)
    assert time.monotonic() - began < 5


def test_pauses_double_up_to_a_limit() -> None:
    assert [pause_s(repeat) for repeat in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert (pause_s(0, 7), pause_s(0, 0), pause_s(0, 9999)) == (7, 0, 30)


def test_each_session_has_a_seed_of_its_own() -> None:
    bodies = [ChatSettings(seed=seed).body(session) for seed, session in ((0, "a"), (1, "a"), (1, "b"), (2, "a"))]
    seeds = [body.get("seed") for body in bodies]
    assert seeds[0] is None and len({*seeds}) == 4 and all(0 <= seed < 2**31 for seed in seeds[1:] if seed is not None)
    assert ChatSettings(seed=1).body("a") == bodies[1]
