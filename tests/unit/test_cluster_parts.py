"""The parts of a node agent that stand alone: ports, Ray's arguments, rendezvous, site, signals, state."""

import json
import os
import signal
import socket
import stat
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hpcjet.cluster import ports
from hpcjet.cluster.memory import folder_in_memory, make_in_memory
from hpcjet.cluster.place import GIB, Place, local_place
from hpcjet.cluster.ports import BLOCK, LOWEST, PortBlock, candidate_blocks, ephemeral_floor, free_blocks, port_range
from hpcjet.cluster.ray_args import head_args, member_labels, worker_args
from hpcjet.cluster.rendezvous import Rendezvous, leave_pointer, read_pointer, take_pointer_away
from hpcjet.cluster.signals import Interrupted, signals_ignored, signals_raise
from hpcjet.cluster.site import Site, node_environment, prepared_site, renewed_token, token_name
from hpcjet.cluster.state import Phase, RunState, annotate_state, read_state, write_state
from hpcjet.config.compose import compose
from hpcjet.errors import BootstrapError
from hpcjet.plan import NodeGroup, Plan, make_plan
from hpcjet.rundir import RunDir

# ports

AMONG = range(LOWEST, 32_768)


def named(block: PortBlock) -> list[int]:
    names = [name for name, value in vars(PortBlock).items() if isinstance(value, property)]
    return [getattr(block, name) for name in names]


def test_the_ports_of_a_block_are_its_own() -> None:
    block = PortBlock(12_000)
    assert len(set(named(block))) == len(named(block)) >= 10
    assert all(12_000 <= port < 12_000 + BLOCK for port in named(block))


@pytest.mark.parametrize("allocation", ["1-0", "4711-0", "local-9-0", "12_3-2"])
def test_blocks_stay_below_the_kernels_range_and_disjoint(allocation: str) -> None:
    bases = [block.base for block in candidate_blocks(allocation, among=AMONG)]
    assert len(bases) == len(set(bases)) == 64
    assert all(base >= LOWEST and base + BLOCK <= 32_768 and (base - LOWEST) % BLOCK == 0 for base in bases)
    assert bases == [block.base for block in candidate_blocks(allocation, among=AMONG)]


def test_allocations_seldom_collide() -> None:
    first = Counter(next(candidate_blocks(f"{number}-0", among=AMONG)).base for number in range(50_000, 50_200))
    # Drawing 200 of 1423 blocks at random, about 13 meet another.
    assert sum(count - 1 for count in first.values()) <= 25


def test_a_bound_port_makes_it_move_on() -> None:
    candidates = candidate_blocks("busy-0", among=port_range(ephemeral_floor()))
    first = next(free_blocks("busy-0"))
    for used in ("gcs", "metrics"):
        with socket.create_server(("127.0.0.1", getattr(first, used))):
            assert next(free_blocks("busy-0")).base != first.base
    assert first.base in [block.base for block in candidates]
    assert next(free_blocks("busy-0")) == first


def test_a_port_in_time_wait_counts_as_free() -> None:
    block = next(free_blocks("wait-0"))
    server = socket.create_server(("127.0.0.1", block.gcs))
    client = socket.create_connection(("127.0.0.1", block.gcs))
    accepted, _ = server.accept()
    accepted.close()  # who closes first waits
    assert client.recv(1) == b""
    client.close()
    server.close()
    assert next(free_blocks("wait-0")) == block


def test_no_free_block_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_can_bind", lambda address, port: False)
    with pytest.raises(BootstrapError, match=r"no free block of 16 ports .* ask for whole nodes with"):
        next(free_blocks("1-0"))


@pytest.mark.parametrize(("text", "floor"), [("9000\t65000\n", 9000), ("", 32_768), ("x", 32_768)])
def test_the_kernels_floor_is_read(tmp_path: Path, text: str, floor: int) -> None:
    (tmp_path / "range").write_text(text)
    assert ephemeral_floor(tmp_path / "range") == floor
    assert ephemeral_floor(tmp_path / "none") == 32_768


@pytest.mark.parametrize(
    ("floor", "among"),
    [(32_768, (10_000, 32_767)), (15_000, (10_000, 14_999)), (9000, (2000, 8999)), (1024, (10_000, 32_767))],
    ids=["stock", "lower", "from 9000", "all ports"],
)
def test_the_range_is_below_the_kernels_where_there_is_room(floor: int, among: tuple[int, int]) -> None:
    found = port_range(floor)
    assert (found[0], found[-1]) == among
    assert len({block.base for block in candidate_blocks("1-0", among=found)}) >= 63


@pytest.mark.parametrize("among", [range(10_000, 11_024), range(8000, 9024)], ids=["of clients", "of the dashboard"])
def test_no_block_has_a_port_that_ray_counts_on(among: range) -> None:
    blocks = [block.base for block in candidate_blocks("1-0", among=among)]
    assert len(blocks) == 63
    assert not any(base <= port < base + BLOCK for base in blocks for port in (8265, 10_001))


# ray_args


def ray_place() -> Place:
    return Place(
        allocation="1", restart=0, rank=0, num_nodes=2, host="n1", cpus=4, gpus=1, memory_bytes=100 * GIB,
        first_host="n1",
    )  # fmt: skip


def test_every_port_counts_and_limits_are_told_to_ray() -> None:
    block = PortBlock(12_000)
    head = head_args(ray_place(), address="10.0.0.1", ports=block, temp_dir=Path("/t/x"), object_store_bytes=GIB)
    worker = worker_args(
        ray_place(), head="10.0.0.1:12000", address="10.0.0.2", ports=block, temp_dir=Path("/t/y"),
        object_store_bytes=GIB,
    )  # fmt: skip
    told = {int(word.partition("=")[2]) for word in head if "port=" in word and "worker" not in word}
    ours = {block.engine, block.router, block.pool, block.lifeline, block.master}
    assert told == set(named(block)) - ours
    for words in (head, worker):
        assert {"--num-cpus=4", "--num-gpus=1", f"--memory={99 * GIB}", f"--object-store-memory={GIB}"} <= set(words)
        assert {"--block", "--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0"} <= set(words)
    assert worker[0] == "--address=10.0.0.1:12000" and "--head" not in worker and head[0] == "--head"


def test_ray_knows_the_arguments() -> None:
    from ray.scripts.scripts import start

    known = {option for parameter in start.params for option in parameter.opts + parameter.secondary_opts}
    words = head_args(ray_place(), address="a", ports=PortBlock(1), temp_dir=Path("/t"), object_store_bytes=1)
    assert {word.partition("=")[0] for word in words} <= known


@pytest.mark.parametrize(
    ("member", "group", "labels"),
    [
        ("4711-0:1", "cpu", {"hpcjet-member": "4711-0.1", "hpcjet-group": "cpu"}),
        ("12_3-2:40", "a b=c,d", {"hpcjet-member": "12_3-2.40", "hpcjet-group": "a.b.c.d"}),
        ("local-9-0:0", "-" + "x" * 90 + "-", {"hpcjet-member": "local-9-0.0", "hpcjet-group": "x" * 62}),
    ],
)
def test_ray_takes_the_labels_of_a_node(member: str, group: str, labels: dict[str, str]) -> None:
    from ray._private.label_utils import parse_node_labels_string

    word = worker_args(
        ray_place(), head="h:1", address="a", ports=PortBlock(1), temp_dir=Path("/t"), object_store_bytes=1,
        labels=member_labels(member, group),
    )[1]  # fmt: skip
    assert parse_node_labels_string(word.removeprefix("--labels=")) == labels


# rendezvous


def test_the_pointer_to_the_head_is_there_as_long_as_its_head(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    first, second = (replace(ray_place(), restart=number) for number in (0, 1))
    assert read_pointer(run) is None
    leave_pointer(run, first, ["10.0.0.1"], 7, secret="ray-token-1-0")
    leave_pointer(run, second, ["10.0.0.2"], 8, secret="ray-token-1-1")
    take_pointer_away(run, first)
    pointer = read_pointer(run)
    assert pointer and (pointer.place_name, pointer.addresses, pointer.port) == ("1-1", ["10.0.0.2"], 8)
    assert "secret" not in run.head.read_text().replace('"secret": "ray-token-1-1"', ""), "only where it is"
    take_pointer_away(run, second)
    take_pointer_away(run, second)
    assert read_pointer(run) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"port": 1}', "x"])
def test_what_is_no_pointer_counts_as_none(tmp_path: Path, text: str) -> None:
    RunDir(tmp_path).head.write_text(text)
    assert read_pointer(RunDir(tmp_path)) is None


def test_words_are_left_and_found(tmp_path: Path) -> None:
    meeting = Rendezvous(tmp_path / "a" / "b")
    meeting.open()
    meeting.open()
    assert stat.S_IMODE(meeting.folder.stat().st_mode) == 0o700
    assert meeting.names() == set() and meeting.read("head.json") is None
    meeting.leave("head.json", {"port": 1})
    meeting.leave("head.json", {"port": 2})
    assert meeting.names() == {"head.json"} and meeting.read("head.json") == {"port": 2}


def test_a_wait_ends_with_the_word_the_check_or_the_limit(tmp_path: Path) -> None:
    meeting = Rendezvous(tmp_path)
    with pytest.raises(BootstrapError, match=r"waited 0 s for the head on n1 \(.*head\.json did not appear\)"):
        meeting.await_word("head.json", timeout_s=0.2, check=lambda: None, what="the head on n1")

    def fail() -> None:
        raise RuntimeError("ray is gone")

    with pytest.raises(RuntimeError, match="ray is gone"):
        meeting.await_word("head.json", timeout_s=300, check=fail, what="x")
    looks = iter(range(9))

    def arrive() -> None:
        if next(looks) == 1:
            meeting.leave("head.json", {"port": 7})

    assert meeting.await_word("head.json", timeout_s=300, check=arrive, what="x") == {"port": 7}


# site


def plan_in(tmp_path: Path, *words: str) -> Plan:
    config = compose(["+exp=noop", "cluster=local", *words])
    return make_plan(config, run_dir=RunDir(tmp_path / "run"), python="python")


def test_the_environment_of_a_node(tmp_path: Path) -> None:
    plan = plan_in(tmp_path, "+cluster.env.MINE=1", "+cluster.env.PATH=/mine")
    job = {
        "PATH": "/bin", "RAY_ADDRESS": "10.9.9.9:1", "RAY_task_retry_delay_ms": "7",
        "SLURM_CPUS_PER_TASK": "4", "SLURM_MEM_PER_CPU": "1",
        "SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "NoDevFiles",
    }  # fmt: skip
    place = local_place(host="h", cpus=1, gpus=0, memory_bytes=GIB)
    env = node_environment(plan, place, job)
    assert (env["PATH"], env["MINE"], env["SLURM_JOB_ID"]) == ("/mine", "1", "1")
    assert not {"RAY_ADDRESS", "SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_CPU"} & env.keys()
    assert env["RAY_task_retry_delay_ms"] == "7", "what the user set is kept"
    assert env["CUDA_VISIBLE_DEVICES"] == "" and env["RAY_AUTH_MODE"] == "token"
    assert (env["HPCJET_RUN_DIR"], env["HPCJET_RESTART"]) == (plan.run_dir, "0")
    token = plan.run.secret(f"ray-token-{place.name}")
    assert env["RAY_AUTH_TOKEN_PATH"] == str(token), "where it is, never what it is"


def test_a_site_is_private_and_leaves_no_temp_folder(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    with prepared_site(plan, local_place(host="a/b", cpus=1, gpus=0, memory_bytes=GIB)) as made:
        assert made.temp.is_dir() and made.env["HPCJET_TEMP"] == str(made.temp)
        (made.temp / "deep").mkdir()
        (made.temp / "deep" / "file").write_text("x")
        (make_in_memory(made.temp) / "trees").mkdir()
        assert stat.S_IMODE(made.logs.stat().st_mode) == 0o700 == stat.S_IMODE(made.meeting.folder.stat().st_mode)
        assert made.log("ray").parent == made.logs
    assert not made.temp.exists() and made.logs.is_dir()
    assert not folder_in_memory(made.temp).exists()


def test_each_start_has_a_secret_of_its_own_and_knows_those_before(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    known: list[list[str]] = []
    mine: list[str] = []
    plan.run.write_secret("ray-token", "of the run")
    for restart in range(3):
        place = local_place(host="h", cpus=1, gpus=0, memory_bytes=GIB, restart=restart)
        site = Site(plan, place, tmp_path, node_environment(plan, place, {}))
        known.append(renewed_token(site))
        mine.append(site.secret)
        file = plan.run.secret(token_name(place))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and file.read_text() == mine[-1]
    assert known == [[], mine[:1], mine[1:2]] and len(set(mine)) == 3
    assert {file.name for file in file.parent.iterdir()} == {"ray-token", file.name}, "earlier ones are no use"


@pytest.mark.parametrize(
    ("gpus", "wanted", "there"),
    [({}, None, ["head", "cpu", "gpu"]), ({"gpu": 2}, None, ["gpu"]), ({"gpu": 2}, "cpu", ["cpu"])],
)
def test_which_groups_have_an_engines_sidecar(
    tmp_path: Path, gpus: dict[str, int], wanted: str | None, there: list[str]
) -> None:
    groups = tuple(
        NodeGroup(name=name, nodes=1, cpus=1, gpus=gpus.get(name), memory_gb=1) for name in ("head", "cpu", "gpu")
    )
    plan = replace(plan_in(tmp_path), groups=groups, sidecar=("x",), config={"engine": {"group": wanted}})
    assert list(plan.sidecar_groups) == there
    assert "gpu" not in replace(plan, sidecar=()).sidecar_groups


# signals


def test_the_first_signal_raises_and_later_ones_do_not() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    with pytest.raises(Interrupted, match="SIGUSR2"):
        with signals_raise(signal.SIGTERM, signal.SIGUSR2):
            try:
                os.kill(os.getpid(), signal.SIGUSR2)
                time.sleep(5)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                ended_in_order = True
    assert ended_in_order and signal.getsignal(signal.SIGUSR2) == before
    assert not issubclass(Interrupted, Exception)


@pytest.mark.alone
def test_a_signal_may_be_put_off_and_an_urgent_one_overtakes_it() -> None:
    patience = {signal.SIGUSR2: 30.0, signal.SIGTERM: 0.2}
    began = time.monotonic()
    with pytest.raises(Interrupted, match="SIGTERM"):
        with signals_raise(signal.SIGTERM, signal.SIGUSR2, delay_s=lambda number: patience[signal.Signals(number)]):
            os.kill(os.getpid(), signal.SIGUSR2)
            os.kill(os.getpid(), signal.SIGTERM)
            worked_on = time.monotonic() - began
            time.sleep(5)
    assert worked_on < 0.2 <= time.monotonic() - began < 2
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_last_words_are_not_cut_short() -> None:
    with signals_ignored(signal.SIGTERM):
        os.kill(os.getpid(), signal.SIGTERM)
        said = True
    assert said


# state


def test_state_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    assert read_state(file) is None
    annotate_state(file, "nothing to annotate")
    assert not file.exists()
    write_state(file, RunState(Phase.running, allocation="4711", started=1.5))
    annotate_state(file, "the engine ended")
    state = read_state(file)
    assert state and (state.phase, state.reason, state.allocation, state.final) == (
        Phase.running, "the engine ended", "4711", False,
    )  # fmt: skip
    assert abs(state.updated - time.time()) < 60
    for phase in (Phase.done, Phase.failed, Phase.interrupted):
        assert RunState(phase).final
    assert json.loads(file.read_text())["phase"] == "running"
