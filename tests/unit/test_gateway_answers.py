"""What is added to requests, recorded of answers, and shown to clients; streams; classes of errors."""

import json
from typing import Any

import pytest

from hpcjet.config.engine import Recording
from hpcjet.engine.gateway.fields import Dialect, amend, changes_answer, is_empty, strip, taken
from hpcjet.engine.gateway.jsons import dumps, loads
from hpcjet.engine.gateway.stream import Assembly, Events, parse_chunk
from hpcjet.engine.gateway.trouble import Trouble, trouble_of

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "weird": {"a": 1}}


def answer(**changes: Any) -> dict[str, Any]:
    logprobs = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1}]}
    choice = {
        "index": 0,
        "message": {"content": "ab"},
        "finish_reason": "stop",
        "token_ids": [7, 8],
        "logprobs": logprobs,
    }
    return {"model": "m", "prompt_token_ids": [1, 2], "choices": [{**choice, **changes}], "usage": {"prompt_tokens": 2}}


@pytest.mark.parametrize(
    ("recording", "added"),
    [
        ("text", {}),
        ("tokens", {"return_token_ids": True}),
        ("logprobs", {"return_token_ids": True, "logprobs": True}),
    ],
)
def test_a_request_is_asked_for_what_is_recorded_and_else_left_alone(recording: str, added: dict[str, Any]) -> None:
    assert amend(BODY, Recording(recording))[0] == {**BODY, **added}


def test_a_stream_is_asked_for_its_usage() -> None:
    body, asked = amend({**BODY, "stream": True, "stream_options": {"other": 1}}, Recording.text)
    assert body["stream_options"] == {"other": 1, "include_usage": True}
    assert asked.stream and not asked.usage


def test_the_client_does_not_see_what_it_did_not_ask_for() -> None:
    _, asked = amend(BODY, Recording.logprobs)
    assert changes_answer(asked, Recording.logprobs)
    shown = strip(answer(), asked)
    assert "prompt_token_ids" not in shown and "token_ids" not in shown["choices"][0]
    assert shown["choices"][0]["logprobs"] is None and shown["usage"] == {"prompt_tokens": 2}


def test_the_client_sees_what_it_asked_for() -> None:
    _, asked = amend({**BODY, "return_token_ids": True, "logprobs": True}, Recording.logprobs)
    assert not changes_answer(asked, Recording.logprobs)
    assert strip(answer(), asked) == answer()


def test_ids_and_logprobs_are_recorded_as_the_engine_gave_them() -> None:
    kept = taken(answer(), Recording.logprobs)
    assert kept["prompt_ids"] == [1, 2]
    assert kept["choices"] == [
        {"message": {"content": "ab"}, "finish_reason": "stop", "ids": [7, 8], "logprobs": [-0.5, -1]}
    ]
    assert "ids" not in taken(answer(), Recording.text)["choices"][0]


IDS = {
    "vllm": {"prompt_token_ids": [1, 2], "choices": [{"token_ids": [7, 8]}]},
    "sglang": {"choices": [{"prompt_token_ids": [1, 2], "response_token_ids": [7, 8]}]},
    "sglang, of a stream": {"choices": [{}], "sglext": {"input_ids": [1, 2], "output_ids": [[7, 8]]}},
}


@pytest.mark.parametrize("where", IDS)
def test_each_engine_has_its_own_names_for_ids(where: str) -> None:
    found = IDS[where]
    kept = taken(found, Recording.tokens)
    assert (kept["prompt_ids"], kept["choices"][0]["ids"]) == ([1, 2], [7, 8])
    _, asked = amend(BODY, Recording.tokens)
    shown = strip(found, asked)
    assert shown == {"choices": [{}]} and is_empty(strip({**found, "choices": []}, asked))
    _, asked = amend({**BODY, "return_output_ids_in_sglext": True, "return_token_ids": True}, Recording.tokens)
    assert strip(found, asked) == found


@pytest.mark.parametrize(
    "half",
    [
        {"prompt_token_ids": [1], "choices": [{}]},
        {"choices": [{"response_token_ids": [2]}]},
        {"choices": [{}, {}], "sglext": {"input_ids": [1], "output_ids": [[2]]}},
        {"choices": [{}], "sglext": "odd"},
    ],
    ids=["no answer's", "no prompt's", "one choice of two", "no object"],
)
def test_half_of_the_ids_is_refused(half: dict[str, Any]) -> None:
    with pytest.raises(Trouble, match=r"engine\.record=text"):
        taken(half, Recording.tokens)


def test_a_stream_of_sglang_is_asked_in_other_words_and_its_ids_are_not_shown() -> None:
    body, asked = amend({**BODY, "stream": True}, Recording.tokens, Dialect.sglang)
    assert body["return_input_ids_in_sglext"] and body["return_output_ids_in_sglext"]
    assert "return_token_ids" not in body and amend(BODY, Recording.tokens, Dialect.sglang)[0]["return_token_ids"]
    extra = {"input_ids": [1, 2], "output_ids": [[7]], "routed_experts": "x"}
    assert strip({"choices": [], "sglext": extra}, asked) == {"choices": [], "sglext": {"routed_experts": "x"}}


@pytest.mark.parametrize(
    "broken",
    [
        answer(token_ids=None), answer(token_ids=["7"]), answer(token_ids=[True, 8]), answer(token_ids=[7]),
        answer(logprobs=None), answer(logprobs={"content": None}),
        answer(logprobs={"content": [{"logprob": None}] * 2}),
        {**answer(), "prompt_token_ids": None}, {**answer(), "prompt_token_ids": []},
    ],
    ids=["no-ids", "text", "bool", "too-few", "no-logprobs", "null", "null-numbers", "no-prompt", "empty-prompt"],
)  # fmt: skip
def test_what_the_engine_does_not_return_is_refused_not_made_up(broken: dict[str, Any]) -> None:
    with pytest.raises(Trouble, match=r"engine\.record=text") as caught:
        taken(broken, Recording.logprobs)
    assert caught.value.kind == "unrecorded" and caught.value.pause_s(0, dice=0) is None


def test_an_answer_without_a_token_needs_no_logprobs() -> None:
    assert taken(answer(token_ids=[], logprobs=None), Recording.logprobs)["choices"][0]["logprobs"] == []


def part(text: str, token: int, logprob: float, **more: Any) -> dict[str, Any]:
    logprobs = {"content": [{"logprob": logprob}]}
    return {"choices": [{"index": 0, "delta": {"content": text}, "token_ids": [token], "logprobs": logprobs, **more}]}


CHUNKS = [
    {"id": "c", "prompt_token_ids": [1, 2], "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    part("a", 7, -0.5),
    part("b", 8, -1, finish_reason="stop"),
    {"choices": [], "usage": {"prompt_tokens": 2}},
]


SGLANG_CHUNKS = [
    {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{"logprob": -0.5}]}}]},
    {"choices": [{"index": 0, "delta": {"content": "b"}, "logprobs": {"content": [{"logprob": -1}]}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "sglext": {"input_ids": [1, 2], "output_ids": [[7, 8]]}},
    {"choices": [], "usage": {"prompt_tokens": 2}},
]


@pytest.mark.parametrize("chunks", [CHUNKS, SGLANG_CHUNKS], ids=["vllm", "sglang"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_a_stream_is_put_together_however_it_was_cut(size: int, newline: bytes, chunks: list[dict[str, Any]]) -> None:
    raw = b": comment" + newline * 2
    raw += b"".join(b"data: " + json.dumps(chunk).encode() + newline * 2 for chunk in chunks)
    events, assembly = Events(), Assembly()
    for at in range(0, len(raw), size):
        for data in events.feed(raw[at : at + size]):
            assembly.add(parse_chunk(data))
    assert assembly.ended
    kept = taken(assembly.answer(), Recording.logprobs)
    assert kept["choices"][0]["message"] == {"role": "assistant", "content": "ab"}
    assert (kept["choices"][0]["ids"], kept["choices"][0]["logprobs"]) == ([7, 8], [-0.5, -1])
    assert kept["usage"] == {"prompt_tokens": 2}


def test_tool_calls_of_a_stream_are_put_together() -> None:
    def part(**call: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}

    assembly = Assembly()
    assembly.add(part(index=0, id="c1", type="function", function={"name": "bash", "arguments": ""}))
    assembly.add(part(index=0, function={"arguments": '{"command":'}))
    assembly.add(part(index=1, id="c2", function={"name": "bash", "arguments": "{}"}))
    assembly.add(part(index=0, function={"arguments": '"ls"}'}))
    assert not assembly.ended
    first, second = assembly.answer()["choices"][0]["message"]["tool_calls"]
    assert first == {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
    assert second["id"] == "c2"


CONTEXT = b'{"error":{"message":"This model\'s maximum context length is 10 tokens."}}'


@pytest.mark.parametrize(
    ("status", "body", "kind", "told", "again"),
    [
        (400, CONTEXT, "context", 400, False), (400, b"bad", "refused", 400, False), (404, b"", "refused", 404, False),
        (401, b"key abc", "forbidden", 502, False), (429, b"", "busy", 429, True), (503, b"", "unavailable", 503, True),
        (500, b"oops", "server", 500, True), (502, b"", "unavailable", 503, True), (302, b"", "server", 500, True),
        (500, b"error decoding response body for url", "lost", 502, True),
    ],
)  # fmt: skip
def test_errors_have_classes(status: int, body: bytes, kind: str, told: int, again: bool) -> None:
    trouble = trouble_of(status, body)
    assert (trouble.kind, trouble.status) == (kind, told)
    assert (trouble.pause_s(0, dice=0.5) is not None) is again
    assert "abc" not in json.dumps(trouble.answer())


def test_pauses_double_are_bounded_and_heed_the_engine() -> None:
    busy = trouble_of(429, b"", retry_after=None)
    pauses = [busy.pause_s(repeat, dice=1) or 0 for repeat in range(30)]
    assert pauses[:3] == [0.5, 1, 2] and max(pauses) == 10
    assert trouble_of(429, b"", retry_after="7").pause_s(0, dice=0) == 7
    assert trouble_of(429, b"", retry_after="soon").pause_s(0, dice=1) == 0.5
    server = trouble_of(500, b"")
    assert server.pause_s(3, dice=1) and server.pause_s(4, dice=1) is None


@pytest.mark.parametrize("raw", [rb'{"a":"\ud800"}', b'{"a":18446744073709551615}'], ids=["surrogate", "64 bits"])
def test_json_that_orjson_refuses_comes_through(raw: bytes) -> None:
    assert json.loads(dumps(loads(raw))) == json.loads(raw)


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a":NaN}', b"\xff"])
def test_what_is_no_json_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(raw)
