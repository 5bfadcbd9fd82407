"""The real vllm-router before stub replicas, alone and behind a real gateway."""

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from free_port import free_port
from scene import HOST, KEY, Scene, get, scene, wait_until
from soak import Chaos, Tally, run_sessions

from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.gateway import Limits, read_calls
from hpcjet.engine.http import Answer, request
from hpcjet.engine.router import Router, RouterSettings, running
from hpcjet.errors import EngineError

pytest.importorskip("vllm_router")

BODY = {"model": "stub", "messages": [{"role": "user", "content": "hi"}]}
LIMITS = Limits(total_s=60, try_s=8, stall_s=4)
FOR_EVER_S = 7.0
"""Until the test says otherwise, and not yet longer than a try may take."""


@pytest.fixture
def found(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path, replicas=2, limits=LIMITS) as one:
        yield one


def ask(where: Endpoint) -> Answer:
    url = f"{where.base_url}/chat/completions"
    return request("POST", url, timeout_s=240, api_key=where.api_key, body=BODY)


def endpoint(found: Scene, name: str) -> Endpoint:
    return found.gateway.endpoint(name, model="stub", valid_s=600)


def sessions(found: Scene) -> list[dict[str, int]]:
    return [stub.seen()["sessions"] for stub in found.replicas]


def test_a_conversation_stays_on_its_replica_and_all_get_some(found: Scene) -> None:
    for _ in range(3):
        for number in range(10):
            assert ask(endpoint(found, f"task~{number}~1")).status == 200
    first, second = sessions(found)
    assert not set(first) & set(second)
    assert {*first, *second} == {f"task~{number}~1" for number in range(10)}
    assert len(first) == len(second) == 5
    assert set(first.values()) | set(second.values()) == {3}


def test_the_router_wants_the_runs_key_from_everyone(found: Scene, tmp_path: Path) -> None:
    for key in ("", "other"):
        for method, path in (
            ("POST", "/add_worker?url=http://127.0.0.1:1"),
            ("GET", "/list_workers"),
            ("GET", "/workers"),
        ):
            assert request(method, found.router.url + path, timeout_s=60, api_key=key).status == 401
        url = f"{found.router.url}/v1/chat/completions"
        assert request("POST", url, timeout_s=60, api_key=key, body=BODY).status == 401
    assert found.router.pid
    argv = Path(f"/proc/{found.router.pid}/cmdline").read_bytes()
    environment = Path(f"/proc/{found.router.pid}/environ").read_bytes()
    assert KEY.encode() not in argv + environment + (tmp_path / "router.log").read_bytes()


def test_replicas_come_and_go(found: Scene) -> None:
    first, second = found.replicas
    found.router.remove(first.url)
    assert [worker.url for worker in found.router.workers()] == [second.url]
    assert all(ask(endpoint(found, f"a~{number}~1")).status == 200 for number in range(4))
    assert not first.seen()["sessions"]
    found.router.add(f"{first.url}/v1/", deadline=time.monotonic() + 200)
    found.router.add(first.url, deadline=time.monotonic() + 200)
    assert len(found.router.workers()) == 2
    assert all(ask(endpoint(found, f"b~{number}~1")).status == 200 for number in range(4))
    assert first.seen()["sessions"]


def test_a_replica_that_is_removed_ends_what_it_began(found: Scene) -> None:
    for stub in found.replicas:
        stub.set(delay_s=FOR_EVER_S)
    answers: list[Answer] = []
    asking = threading.Thread(target=lambda: answers.append(ask(endpoint(found, "task~0~1"))))
    asking.start()
    wait_until(lambda: any(sessions(found)))
    for stub in found.replicas:
        if stub.seen()["sessions"]:
            found.router.remove(stub.url)
        stub.set(delay_s=0)
    asking.join()
    (call,) = read_calls(found.records)
    assert answers[0].status == 200 and call.tries == 1


def test_a_replica_that_does_not_answer_is_not_added(found: Scene) -> None:
    with pytest.raises(EngineError, match="did not take the replica"):
        found.router.add(f"http://{HOST}:{free_port()}", deadline=time.monotonic() + 5)
    with pytest.raises(EngineError, match="is not http://host:port"):
        found.router.add("replica:8000", deadline=time.monotonic() + 5)
    assert len(found.router.workers()) == 2


def many(found: Scene, count: int, during: threading.Timer) -> list[Answer]:
    """So many requests of eight sessions at a time, while something happens."""
    answers: list[Answer] = []

    def session(number: int) -> None:
        for _ in range(count // 8):
            answers.append(ask(endpoint(found, f"task~{number}~1")))

    threads = [threading.Thread(target=session, args=(number,)) for number in range(8)]
    during.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    during.join()
    return answers


def test_a_replica_killed_with_9_loses_no_request(found: Scene) -> None:
    for stub in found.replicas:
        stub.set(delay_s=0.05)
    answers = many(found, 160, threading.Timer(0.3, found.replicas[0].kill))
    assert Counter(answer.status for answer in answers) == {200: 160}
    assert {call.error for call in read_calls(found.records)} == {""}
    found.replicas[0].start()
    wait_until(lambda: all(worker.healthy for worker in found.router.workers()))


def test_the_router_killed_with_9_loses_no_request_and_has_its_replicas_again(found: Scene) -> None:
    for stub in found.replicas:
        stub.set(delay_s=0.05)
    pid = found.router.pid
    assert pid
    answers = many(found, 160, threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)))
    assert Counter(answer.status for answer in answers) == {200: 160}
    assert found.router.restarts == 1 and found.router.pid != pid
    wait_until(lambda: len(found.router.workers()) == 2)


def test_a_replica_that_hangs_costs_a_retry(found: Scene) -> None:
    assert ask(endpoint(found, "task~0~1")).status == 200
    hanging = next(stub for stub in found.replicas if stub.seen()["sessions"])
    hanging.kill(signal.SIGSTOP)
    try:
        assert ask(endpoint(found, "task~0~1")).status == 200
        assert max(call.tries for call in read_calls(found.records)) > 1
        assert [worker.healthy for worker in found.router.workers() if worker.url == hanging.url] == [False]
    finally:
        hanging.kill(signal.SIGCONT)


def test_metrics_show_the_replicas(found: Scene) -> None:
    where = endpoint(found, "task~0~1")
    ask(where)
    (home,) = [stub for stub in found.replicas if stub.seen()["sessions"]]
    home.set(delay_s=FOR_EVER_S)
    asking = threading.Thread(target=ask, args=(where,))
    asking.start()
    wait_until(lambda: home.seen()["sessions"]["task~0~1"] == 2)
    text = found.gateway.metrics()
    home.set(delay_s=0)
    asking.join()
    assert f'hpcjet_gateway_replica_in_flight{{replica="{home.name}"}} 1' in text
    assert text.count("hpcjet_gateway_replica_healthy{") == 2 and "hpcjet_gateway_in_flight 1" in text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (RouterSettings(policy="consistent_hashing"), "no policy consistent_hashing"),
        (RouterSettings(policy="power_of_two"), "refuses these options: .*requires at least 2 workers"),
        (RouterSettings(extra={"retry_max_retry": 1}), "no option retry_max_retry; near are .*retry_max_retries"),
    ],
    ids=["policy", "workers", "option"],
)
def test_what_the_installed_router_does_not_know_is_told_at_once(
    tmp_path: Path, settings: RouterSettings, said: str
) -> None:
    began = time.monotonic()
    router = Router(host=HOST, port=free_port(), api_key=KEY, log=tmp_path / "router.log", settings=settings)
    with pytest.raises(EngineError, match=said):
        with running(router, timeout_s=300):
            pass
    assert time.monotonic() - began < 250 and router.restarts == 0


@pytest.mark.parametrize("policy", ["round_robin", "cache_aware", "consistent_hash"])
def test_policies_of_the_installed_router(tmp_path: Path, policy: str) -> None:
    router = Router(
        host=HOST, port=free_port(), api_key=KEY, log=tmp_path / "log", settings=RouterSettings(policy=policy)
    )
    with running(router):
        assert get(f"{router.url}/list_workers", key=KEY) == {"urls": []}
        assert router.workers() == []


def test_two_routers_on_one_node_do_not_meet(tmp_path: Path) -> None:
    """By itself each would take port 29000 for its metrics."""
    first, second = (Router(host=HOST, port=free_port(), api_key=KEY, log=tmp_path / name) for name in "ab")
    with running(first), running(second):
        time.sleep(1)
        assert first.alive() and second.alive() and first.restarts == second.restarts == 0


def test_it_ends_with_its_parents_word_and_twice_is_fine(tmp_path: Path) -> None:
    with running(Router(host=HOST, port=free_port(), api_key=KEY, log=tmp_path / "log")) as router:
        pid = router.pid
    router.stop()
    assert not router.alive() and not Path(f"/proc/{pid}").exists()
    with pytest.raises(EngineError, match="does not answer"):
        router.workers()


@pytest.mark.slow
def test_a_short_soak(tmp_path: Path) -> None:
    limits = Limits(total_s=15, try_s=4, stall_s=2)
    tally = Tally()
    with scene(tmp_path, replicas=4, limits=limits) as found:
        with Chaos(found, tally, pause_s=2, router_too=True):
            asyncio.run(run_sessions(found, tally, sessions=100, seconds=12, think_s=1, deadline_s=limits.total_s))
        recorded = {call.id for call in read_calls(found.records) if not call.error}
    assert not tally.wrong, tally.wrong[:10]
    assert tally.calls["ok"] > 100 and sum(tally.kills.values()) >= 2
    assert tally.answered <= recorded
