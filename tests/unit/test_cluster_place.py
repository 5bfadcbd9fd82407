"""A job's share of its node: what Slurm's variables say, and what the kernel really allows."""

import os
from pathlib import Path

import psutil
import pytest

from hpcjet.cluster.aftermath import sweep_steps
from hpcjet.cluster.batch import srun_command
from hpcjet.cluster.cgroup import Limits, kernel_limits, num_cpus
from hpcjet.cluster.gpus import gpu_environment, slurm_gpus, visible_count
from hpcjet.cluster.place import GIB, Place, available_memory, local_place, repeated, slurm_place
from hpcjet.config.compose import compose
from hpcjet.errors import BootstrapError
from hpcjet.plan import make_plan
from hpcjet.rundir import RunDir
from hpcjet.slurm.het import step_hosts

RECORDED = {
    "SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "3", "SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_NODEID": "1", "SLURM_PROCID": "1", "SLURM_CPUS_ON_NODE": "16", "SLURM_JOB_CPUS_PER_NODE": "16(x2),8",
    "SLURM_MEM_PER_NODE": "8192",
}  # fmt: skip


def placed(limits: Limits | None = None, **more: str) -> Place:
    env = {**RECORDED, **more}
    return slurm_place(env, host="n2", first_host="n1", memory_bytes=7, limits=limits)


def test_a_step_of_three_nodes() -> None:
    assert placed() == Place(
        allocation="4711", restart=0, rank=1, num_nodes=3, host="n2", cpus=16, gpus=0, memory_bytes=8 * GIB,
        first_host="n1",
    )  # fmt: skip
    assert placed().name == "4711-0" and not placed().is_head and placed(SLURM_NODEID="0").is_head


def test_an_array_element_that_was_requeued() -> None:
    place = placed(SLURM_ARRAY_JOB_ID="12", SLURM_ARRAY_TASK_ID="3", SLURM_RESTART_COUNT="2")
    assert (place.allocation, place.restart, place.name) == ("12_3", 2, "12_3-2")


def test_more_than_one_task_per_node_is_refused() -> None:
    # C3
    with pytest.raises(BootstrapError, match="the job step has 12 tasks on 3 nodes: hpcjet needs one per node"):
        placed(SLURM_STEP_NUM_TASKS="12")


@pytest.mark.parametrize("number", ["3", "", "x"])
def test_a_node_number_outside_the_step_is_refused(number: str) -> None:
    with pytest.raises(BootstrapError, match=rf"SLURM_NODEID={number} is not the number of a node .* \(0 to 2\)"):
        placed(SLURM_NODEID=number)


def test_this_machine_is_a_place() -> None:
    place = local_place(host="h", cpus=2, gpus=0, memory_bytes=5)
    assert place.is_head and place.num_nodes == 1 and place.allocation == f"local-{os.getpid()}"


# CPUs


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("72(x2),36", [72, 72, 36]), ("4", [4]), ("2,1(x3)", [2, 1, 1, 1]), ("", []), ("72(x", []), ("72(x2),", []),
    ],
)  # fmt: skip
def test_a_number_per_node_with_repeats(text: str, counts: list[int]) -> None:
    assert repeated(text) == counts


@pytest.mark.parametrize(
    ("env", "limit", "cpus", "warning"),
    [
        ({}, 16, 16, ""),
        ({}, 192, 16, ""),
        ({"SLURM_NODEID": "2", "SLURM_CPUS_ON_NODE": ""}, 8, 8, ""),
        ({"SLURM_CPUS_ON_NODE": "", "SLURM_JOB_CPUS_PER_NODE": ""}, 5, 5, ""),
        ({}, 4, 4, "Slurm gave 16 CPUs on n2 and the kernel allows 4"),
        ({"SLURM_CPUS_ON_NODE": "1"}, 1, 1, "SLURM_JOB_CPUS_PER_NODE: 16): 1 will be used; for"),
        ({"SLURM_JOB_CPUS_PER_NODE": "16(x7)"}, 16, 16, "=16(x7) does not tell the CPUs of node 1"),
        ({"SLURM_CPUS_ON_NODE": "many"}, 16, 16, "SLURM_CPUS_ON_NODE=many does not tell"),
        ({"SLURM_JOB_NUM_NODES": "5", "SLURM_JOB_CPUS_PER_NODE": "2(x5)"}, 16, 16, ""),
    ],
    ids=["all agree", "C2: nothing enforced", "by node", "not told", "cgroup", "C1: srun gave one",
         "another job's list", "no number", "a step on some of the nodes"],
)  # fmt: skip
def test_the_lower_number_of_cpus_counts(env: dict[str, str], limit: int, cpus: int, warning: str) -> None:
    place = placed(Limits(cpus=limit), **env)
    assert place.cpus == cpus
    assert len(place.warnings) == bool(warning) and all(warning in each for each in place.warnings)


# memory


@pytest.mark.parametrize(
    ("env", "limit", "memory"),
    [
        ({"SLURM_MEM_PER_NODE": "", "SLURM_MEM_PER_CPU": "512"}, None, 8 * GIB),
        ({"SLURM_MEM_PER_NODE": "", "SLURM_MEM_PER_GPU": "1024", "SLURM_GPUS_ON_NODE": "4"}, None, 4 * GIB),
        ({"SLURM_MEM_PER_NODE": "4G"}, None, 4 * GIB),
        ({"SLURM_MEM_PER_NODE": "0"}, None, 7),
        ({"SLURM_MEM_PER_NODE": ""}, 5, 5),
        ({}, 9 * GIB, 8 * GIB),
        ({}, int(7.9 * GIB), int(7.9 * GIB)),
    ],
    ids=["per cpu", "per gpu", "unit", "all of the node", "not told", "limit above", "limit a little below"],
)
def test_memory(env: dict[str, str], limit: int | None, memory: int) -> None:
    place = placed(Limits(memory_bytes=limit), **env)
    assert (place.memory_bytes, place.warnings) == (memory, ())


def test_a_lower_limit_on_memory_is_told() -> None:
    place = placed(Limits(memory_bytes=2 * GIB))
    assert place.memory_bytes == 2 * GIB
    assert place.warnings[0].startswith("Slurm gave 8.0 GiB on n2 and the kernel allows 2.0 GiB")


# GPUs


@pytest.mark.parametrize(
    ("env", "gpus"),
    [
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_GPUS_ON_NODE": "4", "SLURM_STEP_GPUS": "0-3", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 4),
        ({"SLURM_STEP_GPUS": "0,2-3"}, 3),
        ({"SLURM_STEP_GPUS": "7"}, 1),
        ({"SLURM_STEP_GPUS": "gpu:a100:2(IDX:0-1),gpu:v100:1(IDX:4)"}, 3),
        ({"SLURM_JOB_GPUS": "1,3"}, 2),
        ({"SLURM_GPUS_ON_NODE": "gpu:4", "SLURM_JOB_GPUS": "0,1"}, 4),
        ({"SLURM_GPUS_ON_NODE": "gpu:a100:4"}, 4),
        ({"SLURM_GPUS_ON_NODE": "8", "ROCR_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, 8),
        ({"SLURM_GPUS_ON_NODE": "6", "ZE_AFFINITY_MASK": "0,1,2,3,4,5"}, 6),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c-4106,MIG-41b36c1a-cf4f"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"SLURM_GPUS_ON_NODE": "0", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"SLURM_GPUS_PER_TASK": "", "SLURM_GPUS_ON_NODE": "", "CUDA_VISIBLE_DEVICES": ""}, 0),
        ({}, 0),
    ],
)
def test_gpus_of_any_vendor(env: dict[str, str], gpus: int) -> None:
    assert (placed(None, **env).gpus, placed(None, **env).warnings) == (gpus, ())


@pytest.mark.parametrize(
    ("env", "gpus", "warning"),
    [
        ({"SLURM_GPUS_ON_NODE": "8", "CUDA_VISIBLE_DEVICES": "0,1"}, 2, "told differently (SLURM_GPUS_ON_NODE: 8,"),
        ({"SLURM_GPUS_ON_NODE": "4", "SLURM_STEP_GPUS": "0"}, 1, "SLURM_STEP_GPUS: 1): 1 will be used"),
        ({"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": ""}, 0, "CUDA_VISIBLE_DEVICES: 0): 0 will be used"),
        ({"SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0, "add --gpus-per-node or --gres to"),
    ],
    ids=["fewer visible", "count and list", "hidden by the user", "C5: not given to the step"],
)  # fmt: skip
def test_where_gpus_are_told_differently_the_lower_counts(env: dict[str, str], gpus: int, warning: str) -> None:
    (told,) = placed(None, **env).warnings
    assert placed(None, **env).gpus == gpus and warning in told


def test_gpus_that_slurm_gave_and_does_not_show_are_an_error() -> None:
    with pytest.raises(BootstrapError) as caught:
        slurm_gpus({"SLURM_GPUS_ON_NODE": "4", "ROCR_VISIBLE_DEVICES": "NoDevFiles"}, "n2")
    assert str(caught.value) == (
        "Slurm gave this step GPUs on n2 (SLURM_GPUS_ON_NODE: 4), but ROCR_VISIBLE_DEVICES=NoDevFiles says that there "
        "are none: ask the site whether its gres.conf names the devices, or launch with cluster.gpus_per_node=0"
    )


@pytest.mark.parametrize(
    ("text", "count"),
    [("0,1", 2), ("2-3", 2), ("", 0), ("-1", 0), ("0,-1,1", 1), ("none", 0), ("void", 0), ("0.0,0.1,1.0", 2)],
)
def test_visible_devices(text: str, count: int) -> None:
    assert visible_count(text) == count


def test_ray_can_read_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    # C11; and Ray refuses ROCR's list without HIP's.
    from ray._private.accelerators import AMDGPUAcceleratorManager

    assert gpu_environment({"CUDA_VISIBLE_DEVICES": "NoDevFiles", "ZE_AFFINITY_MASK": "none"}, 0) == {
        "CUDA_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": "",
    }  # fmt: skip
    assert gpu_environment({"CUDA_VISIBLE_DEVICES": "0"}, 1) == gpu_environment({"CUDA_VISIBLE_DEVICES": ""}, 0) == {}
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "4,5")
    with pytest.raises(RuntimeError, match="instead of ROCR_VISIBLE_DEVICES"):
        AMDGPUAcceleratorManager.get_current_process_visible_accelerator_ids()
    for key, value in gpu_environment(os.environ, 2).items():
        monkeypatch.setenv(key, value)
    assert AMDGPUAcceleratorManager.get_current_process_visible_accelerator_ids() == ["0", "1"]


# the kernel's limits

MEMINFO = "MemTotal: 8 kB\nMemAvailable:      4 kB\n\n"
V1 = "5:memory,x:/slurm/uid_7/job_1/step_0\n3:cpuset:/slurm/job_1\n2:cpu,cpuacct:/slurm/job_1\n1:name=systemd:/x\n"


def a_kernel(tmp_path: Path, cgroup: str, files: dict[str, str]) -> tuple[Path, Path]:
    """(proc, root of the control groups)"""
    for name, text in {"p/meminfo": MEMINFO, "p/self/cgroup": cgroup, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "p", tmp_path / "cg"


@pytest.mark.parametrize(
    ("cgroup", "files", "memory"),
    [
        ("0::/job\n", {"cg/job/memory.max": "1000\n"}, 1000),
        ("0::/job\n", {"cg/job/memory.max": "max\n"}, 4096),
        ("0::/job/step/task\n", {"cg/job/memory.max": "1500\n", "cg/job/step/task/memory.max": "2500\n"}, 1500),
        ("0::/job\n", {"cg/job/memory.max": "max\n", "cg/job/memory.high": "1200\n"}, 1200),
        ("0::/\n", {"cg/memory.max": "1100\n"}, 1100),
        ("0::/../../system/job\n", {"cg/memory.max": "1300\n"}, 1300),
        ("1:name=systemd:/\n0::/job\n", {"cg/unified/job/memory.max": "1400\n"}, 1400),
        ("5:memory,cpu:/job\n1:name=systemd:/x\n", {"cg/memory/job/memory.limit_in_bytes": "2000\n"}, 2000),
        (V1, {"cg/memory/slurm/uid_7/job_1/memory.limit_in_bytes": "2100\n"}, 2100),
        ("5:memory:/docker/abc\n", {"cg/memory/memory.limit_in_bytes": "2200\n"}, 2200),
        ("5:memory:/job\n", {"cg/memory/job/memory.limit_in_bytes": "9223372036854771712\n"}, 4096),
        ("", {}, 4096),
    ],
    ids=["v2", "v2 without limit", "v2 of the job", "v2 throttled", "v2 in a container", "v2 path of the host",
         "hybrid", "v1", "v1 of the job", "v1 path of the host", "v1 without limit", "no cgroup"],
)  # fmt: skip
def test_the_lowest_limit_on_memory_counts(tmp_path: Path, cgroup: str, files: dict[str, str], memory: int) -> None:
    proc, root = a_kernel(tmp_path, cgroup, files)
    assert available_memory(proc=proc, cgroup_root=root) == memory
    # Without a limit the whole machine counts, not what is free.
    assert kernel_limits(proc=proc, root=root).memory_bytes == (memory if memory != 4096 else 8192)


@pytest.mark.parametrize(
    ("cgroup", "files", "cpus"),
    [
        ("", {}, 64),
        ("0::/job/step\n", {"cg/job/cpuset.cpus.effective": "0-3,8,10-11\n"}, 7),
        ("0::/job\n", {"cg/job/cpuset.cpus.effective": "\n", "cg/cpuset.cpus.effective": "0-15\n"}, 16),
        ("0::/job/step\n", {"cg/job/step/cpu.max": "max 100000\n", "cg/job/cpu.max": "200000 100000\n"}, 2),
        ("0::/job\n", {"cg/job/cpu.max": "50000 100000\n"}, 1),
        (V1, {"cg/cpuset/slurm/job_1/cpuset.cpus": "0-1\n"}, 2),
        (V1, {"cg/cpu,cpuacct/slurm/job_1/cpu.cfs_quota_us": "-1\n"}, 64),
        (
            V1,
            {
                "cg/cpu,cpuacct/slurm/cpu.cfs_quota_us": "350000\n",
                "cg/cpu,cpuacct/slurm/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
    ],
    ids=["affinity", "v2 set", "v2 set of a parent", "v2 quota", "v2 half a CPU", "v1 set", "v1 no quota", "v1 quota"],
)
def test_the_lowest_limit_on_cpus_counts(tmp_path: Path, cgroup: str, files: dict[str, str], cpus: int) -> None:
    proc, root = a_kernel(tmp_path, cgroup, files)
    assert kernel_limits(proc=proc, root=root, affinity=range(64)).cpus == cpus


def test_the_limits_of_this_machine_are_plausible() -> None:
    limits = kernel_limits()
    assert limits.cpus and 1 <= limits.cpus <= len(os.sched_getaffinity(0))
    assert limits.memory_bytes and 0 < available_memory() <= limits.memory_bytes <= psutil.virtual_memory().total
    assert num_cpus("0-3,8") == 5 and num_cpus("") == 0


# heterogeneous jobs: the variables as Slurm 22.05.8 set them in a step over three components (p4; p1, p3; p2)

HET = {
    "SLURM_JOB_ID": "3", "SLURM_HET_SIZE": "3", "SLURM_JOB_NODELIST": "p[1-4]", "SLURM_STEP_NODELIST": "p[1-4]",
    "SLURM_JOB_NUM_NODES": "4", "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)", "SLURM_JOB_CPUS_PER_NODE": "2,1,2,3", "SLURM_MEM_PER_NODE": "700",
    "SLURM_JOB_ID_HET_GROUP_0": "3", "SLURM_JOB_ID_HET_GROUP_1": "4", "SLURM_JOB_ID_HET_GROUP_2": "5",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "p4", "SLURM_JOB_NODELIST_HET_GROUP_1": "p[1,3]",
    "SLURM_JOB_NODELIST_HET_GROUP_2": "p2", "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1",
    "SLURM_JOB_NUM_NODES_HET_GROUP_1": "2", "SLURM_JOB_NUM_NODES_HET_GROUP_2": "1",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0": "3", "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "2(x2)",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_2": "1", "SLURM_MEM_PER_NODE_HET_GROUP_0": "700",
    "SLURM_MEM_PER_NODE_HET_GROUP_1": "500", "SLURM_MEM_PER_NODE_HET_GROUP_2": "300",
    "SLURM_CPUS_PER_TASK": "1", "SLURM_CPUS_PER_TASK_HET_GROUP_0": "3", "SLURM_CPUS_PER_TASK_HET_GROUP_1": "2",
    "SLURM_CPUS_PER_TASK_HET_GROUP_2": "1",
}  # fmt: skip
HET_BATCH = {
    **{key: value for key, value in HET.items() if "_STEP_" not in key and key != "SLURM_CPUS_PER_TASK"},
    "SLURM_JOB_NODELIST": "p4", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_CPUS_PER_NODE": "3",
}  # fmt: skip


@pytest.mark.parametrize(("rank", "host", "cpus", "mem_mb"), [(0, "p4", 3, 700), (1, "p1", 2, 500), (2, "p3", 2, 500),
                                                              (3, "p2", 1, 300)])  # fmt: skip
def test_a_step_over_the_components_of_a_heterogeneous_job(rank: int, host: str, cpus: int, mem_mb: int) -> None:
    env = {**HET, "SLURM_NODEID": str(rank), "SLURM_PROCID": str(rank), "SLURM_CPUS_ON_NODE": str(cpus)}
    hosts = step_hosts(env)
    assert hosts == ["p4", "p1", "p3", "p2"] and hosts[rank] == host, "Slurm's list is sorted, its ranks are not"
    place = slurm_place(env, host=host, first_host=hosts[0], memory_bytes=7)
    assert place == Place(
        allocation="3", restart=0, rank=rank, num_nodes=4, host=host, cpus=cpus, gpus=0, memory_bytes=mem_mb * 1024**2,
        first_host="p4",
    )  # fmt: skip


def test_a_step_in_one_component_is_a_step_like_others() -> None:
    env = {**HET, "SLURM_STEP_NODELIST": "p4", "SLURM_JOB_NODELIST": "p4", "SLURM_JOB_NUM_NODES": "1",
           "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODEID": "0", "SLURM_CPUS_ON_NODE": "3",
           "SLURM_JOB_CPUS_PER_NODE": "3"}  # fmt: skip
    assert step_hosts(env) == ["p4"]
    place = slurm_place(env, host="p4", first_host="p4", memory_bytes=7)
    assert (place.num_nodes, place.cpus, place.allocation, place.warnings) == (1, 3, "3", ())


def test_two_components_on_one_node_are_refused() -> None:
    env = {**HET, "SLURM_JOB_NODELIST_HET_GROUP_2": "p3", "SLURM_NODEID": "1"}
    with pytest.raises(BootstrapError, match="Slurm gave p3 to two components of the job"):
        slurm_place(env, host="p1", first_host="p4", memory_bytes=7)


def test_more_than_one_task_per_node_of_a_component_is_refused() -> None:
    with pytest.raises(BootstrapError, match="the job step has 6 tasks on 4 nodes"):
        slurm_place(
            {**HET, "SLURM_STEP_NUM_TASKS": "6", "SLURM_NODEID": "1"}, host="p1", first_host="p4", memory_bytes=7
        )


def test_the_template_of_a_heterogeneous_job_starts_one_step_over_all_components() -> None:
    plan = make_plan(compose(["+exp=swe", "cluster=slurm"]), run_dir=RunDir(Path("/r")), python="py")
    words = " ".join(srun_command(plan, HET_BATCH)).removeprefix("srun ").split(" : ")
    assert [word.split(" ")[:3] for word in words] == [
        ["--het-group=0", "--nodes=1", "--ntasks=1"], ["--het-group=1", "--nodes=2", "--ntasks=2"],
        ["--het-group=2", "--nodes=1", "--ntasks=1"],
    ]  # fmt: skip
    assert [f"--cpus-per-task={cpus}" in word for word, cpus in zip(words, (3, 2, 1), strict=True)] == [True] * 3
    assert all(word.endswith("--no-kill py -u -m hpcjet.cluster.node /r/plan.json") for word in words)


def test_lost_nodes_are_swept_in_their_components() -> None:
    plan = make_plan(compose(["+exp=noop", "cluster=slurm"]), run_dir=RunDir(Path("/r")), python="py")
    first, second = sweep_steps(plan, ["p3", "p2", "p1"], HET_BATCH)
    assert {"--het-group=1", "--nodes=2", "--nodelist=p3,p1"} <= set(first)
    assert {"--het-group=2", "--nodes=1", "--nodelist=p2"} <= set(second)
    [only] = sweep_steps(plan, ["n3", "n1"], {"SLURM_JOB_NUM_NODES": "3"})
    assert "--nodelist=n3,n1" in only and not any(word.startswith("--het") for word in only)
