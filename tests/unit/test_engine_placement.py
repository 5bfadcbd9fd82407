"""Replicas laid out over nodes, GPUs and cores."""

from dataclasses import replace

import pytest

from hpcjet.config.engine import Device, VllmConfig
from hpcjet.engine.placement import EngineNode, Placement, nodes_per_replica, place
from hpcjet.engine.topology import closest, parse_topology
from hpcjet.errors import ConfigError

# Eight GPUs, NVLink in pairs (0-3, 1-2, 4-7, 5-6), two sockets; as nvidia-smi prints it, with underlined header.
PAIRS = {(0, 3), (1, 2), (4, 7), (5, 6)}
HEAD = "\t\x1b[4m" + "\t".join(f"GPU{i}" for i in range(8)) + "\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"


def link(a: int, b: int) -> str:
    if a == b:
        return " X "
    if tuple(sorted((a, b))) in PAIRS:
        return "NV4"
    return "NODE" if a // 4 == b // 4 else "SYS"


ROWS = [
    "\t".join([f"GPU{a}", *(link(a, b) for b in range(8)), "NODE", "0-15" if a < 4 else "16-31", str(a // 4), "N/A"])
    for a in range(8)
]
TABLE = "\n".join([HEAD, *ROWS, "NIC0\t" + "\t".join(["NODE"] * 8) + "\t X ", "", "Legend:", "", "  X    = Self"])
ONE_GPU = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-7,16-23\t0\t\tN/A\n"


def node(number: int, gpus: int = 4, cores: int = 32, **more: object) -> EngineNode:
    return EngineNode(
        host=f"n{number}",
        gpus=tuple(map(str, range(gpus))),
        cores=tuple(range(cores)),
        **more,  # type: ignore[arg-type]
    )


def config(**settings: object) -> VllmConfig:
    return replace(VllmConfig(model="m"), **settings)  # type: ignore[arg-type]


def gpus(placed: Placement) -> list[list[tuple[str, str]]]:
    return [[(share.host, "".join(share.gpus)) for share in replica.shares] for replica in placed.replicas]


def test_the_table_of_nvidia_smi() -> None:
    topology = parse_topology(TABLE)
    assert topology is not None and topology.num_gpus == 8
    assert topology.links[0][3] > topology.links[0][1] > topology.links[0][4] > topology.links[0][0] == 0
    assert topology.cores[0] == tuple(range(16)) and topology.cores[7] == tuple(range(16, 32))
    one = parse_topology(ONE_GPU)
    assert one is not None and one.links == ((0,),) and one.cores == ((*range(8), *range(16, 24)),)


@pytest.mark.parametrize("text", ["", "No devices were found", HEAD, "\n".join([HEAD, *ROWS[:3]])])
def test_a_text_without_a_whole_table_is_none(text: str) -> None:
    assert parse_topology(text) is None


def test_gpus_that_are_close_come_together() -> None:
    topology = parse_topology(TABLE)
    assert closest(topology, list(range(8)), 2) == [0, 3]
    assert closest(topology, [1, 2, 4, 7], 2) == [1, 2]
    assert closest(topology, [1, 4, 5, 6, 7], 4) == [4, 5, 6, 7]
    assert closest(None, [2, 3, 5], 2) == [2, 3]


def test_replicas_fill_the_nodes() -> None:
    placed = place(config(tensor_parallel=2), [node(0), node(1)])
    assert gpus(placed) == [[("n0", "01")], [("n0", "23")], [("n1", "01")], [("n1", "23")]]
    assert placed.idle_gpus == 0
    assert [replica.name for replica in placed.replicas] == ["replica-0", "replica-1", "replica-2", "replica-3"]


def test_gpus_and_cores_follow_the_topology() -> None:
    placed = place(config(tensor_parallel=2), [node(0, 8, topology=parse_topology(TABLE))])
    assert gpus(placed) == [[("n0", "03")], [("n0", "12")], [("n0", "47")], [("n0", "56")]]
    cores = [replica.leader.cores for replica in placed.replicas]
    assert cores[0] == (0, 1, 2, 3) and cores[2] == (16, 17, 18, 19)
    assert sorted([*placed.agents["n0"], *(core for each in cores for core in each)]) == list(range(32))


def test_a_replica_over_nodes_has_a_part_of_the_same_size_on_each() -> None:
    placed = place(config(tensor_parallel=4, pipeline_parallel=3), [node(i) for i in range(7)])
    assert gpus(placed) == [[(f"n{i}", "0123") for i in (0, 1, 2)], [(f"n{i}", "0123") for i in (3, 4, 5)]]
    assert placed.idle_gpus == 4
    assert [share.rank for share in placed.replicas[0].shares] == [0, 1, 2]
    assert placed.replicas[1].leader.host == "n3"


@pytest.mark.parametrize(("tp", "pp", "here", "nodes"), [(1, 1, 4, 1), (8, 1, 4, 2), (4, 3, 8, 2), (5, 1, 4, 5)])
def test_as_few_nodes_as_equal_parts_allow(tp: int, pp: int, here: int, nodes: int) -> None:
    assert nodes_per_replica(config(tensor_parallel=tp, pipeline_parallel=pp), here) == nodes


def test_nodes_without_gpus_are_for_agents() -> None:
    placed = place(config(tensor_parallel=4), [node(0), node(1, 0), node(2)])
    assert gpus(placed) == [[("n0", "0123")], [("n2", "0123")]]
    assert placed.agents["n1"] == tuple(range(32)) and len(placed.agents["n0"]) == 26


def test_cpu_engines_leave_half_of_the_cores() -> None:
    placed = place(config(), [node(0, 0, 8), node(1, 0, 8)])
    assert gpus(placed) == [[("n0", "")], [("n1", "")]]
    assert [len(replica.leader.cores) for replica in placed.replicas] == [4, 4]
    more = place(config(replicas="3"), [node(0, 0, 8), node(1, 0, 8)])
    assert [replica.leader.host for replica in more.replicas] == ["n0", "n1", "n0"]
    assert not set(more.replicas[0].leader.cores) & set(more.replicas[2].leader.cores)


def test_a_cpu_engine_may_be_wanted_beside_gpus() -> None:
    placed = place(config(device=Device.cpu, cores=2), [node(0)])
    assert gpus(placed) == [[("n0", "")]] and placed.idle_gpus == 4 and placed.agents["n0"] == tuple(range(2, 32))


def test_a_node_of_few_cores_is_shared_out() -> None:
    placed = place(config(), [node(0, 4, 5)])
    assert [replica.leader.cores for replica in placed.replicas] == [(0,), (1,), (2,), (3,)]
    assert placed.agents == {"n0": (4,)}


@pytest.mark.parametrize(
    ("settings", "nodes", "parts"),
    [
        ({"device": Device.gpu}, [node(0, 0)], ["engine.device=gpu", "cluster.gpus_per_node"]),
        ({"tensor_parallel": 16}, [node(0), node(1)], ["engine.tensor_parallel=16", "takes 16 GPUs", "have 8"]),
        ({"replicas": "9", "tensor_parallel": 2}, [node(0), node(1)], ["engine.replicas=9", "room for 4", "=4"]),
        ({"replicas": "9", "cores": 2}, [node(0, 0, 4)], ["engine.replicas=9", "room for 2"]),
        ({"cores": 64}, [node(0, 0, 4)], ["engine.cores=64", "4 cores"]),
    ],
    ids=["no gpu", "too wide", "too many", "too many on cpus", "too many cores"],
)
def test_what_has_no_room_is_refused(settings: dict[str, object], nodes: list[EngineNode], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        place(config(**settings), nodes)
    assert all(part in str(refused.value) for part in parts), refused.value
