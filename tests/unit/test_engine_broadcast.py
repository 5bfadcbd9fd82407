"""A model goes from node to node: whole, checked, read from the source about once, whatever happens to a parent."""

import contextlib
import filecmp
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from free_port import free_port
from test_engine_model_fit import QWEN3_32B
from test_engine_model_fit import make as make_model_with_config
from test_engine_served import python as python

from hpcjet.cluster.lifeline import GONE, Hub, Word
from hpcjet.cluster.members import HELLO
from hpcjet.cluster.site import TEMP_VARIABLE
from hpcjet.config.compose import compose
from hpcjet.config.engine import Device, Stage, VllmConfig
from hpcjet.engine import stage, stage_fetch, stage_server, stage_wire
from hpcjet.engine.members import PoolMembers
from hpcjet.engine.pool import Pool
from hpcjet.engine.run_keys import engine_key
from hpcjet.engine.stage import Shelf, files_of, parts_of
from hpcjet.engine.stage_parts import Parts
from hpcjet.engine.stage_server import StageServer
from hpcjet.engine.stage_wire import Wire, admit
from hpcjet.engine.words import NodeFacts, StageParent
from hpcjet.errors import EngineError
from hpcjet.plan import make_plan
from hpcjet.rundir import RunDir

MIB = 1024**2
KEY = "hpcjet-key"
DEADLINE_S = 300.0

HALF_A_PARENT = """
import sys, time
from pathlib import Path
from hpcjet.engine.stage import files_of, parts_of
from hpcjet.engine.stage_parts import Parts
from hpcjet.engine.stage_server import StageServer
model, size = Path(sys.argv[1]), int(sys.argv[2])
parts = Parts(model, model, parts_of(files_of(model), size))
for number in range(len(parts.all) // 2):
    parts.came(parts.all[number][2])
    parts.add(number)
print(StageServer("127.0.0.1", key=sys.argv[3], find=lambda digest: parts if digest == parts.digest else None).port)
sys.stdout.flush()
time.sleep(900)
"""
"""A node that has the first half of the parts, and waits for the rest."""


class Node:
    """One with an address of its own; what it says, and the copy that it makes."""

    def __init__(self, number: int, model: Path, root: Path, *, key: str = KEY) -> None:
        self.model, self.folder, self.key = model, root / f"node{number}" / model.name, key
        self.address = f"127.0.0.{number + 1}"
        self.said: list[str] = []
        self.shelf = Shelf()
        self.server = StageServer(self.address, key=key, find=self.shelf.find)
        self.stopping = threading.Event()
        self.error: EngineError | None = None
        self._thread: threading.Thread | None = None

    def as_parent(self, hops: int = 1) -> StageParent:
        return StageParent(address=self.address, port=self.server.port, hops=hops)

    def begin(self, parent: StageParent | None) -> None:
        self._thread = threading.Thread(target=self._take, args=(parent,))
        self._thread.start()

    def _take(self, parent: StageParent | None) -> None:
        try:
            self.shelf.take(
                self.model,
                self.folder,
                say=self.said.append,
                stopping=self.stopping.is_set,
                parent=parent,
                key=self.key,
            )
        except EngineError as error:
            self.error = error

    @property
    def parts(self) -> Parts | None:
        return self.shelf.find(parts_for(self.model, self.folder).digest)

    def moved(self) -> int:
        return self.parts.moved if self.parts else 0

    def end(self) -> None:
        assert self._thread
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def is_whole(self) -> bool:
        names = files_of(self.model)
        return not any(filecmp.cmpfiles(self.model, self.folder, map(str, names), shallow=False)[1:])

    def close(self) -> None:
        self.stopping.set()
        if self._thread:
            self.end()
        self.shelf.give_back(self.folder)
        self.server.close()


def parts_for(model: Path, folder: Path) -> Parts:
    return Parts(model, folder, parts_of(files_of(model)))


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    with contextlib.ExitStack() as stack:

        def one(number: int, model: Path, **changes: str) -> Node:
            node = Node(number, model, tmp_path, **changes)
            stack.callback(node.close)
            return node

        yield one


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], int]:
    """How many bytes of the files of a folder went through sendfile, wherever to but into sockets."""
    counts: list[tuple[str, int]] = []
    sendfile = os.sendfile

    def counted(target: int, source: int, offset: int, count: int) -> int:
        sent = sendfile(target, source, offset, count)
        to, of = (str(Path(f"/proc/self/fd/{each}").readlink()) for each in (target, source))
        if not to.startswith("socket:"):
            counts.append((of, sent))
        return sent

    monkeypatch.setattr(os, "sendfile", counted)
    return lambda folder: sum(sent for path, sent in counts if path.startswith(f"{folder}/"))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(stage.parts_of, "__defaults__", (MIB,))
    return MIB


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_fetch, "HANG_S", 3.0)
    monkeypatch.setattr(stage_fetch, "_TICK_S", 0.1)
    monkeypatch.setattr(stage_server, "BEAT_S", 0.2)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """8 MiB and a few bytes in three files."""
    return make_model(tmp_path / "source" / "M 1", 4 * MIB)


def make_model(folder: Path, size: int) -> Path:
    (folder / "sub").mkdir(parents=True)
    for number in (1, 2):
        (folder / f"model-{number}.safetensors").write_bytes(secrets.token_bytes(size + number))
    (folder / "sub" / "config.json").write_bytes(secrets.token_bytes(77))
    (folder / "empty.json").touch()
    return folder


@contextlib.contextmanager
def half_a_parent(model: Path, size: int, *, key: str = KEY) -> Iterator[tuple[StageParent, subprocess.Popen[str]]]:
    argv = [sys.executable, "-c", HALF_A_PARENT, str(model), str(size), key]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield StageParent(address="127.0.0.1", port=int(process.stdout.readline()), hops=1), process
        finally:
            process.kill()


def served_by(parts: Parts) -> Callable[[str], Parts | None]:
    return lambda digest: parts if digest == parts.digest else None


def test_five_nodes_read_the_source_once(
    tmp_path: Path, make: Callable[..., Node], read: Callable[[Path], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage.parts_of, "__defaults__", (8 * MIB,))
    large = make_model(tmp_path / "source" / "large", 100 * MIB)
    size = sum(files_of(large).values())
    nodes = [make(number, large) for number in range(5)]
    for number in (4, 3, 2, 1, 0):  # a parent that comes later than its children
        nodes[number].begin(nodes[(number - 1) // 2].as_parent(hops=number.bit_length()) if number else None)
    for node in nodes:
        node.end()
    assert [node.error for node in nodes] == [None] * 5
    assert all(node.is_whole() for node in nodes)
    assert read(large) == size
    assert [node.parts.read if node.parts else -1 for node in nodes] == [size, 0, 0, 0, 0]
    assert "from the source" not in nodes[0].said[-1]
    assert "0.00 GiB of it from the source, the rest from 127.0.0.1:" in nodes[2].said[-1]


def test_parts_are_passed_on_before_the_rest_is_there_and_a_parent_that_is_killed_costs_only_the_rest(
    model: Path, make: Callable[..., Node], read: Callable[[Path], int], small_parts: int
) -> None:
    size = sum(files_of(model).values())
    child, grandchild = make(1, model), make(2, model)
    with half_a_parent(model, small_parts) as (parent, process):
        child.begin(parent)
        grandchild.begin(child.as_parent(hops=2))
        wait_for(lambda: grandchild.moved() >= size * 0.4)
        wait_for(lambda: child.moved() == grandchild.moved())
        assert read(model) == 0 and child.moved() < size * 0.6 and not child.said
        process.kill()
        for node in (child, grandchild):
            node.end()
    assert child.is_whole() and grandchild.is_whole()
    assert child.parts and size * 0.4 <= read(model) == child.parts.read <= size * 0.6
    assert "hung up" in child.said[0] or "reset" in child.said[0]
    assert len(child.said) == 2 and len(grandchild.said) == 1


def test_a_parent_that_hangs_is_given_up(
    model: Path, make: Callable[..., Node], read: Callable[[Path], int], small_parts: int, impatient: None
) -> None:
    size = sum(files_of(model).values())
    child = make(1, model)
    with half_a_parent(model, small_parts) as (parent, process):
        child.begin(parent)
        wait_for(lambda: child.moved() >= size * 0.4)
        process.send_signal(signal.SIGSTOP)
        child.end()
    assert child.is_whole() and size * 0.4 <= read(model) <= size * 0.6
    assert "sent nothing for 3 s" in child.said[0]


def test_a_parent_that_does_not_get_on_is_given_up(
    model: Path, make: Callable[..., Node], read: Callable[[Path], int], small_parts: int, impatient: None
) -> None:
    """It says that it is there, again and again; but never has it begun with this model."""
    parent, child = make(0, model), make(1, model)
    begin = time.monotonic()
    child.begin(parent.as_parent(hops=2))
    child.end()
    assert child.is_whole() and read(model) == sum(files_of(model).values())
    assert "has not got on for 9 s" in child.said[0] and time.monotonic() - begin >= 9


@pytest.mark.parametrize("kind", ["refused", "silent", "nonsense", "endless line"])
def test_a_parent_that_never_comes(kind: str, model: Path, make: Callable[..., Node], impatient: None) -> None:
    child = make(1, model)
    words = {"silent": b"", "nonsense": b"[1]\n", "endless line": b"x" * 10_000}.get(kind, b"")
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(talking(partial(_babble, words=words))) if kind != "refused" else free_port()
        child.begin(StageParent(address="127.0.0.1", port=port, hops=1))
        child.end()
    assert child.error is None and child.is_whole()
    assert child.said[0].startswith(f"nothing more comes from the node at 127.0.0.1:{port}: ")


def _babble(listener: socket.socket, *, words: bytes) -> None:
    with contextlib.ExitStack() as talking, contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            talking.enter_context(connection)
            connection.sendall(words)


@contextlib.contextmanager
def talking(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of what listens in the place of a parent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=talk, args=(listener,))
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)  # closing it alone would leave the thread in accept
        thread.join(DEADLINE_S)


def test_only_who_knows_the_key_gets_anything(
    model: Path, make: Callable[..., Node], small_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(Wire, "say", _overheard(Wire.say, sent))
    parent, stranger = make(0, model), make(1, model, key="another")
    parent.begin(None)
    parent.end()
    stranger.begin(parent.as_parent())
    stranger.end()
    assert "it does not know the key of this run" in stranger.said[0] and stranger.is_whole()
    assert stranger.parts and stranger.parts.read == sum(files_of(model).values())
    friend = make(2, model)
    friend.begin(parent.as_parent())
    friend.end()
    assert friend.parts and friend.parts.read == 0 and friend.is_whole()
    assert sent and not any(KEY.encode() in each or b"another" in each for each in sent)


def _overheard(say: Callable[..., None], sent: list[bytes]) -> Callable[..., None]:
    def wrapped(wire: Wire, **facts: object) -> None:
        sent.append(repr(facts).encode())
        say(wire, **facts)

    return wrapped


@pytest.mark.parametrize("proof", ["", "f" * 64, None], ids=["empty", "wrong", "none"])
def test_who_does_not_prove_to_know_the_key_is_sent_nothing(proof: str | None, model: Path) -> None:
    parts = whole(model)
    with (
        contextlib.closing(StageServer("127.0.0.1", key=KEY, find=served_by(parts))) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=300) as stranger,
    ):
        wire = Wire(stranger)
        assert list(wire.hear()) == ["nonce"]
        wire.say(proof=proof, nonce="0" * 32, digest=parts.digest)
        with pytest.raises(OSError, match=r"hung up|reset|Broken pipe"):
            wire.say(part=0)
            wire.hear()


def test_a_parent_proves_itself_too(model: Path, make: Callable[..., Node]) -> None:
    """Who took the port of a node that is gone must not hand out weights of its own."""
    forged, child = make(0, model), make(1, model)

    def lenient(wire: Wire, key: str) -> str:
        wire.say(nonce="0" * 32)
        said = wire.hear()
        wire.say(proof="f" * 64)
        return str(said["digest"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_server, "admit", lenient)
        forged.begin(None)
        child.begin(forged.as_parent())
        child.end()
    assert "does not know the key" in child.said[0] and child.is_whole()


class TornParts(Parts):
    """Whose first answers about a part are wrong."""

    wrong = 1
    asked: dict[int, int]

    def checksum(self, number: int) -> int:
        self.asked[number] = self.asked.get(number, 0) + 1
        return super().checksum(number) ^ (self.asked[number] <= self.wrong)


@pytest.mark.parametrize(("wrong", "reads"), [(1, 0), (2, 0), (99, 1)], ids=["once", "twice", "always"])
def test_a_torn_part_is_fetched_again_and_at_last_read_from_the_source(
    wrong: int, reads: int, model: Path, make: Callable[..., Node], small_parts: int
) -> None:
    child, parts = make(1, model), TornParts(model, model, parts_of(files_of(model)))
    parts.wrong, parts.asked = wrong, {}
    for number in range(len(parts.all)):
        parts.add(number)
    server = StageServer("127.0.0.1", key=KEY, find=served_by(parts))
    child.begin(StageParent(address="127.0.0.1", port=server.port, hops=1))
    child.end()
    server.close()
    assert child.is_whole()
    assert child.parts and child.parts.read == reads * sum(files_of(model).values())
    assert set(parts.asked.values()) == {min(wrong + 1, stage_fetch.TRIES)}
    assert any("came torn" in line for line in child.said) == bool(reads)


def test_a_copy_that_changed_on_the_way_is_not_taken(model: Path, tmp_path: Path, make: Callable[..., Node]) -> None:
    """The sum that a part came with goes down the tree with it, so a disk that lies is found."""
    middle, child = make(1, model), make(2, model)
    with contextlib.closing(StageServer("127.0.0.1", key=KEY, find=served_by(whole(model)))) as server:
        middle.begin(StageParent(address="127.0.0.1", port=server.port, hops=1))
        middle.end()
    with (middle.folder / "model-1.safetensors").open("r+b") as file:
        file.write(b"not what it was")
    child.begin(middle.as_parent(hops=2))
    child.end()
    assert child.is_whole() and "model-1.safetensors came torn" in child.said[0]


def whole(model: Path) -> Parts:
    parts = parts_for(model, model)
    for number in range(len(parts.all)):
        parts.add(number)
    return parts


def test_a_part_that_breaks_off_is_not_taken(model: Path, make: Callable[..., Node], small_parts: int) -> None:
    child = make(1, model)
    with talking(partial(_break_off, parts=whole(model))) as port:
        child.begin(StageParent(address="127.0.0.1", port=port, hops=1))
        child.end()
    assert child.is_whole() and child.parts and child.parts.read == sum(files_of(model).values())


def _break_off(listener: socket.socket, *, parts: Parts) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                wire = Wire(connection)
                admit(wire, KEY)
                number = wire.hear()["part"]
                length = parts.all[number][2]
                wire.say(part=number, length=length, checksum=parts.checksum(number))
                connection.sendall(bytes(length // 2))


def test_a_node_whose_replica_has_ended_tells_its_children(
    model: Path, make: Callable[..., Node], impatient: None
) -> None:
    parent, child = make(0, model), make(1, model)
    parent.begin(None)
    parent.end()
    parts = parent.parts
    assert parts
    parent.shelf.give_back(parent.folder)
    with contextlib.closing(StageServer("127.0.0.1", key=KEY, find=served_by(parts))) as server:
        child.begin(StageParent(address="127.0.0.1", port=server.port, hops=1))
        child.end()
    assert "it says the replica there has ended" in child.said[0] and child.is_whole()


def test_a_stop_while_it_waits_for_a_parent_is_heard_at_once_and_leaves_nothing(
    model: Path, make: Callable[..., Node], small_parts: int
) -> None:
    child = make(1, model)
    with half_a_parent(model, small_parts) as (parent, _):
        child.begin(parent)
        wait_for(child.moved)
        child.stopping.set()
        begin = time.monotonic()
        child.end()
    assert time.monotonic() - begin < 100 and child.error and "was stopped" in str(child.error)
    assert not child.folder.exists() and child.parts is None


def test_a_full_disk_is_no_fault_of_the_parent(
    model: Path, make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(target: int, data: memoryview, at: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stage_fetch, "_write", full)
    child = make(1, model)
    with contextlib.closing(StageServer("127.0.0.1", key=KEY, find=served_by(whole(model)))) as server:
        child.begin(StageParent(address="127.0.0.1", port=server.port, hops=1))
        child.end()
    assert "could not be copied to" in str(child.error) and "No space left" in str(child.error)
    assert not child.folder.exists() and child.said == []


def test_more_children_than_the_tree_has_and_strangers_do_no_harm(
    model: Path, make: Callable[..., Node], small_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = make(0, model)
    strangers = [socket.create_connection((parent.address, parent.server.port)) for _ in range(20)]
    for number, stranger in enumerate(strangers):
        stranger.sendall([b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff\n", b"[" * 5000, b'{"proof": 1}\n'][number % 5])
    children = [make(number, model) for number in range(1, 6)]
    for child in children:
        child.begin(parent.as_parent())
    parent.begin(None)
    for node in (parent, *children):
        node.end()
    assert all(node.is_whole() for node in (parent, *children))
    assert [child.parts.read if child.parts else -1 for child in children] == [0] * 5
    for stranger in strangers:
        stranger.close()


def test_one_connection_too_many_is_hung_up_on(model: Path, make: Callable[..., Node]) -> None:
    parent = make(0, model)
    with contextlib.ExitStack() as stack:
        there = (parent.address, parent.server.port)
        many = [stack.enter_context(socket.create_connection(there, timeout=300)) for _ in range(stage_server.MOST + 1)]
        greeted = [connection.recv(4096) for connection in many]
    assert [bool(each) for each in greeted] == [True] * stage_server.MOST + [False]


def test_the_greeting_keeps_the_two_sides_apart() -> None:
    """A proof that a child gave is of no use to who plays the parent, nor on the lifeline."""
    assert len({stage_wire._secret(KEY, "child"), stage_wire._secret(KEY, "parent"), KEY}) == 3


def facts_of(number: int, **changes: Any) -> dict[str, Any]:
    base = {"host": f"n{number}", "address": f"10.0.0.{number}", "gpus": (), "cores": (0, 1), "cpus": 2}
    return asdict(NodeFacts(**{**base, "blocks": (20_000,), "stage_port": 5000 + number, **changes}))


def members_of(*nodes: dict[str, Any], **config: Any) -> PoolMembers:
    members = PoolMembers(VllmConfig(model="/m", **config), {number: f"n{number}" for number in range(len(nodes))})
    for rank, node in enumerate(nodes):
        members.take(Word(rank, HELLO, node))
    members.place()
    return members


def parents(members: PoolMembers) -> list[tuple[int, int] | None]:
    """(number of the parent, hops) for each node."""
    found = [members.stage_parent(key) for key in sorted(members.nodes)]
    assert all(each is None or each.address == f"10.0.0.{each.port - 5000}" for each in found)
    return [(each.port - 5000, each.hops) if each else None for each in found]


def test_the_nodes_with_replicas_are_a_tree() -> None:
    members = members_of(*map(facts_of, range(8)))
    assert parents(members) == [None, (0, 1), (0, 1), (1, 2), (1, 2), (2, 2), (2, 2), (3, 3)]
    without = members_of(*(facts_of(number, gpus=("0",) if number != 1 else ()) for number in range(4)))
    assert parents(without) == [None, None, (0, 1), (0, 1)], "node 1 has no replica, and nothing to pass on"


def test_who_passes_nothing_on_is_passed_over_and_nobody_waits_for_one_below() -> None:
    members = members_of(facts_of(0), facts_of(1, stage_port=0), *map(facts_of, range(2, 6)))
    assert parents(members) == [None, (0, 1), (0, 1), (0, 1), (0, 1), (2, 2)]
    members.take(Word(0, GONE, {}))
    assert parents(members) == [None, None, None, None, None, (2, 2)]
    members.take(Word(0, HELLO, facts_of(0)))
    assert members.stage_parent("0") is None


SIDECAR = """
import runpy, socket, sys
socket.gethostname = lambda: sys.argv[2]
runpy.run_module("hpcjet.engine.node", run_name="__main__")
"""
"""A node by another name: here all of them are on one machine."""


def test_the_sidecars_of_a_run_fetch_from_each_other(tmp_path: Path, python: Path) -> None:
    """From what a node says when it joins to the copy that came from another node."""
    model = make_model_with_config(tmp_path / "M", QWEN3_32B, 8 * MIB)
    config = VllmConfig(
        model=str(model), device=Device.cpu, python=str(python), compile_cache=tmp_path / "compiled", stage=Stage.disk,
        env={"STUB_FOLDER": str(tmp_path)}, cores=1, start_timeout_s=300,
    )  # fmt: skip
    plan = replace(compose(["+exp=serve", "engine=vllm", f"engine.model={model}"]), engine=config)
    run = RunDir(tmp_path / "run")
    run.secret("ray-token").parent.mkdir(parents=True)
    run.secret("ray-token").write_text("token")
    run.plan.write_text(make_plan(plan, run_dir=run, python=sys.executable).to_json())
    ports = {name: free_port() for name in ("engine", "router", "pool")}
    pool = Pool(config, run, address="127.0.0.1", ports=ports, hosts={0: "n0", 1: "n1", 2: "n2"}, logs=tmp_path)
    with contextlib.ExitStack() as stack:
        pool._hub = stack.enter_context(contextlib.closing(Hub(ports["pool"], secret=engine_key(run))))
        for rank in range(3):
            stack.enter_context(sidecar(run, rank, tmp_path, ports["pool"]))

        def said() -> list[str]:
            pool._listen()
            pool._place()
            replicas = pool._members.replicas
            assert not any(each.failed for each in replicas.values()), [each.reason for each in replicas.values()]
            logs = [run.path.rglob(f"*n{rank}.replica-{rank}.log") for rank in range(3)]
            return [line for log in logs for file in log for line in file.read_text().splitlines() if "copied" in line]

        wait_for(lambda: len(said()) == 3)
        for rank in range(3):
            copy = tmp_path / f"temp{rank}" / "models" / "M"
            assert not any(filecmp.cmpfiles(model, copy, map(str, files_of(model)), shallow=False)[1:])
        lines = said()
    assert [log.count("0.00 GiB of it from the source, the rest from 127.0.0.1:") for log in lines] == [0, 1, 1]


@contextlib.contextmanager
def sidecar(run: RunDir, rank: int, root: Path, pool_port: int) -> Iterator[None]:
    where = {"rank": rank, "cpus": 2, "gpus": 0, "address": f"127.0.0.{rank + 1}", "head": "127.0.0.1"}
    (root / f"temp{rank}").mkdir()
    env = {"HPCJET_ALLOCATION": f"a{rank}", "HPCJET_RESTART": "0", TEMP_VARIABLE: str(root / f"temp{rank}")}
    argv = [sys.executable, "-c", SIDECAR, str(run.plan), f"n{rank}"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, text=True, env={**os.environ, **env}) as process:
        try:
            assert process.stdin
            process.stdin.write(json.dumps({**where, "pool_port": pool_port}) + "\n")
            process.stdin.close()
            yield
        finally:
            process.terminate()
            process.wait(300)
