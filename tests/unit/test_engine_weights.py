"""Weights that change under a running pool: the real extension around a stand-in for vLLM, and the pool's side."""

import contextlib
import http.client
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engine_vllm_stub import CHAT, KEY, SHAPES, StubVllm, ask, checkpoint, served, text, weights_of

from hpcjet.engine import vllm_extension
from hpcjet.engine.http import Answer, Unanswered, request
from hpcjet.engine.vllm_extension import PROBE_HEADER, Tensors, read_config, read_tensors, why_another, why_other_config
from hpcjet.engine.weights import NotDone, Outcome, Policy, PoolWeights, ServedWeights, Weights, read_asked
from hpcjet.errors import ConfigError, EngineError

FOR_EVER_S = 3600.0
"""An answer that takes so long comes when the test says so."""
MATRIX: Tensors = {"w": ("BF16", (2, 2))}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two checkpoints of one model."""
    return checkpoint(tmp_path / "first"), checkpoint(tmp_path / "second", transformers_version="9")


@pytest.fixture
def one(folders: tuple[Path, Path]) -> Iterator[StubVllm]:
    with served(folders[0]) as stub:
        yield stub


@pytest.fixture
def three(folders: tuple[Path, Path]) -> Iterator[list[StubVllm]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(served(folders[0], name=f"r{number}", pooled=True)) for number in range(3)]


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_asked(*stubs: StubVllm, times: int = 1) -> None:
    wait_until(lambda: all(stub.running == times for stub in stubs))


def state(stub: StubVllm) -> Any:
    return request("GET", f"{stub.url}/hpcjet/version", timeout_s=300, api_key=KEY).json()


def head(stub: StubVllm, method: str, path: str, *, key: str = KEY, body: str = "{}") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(stub.url.removeprefix("http://"), timeout=300)
    with contextlib.closing(connection):
        connection.request(method, path, body, {"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers.get_all("X-Replica", [""])[-1], answer.headers["X-Model-Version"]


def test_every_answer_says_whose_it_is(one: StubVllm) -> None:
    assert head(one, "POST", CHAT) == (200, "r0", "0")
    assert head(one, "POST", CHAT, body='{"stream": true}') == (200, "r0", "0")
    assert head(one, "GET", "/health", key="") == (200, "r0", "0")
    assert head(one, "POST", CHAT, key="other") == (401, "r0", "0")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/invocations", 401),
        ("POST", "/hpcjet/weights", 401),
        ("GET", "/hpcjet/version", 401),
        ("GET", "/metrics", 200),
    ],
)
def test_no_request_for_work_is_answered_without_the_key(one: StubVllm, method: str, path: str, status: int) -> None:
    for key in ("", "other", KEY[:-1]):
        assert head(one, method, path, key=key)[0] == status
    assert (
        request("POST", one.url + CHAT, timeout_s=300, headers={"Authorization": f"Basic {KEY}"}, body={}).status == 401
    )
    assert (
        request("POST", one.url + CHAT, timeout_s=300, headers={"Authorization": f"bearer {KEY}"}, body={}).status
        == 200
    )


def test_requests_of_agents_wait_for_the_pool_and_probes_do_not(three: list[StubVllm]) -> None:
    stub = three[0]
    assert ask(stub, headers={PROBE_HEADER: "1"}).status == 200
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, stub)
        time.sleep(0.1)
        assert not asked.done() and state(stub)["state"] == "closed"
        with pytest.raises(NotDone, match="the weights here have version 0, not 1"):
            weights_of(stub).open(1)
        weights_of(stub).open(0)
        assert asked.result().status == 200


def test_one_that_waits_for_too_long_is_sent_back(three: list[StubVllm], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_extension, "HOLD_S", 0.05)
    answer = ask(three[0])
    assert (answer.status, answer.retry_after_s) == (409, 0.2)


def test_wait_lets_requests_end_with_the_old_weights(one: StubVllm, folders: tuple[Path, Path]) -> None:
    one.delay_s = FOR_EVER_S
    with ThreadPoolExecutor(3) as pool:
        early = pool.submit(ask, one)
        wait_until_asked(one)
        change = pool.submit(weights_of(one).load, Weights(path=str(folders[1]), version=7), Policy.wait, timeout_s=300)
        wait_until(lambda: state(one)["state"] == "loading")
        late = pool.submit(ask, one)
        one.delay_s = 0
        assert text(early.result()) == "first"
        facts = change.result()
        assert facts["version"] == 7 and facts["waited_s"] > 0 and facts["state"] == "closed"
        assert not late.done() and one.forgotten == 2 and not one.paused
        weights_of(one).open(7)
        assert text(late.result()) == "second"
    assert head(one, "POST", CHAT) == (200, "r0", "7")


def test_abort_has_requests_asked_again_and_cuts_streams(one: StubVllm, folders: tuple[Path, Path]) -> None:
    one.delay_s = FOR_EVER_S
    with ThreadPoolExecutor(2) as pool:
        whole, stream = pool.submit(ask, one), pool.submit(ask, one, stream=True)
        wait_until_asked(one, times=2)
        weights_of(one).load(Weights(path=str(folders[1]), version=1), Policy.abort, timeout_s=300)
        answer = whole.result()
        assert (answer.status, answer.json()["error"]["code"], answer.retry_after_s) == (409, "weights_change", 0.2)
        with pytest.raises(Unanswered):
            stream.result()


def test_requests_that_do_not_end_in_time_leave_the_old_weights(one: StubVllm, folders: tuple[Path, Path]) -> None:
    one.delay_s = FOR_EVER_S
    with ThreadPoolExecutor(2) as pool:
        early = pool.submit(ask, one)
        wait_until_asked(one)
        change = pool.submit(weights_of(one).load, Weights(path=str(folders[1]), version=1), Policy.wait, timeout_s=3)
        wait_until(lambda: state(one)["state"] == "loading")
        late = ask(one)
        assert late.status == 409, "it may find another replica"
        with pytest.raises(NotDone, match=r"1 requests still run after 3 s") as failed:
            change.result()
        one.delay_s = 0
        assert failed.value.version == 0 and text(early.result()) == "first" and not one.calls


def test_after_a_load_that_failed_half_way_nothing_is_answered(one: StubVllm, folders: tuple[Path, Path]) -> None:
    (folders[1] / "bad").touch()

    def load(path: Path, version: int) -> object:
        return weights_of(one).load(Weights(path=str(path), version=version), Policy.wait, timeout_s=300)

    with pytest.raises(NotDone, match=r"could not be loaded: RuntimeError: invalid offset; .* started again") as failed:
        load(folders[1], 1)
    assert failed.value.version is None and failed.value.broken and not failed.value.refused and not one.paused
    with pytest.raises(NotDone, match="invalid offset"):
        weights_of(one).open(0)
    with pytest.raises(NotDone, match="invalid offset"):
        load(folders[0], 2)
    assert one.calls == ["second"] and [ask(one).status, ask(one, headers={PROBE_HEADER: "1"}).status] == [409, 409]
    assert head(one, "GET", "/health")[0] == 503, "so that it is started again"


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.with_name("none"), "no such folder"),
        (lambda path: (path / "model.safetensors").unlink(), r"no file \*.safetensors"),
        (lambda path: (path / "model.safetensors").write_bytes(b"GGUF"), "is no safetensors file"),
        (lambda path: (path / "model.safetensors").write_bytes(b"\x40" + bytes(7) + b"{}"), "is cut off"),
        (lambda path: os.truncate(path / "model.safetensors", 150), "its header promises|is cut off"),
        (lambda path: checkpoint(path.parent / "s", shapes={**SHAPES, "embed.weight": (5, 2)}), r"shape \[5, 2\]"),
        (lambda path: checkpoint(path.parent / "m", shapes={"embed.weight": (4, 2)}), "missing, such as layer"),
        (lambda path: checkpoint(path.parent / "e", shapes={**SHAPES, "x": (1,)}), "unknown, such as x"),
        (lambda path: checkpoint(path.parent / "c", hidden_size=3), "hidden_size is 3 and not 2"),
    ],
    ids=["no folder", "no file", "no format", "header", "cut", "shape", "missing", "extra", "config"],
)
def test_unfit_weights_are_refused_before_anything_changes(
    one: StubVllm, folders: tuple[Path, Path], spoil: Callable[[Path], Path | None], why: str
) -> None:
    chosen = spoil(folders[1])
    path = str(chosen) if isinstance(chosen, Path) else str(folders[1])
    for call in (
        lambda: weights_of(one).check(path),
        lambda: weights_of(one).load(Weights(path=path, version=1), Policy.wait, timeout_s=300),
    ):
        with pytest.raises(NotDone, match=why):
            call()
    assert not one.calls and state(one)["state"] == "open"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"path": "/x", "version": 0, "policy": "wait", "timeout_s": 1}, 409),
        ({"path": "/x", "version": 1, "policy": "never", "timeout_s": 1}, 400),
        ({"path": "/x"}, 400),
        ([], 400),
    ],
    ids=["version", "policy", "keys", "no object"],
)
def test_a_wrong_request_is_refused(one: StubVllm, body: object, status: int) -> None:
    assert request("POST", f"{one.url}/hpcjet/weights", timeout_s=300, api_key=KEY, body=body).status == status


def test_tensors_over_several_files_and_what_may_differ(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m", shapes={"a": (1,)})
    (folder / "model.safetensors").rename(folder / "1.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "1.safetensors"}}')
    (folder / "other.safetensors").write_text("not listed")
    assert read_tensors(folder) == {"a": ("BF16", (1,))}
    (folder / "config.json").unlink()
    assert read_config(folder) == {} and why_other_config({"a": 1}, {}) == ""
    assert why_other_config({"a": 1, "dtype": "x"}, {"a": 1, "dtype": "y"}) == ""
    assert why_another(MATRIX, {"w": ("F32", (2, 2))}, tied=False) == ""
    assert "type I8" in why_another(MATRIX, {"w": ("I8", (2, 2))}, tied=False)
    head_too: Tensors = {**MATRIX, "lm_head.weight": ("BF16", (2, 2))}
    assert why_another(head_too, MATRIX, tied=True) == "" != why_another(head_too, MATRIX, tied=False)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (("/p", "1", "wait"), "is no integer"),
        (("/p", True, "wait"), "is no integer"),
        (("p", 1, "wait"), "begin at the root"),
        (("/p", 1, "never"), "none of wait, abort"),
    ],
)
def test_what_a_caller_gets_wrong_is_told(asked: tuple[Any, Any, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_asked(*asked)
    assert read_asked(Path("/p"), 1, "abort") == (Weights(path="/p", version=1), Policy.abort)


class Pool:
    """The pool's side: which replicas get requests, and which were lost."""

    def __init__(self, stubs: list[StubVllm]) -> None:
        self.weights = PoolWeights(api_key=KEY)
        self.stubs = {f"r{number}": stub for number, stub in enumerate(stubs)}
        self.routed = dict(self.stubs)
        self.lost: dict[str, str] = {}
        for stub in stubs:
            assert self.weights.bring_up(stub.url) == 0

    def change(
        self, path: Path, version: int, policy: Policy = Policy.wait, *, timeout_s: float = 300
    ) -> dict[str, Outcome]:
        urls = {name: stub.url for name, stub in self.stubs.items()}
        return self.weights.change(
            urls, Weights(path=str(path), version=version), policy, timeout_s=timeout_s, lose=self.lose
        )

    def lose(self, name: str, why: str) -> None:
        # Nobody has the new weights open yet: else a session could see both.
        self.lost[name] = why
        del self.routed[name]
        assert all(state(stub)["state"] != "open" for stub in self.routed.values())


class Session(threading.Thread):
    """Asks one after the other, each time another replica: the worst that a router can do."""

    def __init__(self, pool: Pool, seed: int, until: threading.Event) -> None:
        super().__init__()
        self._pool, self._dice, self._until = pool, random.Random(seed), until
        self.seen: list[str] = []
        self.repeats = 0

    def run(self) -> None:
        while not self._until.is_set():
            answer = self._ask()
            if answer.status == 200:
                self.seen.append(text(answer))
            else:
                assert answer.status == 409
                self.repeats += 1

    def _ask(self) -> Answer:
        return ask(self._dice.choice(list(self._pool.routed.values())))


@pytest.mark.parametrize("policy", list(Policy), ids=lambda each: each.value)
def test_no_session_goes_back_whatever_replica_it_is_sent_to(
    three: list[StubVllm], folders: tuple[Path, Path], policy: Policy
) -> None:
    pool, over = Pool(three), threading.Event()
    for number, stub in enumerate(three):
        stub.delay_s, stub.late_s = 0.03, 0.2 * number  # the last one is asked when the first one is done
    sessions = [Session(pool, seed, over) for seed in range(6)]
    for session in sessions:
        session.start()
    try:
        wait_until(lambda: all(session.seen for session in sessions))
        found = pool.change(folders[1], 1, policy)
        before = [len(session.seen) for session in sessions]
        wait_until(lambda: all(len(session.seen) > count for session, count in zip(sessions, before, strict=True)))
    finally:
        over.set()
        for session in sessions:
            session.join()
    assert all(each.updated and each.version == 1 for each in found.values()) and not pool.lost
    for session in sessions:
        assert session.seen == sorted(session.seen) and {"first", "second"} == set(session.seen)
        assert policy is Policy.abort or not session.repeats


def test_one_that_fails_is_lost_before_the_others_go_on_and_comes_back_with_the_new_weights(
    three: list[StubVllm], folders: tuple[Path, Path]
) -> None:
    pool = Pool(three)
    three[1].delay_s = FOR_EVER_S
    with ThreadPoolExecutor(1) as threads:
        slow: Future[Answer] = threads.submit(ask, three[1])
        wait_until_asked(three[1])
        found = pool.change(folders[1], 3, timeout_s=3)
        assert [each.updated for each in found.values()] == [True, False, True] and found["r1"].version == 0
        assert list(pool.lost) == ["r1"] and "still run" in found["r1"].problem == pool.lost["r1"]
        assert state(three[1])["state"] == "closed"
        three[1].delay_s = 0
        assert text(slow.result()) == "first"
    assert pool.weights.bring_up(three[1].url) == 3
    assert text(ask(three[1])) == "second" and pool.weights.current.version == 3


def test_if_none_can_all_go_on_as_before(three: list[StubVllm], folders: tuple[Path, Path]) -> None:
    pool = Pool(three)
    for stub in three:
        stub.delay_s = FOR_EVER_S
    with ThreadPoolExecutor(3) as threads:
        answers = [threads.submit(ask, stub) for stub in three]
        wait_until_asked(*three)
        with pytest.raises(EngineError, match=r"were not changed: r0, r1, r2: 1 requests still run after 0\.1 s"):
            pool.change(folders[1], 1, timeout_s=0.1)
        assert not pool.lost and pool.weights.current.version == 0
        for stub in three:
            stub.delay_s = 0
        assert [text(each.result()) for each in answers] == ["first"] * 3
    assert [text(ask(stub)) for stub in three] == ["first"] * 3
    with pytest.raises(EngineError, match=r"were not changed: r0, r1, r2: .*no such folder"):
        pool.change(folders[1] / "none", 1)
    assert all(each.updated for each in pool.change(folders[1], 1).values())
    for version in (1, 0, -1):
        with pytest.raises(ConfigError, match="the next may be 2"):
            pool.change(folders[1], version)


def test_weights_that_spoil_every_replica_cost_their_restart_and_no_version(
    three: list[StubVllm], folders: tuple[Path, Path]
) -> None:
    pool = Pool(three)
    (folders[1] / "bad").touch()
    with pytest.raises(EngineError, match=r"were not changed: r0, r1, r2: .*invalid offset"):
        pool.change(folders[1], 1)
    assert list(pool.lost) == ["r0", "r1", "r2"]
    with pytest.raises(NotDone, match="invalid offset") as failed:
        pool.weights.bring_up(three[0].url)
    assert failed.value.broken
    with served(folders[0], pooled=True) as again:
        assert pool.weights.bring_up(again.url) == 0 and text(ask(again)) == "first"


def test_a_replica_that_is_gone_is_lost_and_a_new_one_begins_with_the_newest(
    three: list[StubVllm], folders: tuple[Path, Path]
) -> None:
    pool = Pool(three)
    gone = StubVllm(folders[0], url="http://127.0.0.1:9")
    pool.stubs["r3"] = pool.routed["r3"] = gone
    found = pool.change(folders[1], 1)
    assert list(pool.lost) == ["r3"] and found["r3"].version is None and "no answer" in found["r3"].problem
    with served(folders[0], name="r3", pooled=True) as again:
        assert pool.weights.bring_up(again.url) == 1
        assert text(ask(again)) == "second" and head(again, "POST", CHAT) == (200, "r3", "1")


def test_weights_of_a_change_that_failed_are_not_taken_for_the_pools(
    three: list[StubVllm], folders: tuple[Path, Path]
) -> None:
    pool = Pool(three)
    weights_of(three[0]).load(Weights(path=str(folders[1]), version=1), Policy.wait, timeout_s=300)
    with pytest.raises(EngineError, match="of a change that did not succeed"):
        pool.weights.bring_up(three[0].url)


def test_two_changes_at_once_are_one_too_many(three: list[StubVllm], folders: tuple[Path, Path]) -> None:
    pool = Pool(three)
    three[0].delay_s = FOR_EVER_S
    with ThreadPoolExecutor(2) as threads:
        threads.submit(ask, three[0])
        wait_until_asked(three[0])
        first = threads.submit(pool.change, folders[1], 1)
        wait_until(lambda: state(three[0])["state"] == "loading")
        with pytest.raises(EngineError, match="being changed already"):
            pool.change(folders[1], 2)
        three[0].delay_s = 0
        assert len(first.result()) == 3


def test_a_pool_without_replicas_says_so() -> None:
    with pytest.raises(EngineError, match="no replica serves yet"):
        PoolWeights(api_key=KEY).change({}, Weights(version=1), Policy.wait, timeout_s=1, lose=lambda *_: None)
    assert KEY not in repr(ServedWeights("http://h:1", KEY))
