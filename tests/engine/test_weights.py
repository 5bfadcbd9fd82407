"""A real vLLM whose weights change while sessions ask through router and gateway, as the pool does it."""

import json
import os
import shutil
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from free_port import free_port
from scene import HOST, SECRET
from test_vllm import KEY, START_S, config_of, site_of
from tiny import tiny_model

from hpcjet.config.engine import Recording
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.gateway import Gateway, read_calls
from hpcjet.engine.http import request
from hpcjet.engine.router import Router
from hpcjet.engine.served import ServedEngine
from hpcjet.engine.weights import Outcome, Policy, PoolWeights, Weights
from hpcjet.errors import EngineError
from hpcjet.paths import cache_dir

pytest.importorskip("vllm_router")

SESSIONS = 8
# Longer than a block of the prefix cache: keys and values of old weights would show.
PROMPT = "the quick brown fox jumps over the lazy dog while it writes def double(x): return x + x " * 12
FIRST = 8
"""Ids of an answer that are compared. One prompt and no chance give the same ones whoever else is asked beside; later
ones do not: how many are computed at once changes the last bits, and the logits of a random model lie close."""
LOST: dict[str, str] = {}


@pytest.fixture(scope="module")
def other_model(vllm_python: Path) -> Path:
    return tiny_model(cache_dir() / "engines" / "models", python=vllm_python, seed=1)


@dataclass
class Way:
    """From an attempt to the engine."""

    url: str
    weights: PoolWeights
    gateway: Gateway
    records: Path

    def change(self, path: Path, version: int, policy: Policy = Policy.wait) -> dict[str, Outcome]:
        wanted = Weights(path=str(path), version=version)
        urls = {"replica-0": self.url}
        return self.weights.change(urls, wanted, policy, timeout_s=240, lose=lambda name, why: LOST.update({name: why}))

    def endpoint(self, session: str) -> Endpoint:
        return self.gateway.endpoint(session, model="tiny", valid_s=3600)


@pytest.fixture(scope="module")
def way(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    folder = tmp_path_factory.mktemp("weights")
    site = replace(site_of(folder), replica="replica-0")
    engine = ServedEngine(config_of(model, record=Recording.tokens), site)
    router = Router(host=HOST, port=free_port(), api_key=KEY, log=folder / "router.log")
    gateway = Gateway(
        router.url, SECRET, folder / "records", record=Recording.tokens, host=HOST, port=free_port(), api_key=KEY,
        log=folder / "gateway.log",
    )  # fmt: skip
    weights = PoolWeights(api_key=KEY)
    try:
        engine.start()
        router.start()
        gateway.start()
        deadline = time.monotonic() + START_S
        url = engine.wait_ready(deadline=deadline).base_url.removesuffix("/v1")
        assert weights.bring_up(url) == 0
        router.wait_ready(deadline=deadline)
        router.add(url, deadline=deadline)
        gateway.wait_ready(deadline=deadline)
        yield Way(url, weights, gateway, folder / "records")
    finally:
        gateway.stop()
        router.stop()
        engine.stop()


def body(*, max_tokens: int = 16, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": PROMPT}]
    return {
        "model": "tiny", "messages": messages, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more
    }  # fmt: skip


class Session(threading.Thread):
    def __init__(self, where: Endpoint, until: threading.Event) -> None:
        super().__init__()
        self._where, self._until = where, until
        self.statuses: list[int] = []

    def run(self) -> None:
        while not self._until.is_set():
            url = f"{self._where.base_url}/chat/completions"
            answer = request("POST", url, timeout_s=120, api_key=self._where.api_key, body=body(max_tokens=64))
            self.statuses.append(answer.status)


def all_have_asked(sessions: list[Session], more: int) -> None:
    """Each so many times again."""
    before = [len(each.statuses) for each in sessions]
    deadline = time.monotonic() + 300
    while any(len(each.statuses) < count + more for each, count in zip(sessions, before, strict=True)):
        assert time.monotonic() < deadline, [each.statuses for each in sessions]
        time.sleep(0.05)


def test_weights_change_under_load(way: Way, model: Path, other_model: Path) -> None:
    over = threading.Event()
    sessions = [Session(way.endpoint(f"task~{number}~1"), over) for number in range(SESSIONS)]
    for session in sessions:
        session.start()
    try:
        all_have_asked(sessions, 2)
        for version, path, policy in ((1, other_model, Policy.wait), (2, model, Policy.abort)):
            (outcome,) = way.change(path, version, policy).values()
            assert outcome.updated and outcome.version == version and not LOST
            all_have_asked(sessions, 2)
    finally:
        over.set()
        for session in sessions:
            session.join()
    assert {status for session in sessions for status in session.statuses} == {200}
    calls = [call for call in read_calls(way.records) if call.attempt.startswith("task~")]
    assert len(calls) == sum(len(session.statuses) for session in sessions) and not any(call.error for call in calls)
    assert {call.replica for call in calls} == {"replica-0"}
    seen: dict[str, list[int]] = defaultdict(list)
    answers: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for call in sorted(calls, key=lambda each: each.ended):
        seen[call.attempt].append(int(call.model_version))
        answers[int(call.model_version)].add(tuple(call.choices[0]["ids"][:FIRST]))
    assert len(seen) == SESSIONS
    assert all(versions == sorted(versions) and {*versions} == {0, 1, 2} for versions in seen.values()), seen
    # Nothing of one model's keys and values is left in the other's answers.
    assert len(answers[0]) == len(answers[1]) == 1 and answers[0] == answers[2] != answers[1]
    assert max(call.tries for call in calls) > 1, "none was asked again"


def test_the_head_of_a_stream_has_the_version_too(way: Way) -> None:
    answer = request(
        "POST", f"{way.endpoint('stream~0~1').base_url}/chat/completions", timeout_s=240,
        api_key=way.endpoint("stream~0~1").api_key, body=body(stream=True),
    )  # fmt: skip
    assert answer.status == 200 and answer.body.rstrip().endswith(b"[DONE]")
    (call,) = [call for call in read_calls(way.records) if call.attempt == "stream~0~1"]
    assert (call.replica, call.model_version) == ("replica-0", str(way.weights.current.version))


def test_unfit_weights_change_nothing_and_what_spoils_the_engine_is_told(
    way: Way, other_model: Path, tmp_path: Path
) -> None:
    before = greedy(way)
    with pytest.raises(EngineError, match="no such folder"):
        way.change(tmp_path / "none", 9)
    cut = tmp_path / "cut"
    shutil.copytree(other_model, cut)
    os.truncate(cut / "model.safetensors", (cut / "model.safetensors").stat().st_size - 1)
    with pytest.raises(EngineError, match="its header promises"):
        way.change(cut, 9)
    assert greedy(way) == before and not LOST
    with pytest.raises(EngineError, match=r"were not changed: replica-0: .* could not be loaded"):
        way.change(broken_copy(other_model, tmp_path / "broken"), 9)
    assert list(LOST) == ["replica-0"] and way.weights.current.version == 2
    assert request("GET", f"{way.url}/health", timeout_s=100).status == 503, "so that it is started again"
    assert request("POST", f"{way.url}/v1/chat/completions", timeout_s=100, api_key=KEY, body=body()).status == 409


def greedy(way: Way) -> list[int]:
    answer = request(
        "POST", f"{way.url}/v1/chat/completions", timeout_s=240, api_key=KEY, body=body(return_token_ids=True)
    ).json()
    return answer["choices"][0]["token_ids"]  # type: ignore[no-any-return]


def broken_copy(model: Path, folder: Path) -> Path:
    """Its second file has a hole that only the library of safetensors minds; by then the first one is loaded."""
    folder.mkdir()
    shutil.copy(model / "config.json", folder)
    with (model / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    header.pop("__metadata__", None)
    names = sorted(header)
    weight_map = {}
    for number, chosen in enumerate((names[: len(names) // 2], names[len(names) // 2 :])):
        table, content = {}, bytes(2 * number)
        for name in chosen:
            begin, end = header[name]["data_offsets"]
            table[name] = {**header[name], "data_offsets": [len(content), len(content) + end - begin]}
            content += data[begin:end]
        file_name = f"model-{number + 1:05}-of-00002.safetensors"
        written = json.dumps(table).encode()
        (folder / file_name).write_bytes(struct.pack("<Q", len(written)) + written + content)
        weight_map.update(dict.fromkeys(chosen, file_name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder
