"""The supervision of a replica, over a small server that crashes, hangs and refuses; tests/engine has a real engine."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from free_port import free_port

from hpcjet.cluster.child import session_members
from hpcjet.config.engine import Recording, VllmConfig
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.environment import Command
from hpcjet.engine.failure import classify, last_lines, log_since
from hpcjet.engine.pulse import total
from hpcjet.engine.replica import Change, Replica, ReplicaState, Service, port_taken
from hpcjet.errors import EngineError

KEY = "sesame-0123"
STUB = Path(__file__).with_name("engine_stub.py")
QUICK = VllmConfig(
    model="m", start_timeout_s=300, health_interval_s=0.1, health_timeout_s=300, max_restarts=1, record=Recording.tokens
)


class Watched:
    """A replica of the stub, with all that it told."""

    def __init__(self, folder: Path, *words: str, config: VllmConfig = QUICK, follower: bool = False) -> None:
        self.folder, self.changes, self.log = folder, list[Change](), folder / "logs" / "engine.log"
        self._from = 0
        port = free_port()
        argv = (sys.executable, str(STUB), str(port), KEY, str(folder), *words)
        self.endpoint = Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model="m", api_key=KEY)
        service = Service(
            name="vllm replica-0",
            command=Command(argv=argv, env=dict(os.environ)),
            log=self.log,
            endpoint=None if follower else self.endpoint,
            counters=("vllm:generation_tokens_total",),
        )
        self.replica = Replica(service, config, on_change=self.changes.append)

    def states(self) -> list[str]:
        return [change.state.value for change in self.changes]

    @property
    def starts(self) -> int:
        return len((self.folder / "starts").read_text())

    def ready(self) -> None:
        self.replica.start()
        self.replica.wait_ready(deadline=time.monotonic() + 300)

    def until(self, *states: str) -> None:
        """Until these have followed each other, since what was awaited before: who looks late has missed none."""
        deadline = time.monotonic() + 300
        while (at := self._first(states)) is None:
            assert time.monotonic() < deadline, self.changes
            time.sleep(0.02)
        self._from = at

    def _first(self, states: tuple[str, ...]) -> int | None:
        told = self.states()
        places = range(self._from, len(told) - len(states) + 1)
        return next((at for at in places if told[at : at + len(states)] == list(states)), None)


Make = Callable[..., Watched]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Make]:
    made: list[Watched] = []

    def make(*words: str, **settings: object) -> Watched:
        made.append(Watched(tmp_path, *words, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.replica.stop()


def test_it_gets_ready_and_stops_with_its_children(watched: Make) -> None:
    one = watched("child", "after=0.3")
    one.ready()
    pid = one.replica.pid
    assert pid is not None and len(session_members(pid)) == 2
    assert one.states() == ["starting", "ready"]
    begin = time.monotonic()
    one.replica.stop()
    one.replica.stop()
    assert time.monotonic() - begin < 100
    assert session_members(pid) == [] and one.replica.pid is None
    assert one.states() == ["starting", "ready", "stopped"]


def test_killed_it_is_started_again_and_nothing_is_left_of_it(watched: Make) -> None:
    one = watched("child")
    one.ready()
    pid = one.replica.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    one.until("ready", "restarting", "starting", "ready")
    assert session_members(pid) == [] and one.starts == 2
    assert one.changes[-1].restarts == 1 and "SIGKILL" in one.changes[2].reason
    os.kill(one.replica.pid or 0, signal.SIGKILL)
    one.until("failed")
    assert "failed after 2 starts" in one.changes[-1].reason and str(one.log) in one.changes[-1].reason


def test_killed_it_leaves_nothing_in_shared_memory(watched: Make) -> None:
    one = watched("shm", "child")
    one.ready()
    segment = Path("/dev/shm") / (one.folder / "shm").read_text()
    assert segment.exists()
    os.kill(one.replica.pid or 0, signal.SIGKILL)
    one.until("ready", "restarting")
    assert not segment.exists()
    one.until("starting", "ready")
    second = Path("/dev/shm") / (one.folder / "shm").read_text()
    assert second.exists() and second != segment
    one.replica.stop()
    assert not second.exists()


def test_asked_for_it_starts_again_with_the_reason(watched: Make) -> None:
    one = watched("child")
    one.replica.restart("it does not run yet")
    one.ready()
    pid = one.replica.pid
    assert pid is not None and one.starts == 1
    one.replica.restart("its weights are spoiled")
    one.until("ready", "restarting", "starting", "ready")
    assert session_members(pid) == [] and one.starts == 2
    assert (one.changes[2].reason, one.changes[-1].restarts) == ("its weights are spoiled", 1)


def test_asked_for_it_does_not_wait_for_the_answer_to_its_first_request(watched: Make) -> None:
    one = watched()
    (one.folder / "mute").touch()
    one.replica.start()
    deadline = time.monotonic() + 300
    while not (one.folder / "asked").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    one.replica.restart("another part began anew")
    one.until("starting", "restarting")
    (one.folder / "mute").unlink()
    one.until("starting", "restarting", "starting", "ready")
    assert one.changes[1].reason == "another part began anew"


def test_a_short_sickness_passes_and_a_long_one_is_a_hang(watched: Make) -> None:
    one = watched(config=replace(QUICK, health_timeout_s=10))
    one.ready()
    sick = one.folder / "sick"
    sick.touch()
    one.until("ready", "unhealthy")
    sick.unlink()
    one.until("unhealthy", "ready")
    assert one.starts == 1
    sick.touch()
    one.until("unhealthy", "restarting", "starting")
    assert "hangs" in one.changes[-2].reason and "engine.health_timeout_s" in one.changes[-2].reason


def test_an_engine_whose_server_alone_is_alive_hangs(watched: Make) -> None:
    one = watched(config=replace(QUICK, health_timeout_s=6))
    one.ready()
    (one.folder / "mute").touch()
    one.until("ready", "restarting", "starting")
    assert "makes no tokens" in one.changes[-2].reason
    (one.folder / "mute").unlink()
    one.until("starting", "ready")


def test_a_suspended_engine_is_stopped_in_time(watched: Make) -> None:
    one = watched(config=replace(QUICK, health_timeout_s=600))
    one.ready()
    pid = one.replica.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    one.until("unhealthy")
    begin = time.monotonic()
    one.replica.stop()
    assert time.monotonic() - begin < 100 and session_members(pid) == []


@pytest.mark.parametrize(
    ("words", "settings", "parts"),
    [
        (["say=engine: error: unrecognized arguments: --odd", "exit=2"], {}, ["unknown option", "--odd", "extra_args"]),
        (["say=ModuleNotFoundError: No module named 'x'", "exit=1"], {}, ["missing module", "engine.python"]),
        (["say=torch.OutOfMemoryError: CUDA out of memory.", "exit=1"], {}, ["out of GPU memory", "max_model_len"]),
        (["refuse=no chat template"], {}, ["refused", "engine.chat_template"]),
        (["noids"], {}, ["engine.record=tokens", "engine.record=text"]),
        (
            ["after=900"],
            {"start_timeout_s": 6.0},
            ["did not answer within 6 s", "engine.start_timeout_s", "s of CPU time"],
        ),
        (["exit=3"], {"max_restarts": 1}, ["after 2 starts", "code 3"]),
    ],
    ids=["option", "module", "memory", "template", "no ids", "slow", "crash"],
)
def test_why_it_does_not_start(watched: Make, words: list[str], settings: dict[str, object], parts: list[str]) -> None:
    one = watched(*words, config=replace(QUICK, **settings))  # type: ignore[arg-type]
    one.replica.start()
    with pytest.raises(EngineError) as failed:
        one.replica.wait_ready(deadline=time.monotonic() + 300)
    text = str(failed.value)
    assert all(part in text for part in [*parts, str(one.log), "vllm replica-0"]), text
    assert KEY not in text and "starting with (hidden)" in text
    assert one.states()[-1] == "failed" and one.replica.pid is None
    # What would end in the same way is not tried again.
    assert one.starts == (2 if "exit=3" in words else 1)


def test_waiting_ends_at_the_deadline(watched: Make) -> None:
    one = watched("after=900")
    one.replica.start()
    with pytest.raises(EngineError, match=r"not ready in time \(it is starting\).*start_timeout_s.*engine\.log"):
        one.replica.wait_ready(deadline=time.monotonic() + 0.5)


def test_a_taken_port_is_found_before_the_start(watched: Make, tmp_path: Path) -> None:
    one = watched()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", int(one.endpoint.base_url.split(":")[2].removesuffix("/v1"))))
        other.listen()
        one.replica.start()
        with pytest.raises(EngineError, match="port in use"):
            one.replica.wait_ready(deadline=time.monotonic() + 300)
    assert not (tmp_path / "starts").exists() and not port_taken(one.endpoint.base_url)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    service = Service(name="r", command=Command(argv=("/nowhere/python",), env={}), log=tmp_path / "l", endpoint=None)
    replica = Replica(service, QUICK)
    replica.start()
    with pytest.raises(EngineError, match=r"r failed: /nowhere/python cannot be started"):
        replica.wait_ready(deadline=time.monotonic() + 300)


def test_a_follower_is_ready_while_it_runs(watched: Make) -> None:
    one = watched(follower=True)
    one.ready()
    os.kill(one.replica.pid or 0, signal.SIGKILL)
    one.until("ready", "restarting", "starting", "ready")


def test_a_listener_that_fails_is_told_as_a_failure(tmp_path: Path) -> None:
    one = Watched(tmp_path)

    def listener(change: Change) -> None:
        if change.state is ReplicaState.ready:
            raise RuntimeError("no disk")

    one.replica._on_change = listener
    one.replica.start()
    deadline = time.monotonic() + 300
    while one.replica.change.state is not ReplicaState.failed:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "no disk" in one.replica.change.reason and one.replica.pid is None


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("api_server.py: error: unrecognized arguments: --no-such", "unknown option"),
        ("Please pass the argument `trust_remote_code=True` to allow it", "the model's own code is not trusted"),
        ("engine with config: trust_remote_code=False, dtype=torch.bfloat16, enforce_eager=True, a=True", "crash"),
        ("1 validation error for ModelConfig\n  Value error, User-specified max_model_len (4096) is", "wrong setting"),
        ("api_server.py: error: argument --dtype: invalid choice: 'x'", "wrong option"),
        ("HFValidationError: Repo id must be in the form 'repo_name'", "wrong model"),
        ("OSError: /m does not appear to have a file named config.json.", "wrong model"),
        ("ValueError: Model architectures ['X'] are not supported for now.", "model not supported"),
        ("ERROR [x.py:1] Free memory on device (1/80 GiB) on startup is less than desired", "out of GPU memory"),
        ("ValueError: 9 GiB KV cache is needed, which is larger than the available", "out of GPU memory"),
        ("ValueError: heads (14) must be divisible by tensor parallel size (4).", "wrong tensor_parallel"),
        ("RuntimeError: No CUDA GPUs are available", "no GPU"),
        ("OSError: [Errno 98] error while attempting to bind: address already in use", "port in use"),
        ("OSError: [Errno 28] No space left on device", "disk full"),
        ("KeyError: \"invalid tool call parser: odd (chose from { hermes })\"", "wrong tool call parser"),
        ("Segmentation fault", "crash"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_causes_in_a_log(line: str, kind: str) -> None:
    found = classify(f"INFO loading\n{line}\nmore\n", 1)
    assert found.kind == kind and found.text
    if kind != "crash":
        assert ";" in found.text  # the next step


def test_a_signal_is_told_by_name() -> None:
    assert "SIGKILL" in classify("", -9).text and "code 7" in classify("", 7).text


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "l"
    log.write_bytes(b"old\nnew key-1 \xff\n\n")
    assert log_since(log, 4, hidden="key-1") == "new (hidden) \ufffd\n\n"
    assert last_lines("a\n\n" + "b" * 1000) == "a\n" + "b" * 400
    assert "cannot read" in log_since(tmp_path / "none", 0)


def test_counters_of_metrics() -> None:
    text = '# HELP a\nvllm:x_total{model="m, {n}"} 3.0\nvllm:x_total{model="o"} 1e2\nvllm:x_total_y 7\nvllm:z 1\n'
    assert total(text, ("vllm:x_total", "vllm:z")) == 104.0
    assert total(text, ("nothing",)) is None
