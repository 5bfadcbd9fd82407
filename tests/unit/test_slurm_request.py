"""The request against the site: limits recorded from the lab (22.05), and in the forms of other releases and sites."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_stubs import brisk, calls, noted, on_path, stub
from test_slurm_script import request

from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.compose import compose
from hpcjet.dryrun import dry_run_text, page
from hpcjet.errors import ConfigError
from hpcjet.plan import Defaults, cost
from hpcjet.preflight import Forecast, check_slurm
from hpcjet.slurm.expected import Expected, read_expected
from hpcjet.slurm.limits import Association, NodeType, Partition, Site, read_gres, read_site, site
from hpcjet.slurm.request import check_request, defaults, problems, wanted_gres
from hpcjet.slurm.times import moment

CONFIG_22_05 = """\
Configuration data as of 2026-11-30T08:35:07
AccountingStorageEnforce = associations
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = hpcjetlab
JobRequeue              = 1
MaxArraySize            = 1001
MaxJobCount             = 10000
PreemptMode             = REQUEUE
SLURM_VERSION           = 22.05.8

Slurmctld(primary) at localhost is UP
"""
PARTITIONS_22_05 = (
    "PartitionName=batch AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A "
    "DefaultTime=00:10:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED "
    "MaxTime=1-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=n[1-4] PriorityJobFactor=1 PriorityTier=10 "
    "RootOnly=NO ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=REQUEUE State=UP TotalCPUs=32 TotalNodes=4 "
    "SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED "
    "TRES=cpu=32,mem=62.50G,node=4,billing=32,gres/gpu=16\n"
)
NODES_22_05 = "batch|1|8|16000|gpu:4|(null)|n1\nbatch|3|8|16000|gpu:4|(null)|n[2-4]\n"

# In the form of 24.05: with MaxCPUsPerSocket and SuspendTime, typed GPUs with sockets, and a limit of memory per node.
PARTITIONS_24_05 = (
    "PartitionName=gpu AllowGroups=ALL AllowAccounts=phys,chem AllowQos=normal,long AllocNodes=ALL Default=YES "
    "QoS=gpu_limits DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO ExclusiveTopo=NO GraceTime=0 Hidden=NO "
    "MaxNodes=8 MaxTime=2-00:00:00 MinNodes=2 LLN=NO MaxCPUsPerNode=120 MaxCPUsPerSocket=UNLIMITED Nodes=g[001-016] "
    "OverSubscribe=EXCLUSIVE PreemptMode=OFF State=UP DefMemPerCPU=2000 MaxMemPerNode=500000 SuspendTime=INFINITE\n"
    "PartitionName=open AllowGroups=ALL DenyAccounts=guest AllowQos=ALL Default=NO QoS=N/A DefaultTime=NONE "
    "MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=1 MaxCPUsPerNode=UNLIMITED Nodes=c[1-2] OverSubscribe=NO State=UP "
    "DefMemPerNode=UNLIMITED MaxMemPerCPU=4000\n"
    "PartitionName=old AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=NO DefaultTime=01:00:00 "
    "MaxNodes=UNLIMITED MaxTime=30-00:00:00 MinNodes=1 Nodes=c[1-2] State=DRAIN MaxMemPerNode=UNLIMITED\n"
)
NODES_24_05 = (
    "gpu|8|128|515000|gpu:a100:4(S:0-1),nvme:1|ib,amd|g[001-008]\n"
    "gpu|8|256|1031000|gpu:h100:8(S:0,1)|ib,intel|g[009-016]\n"
    "open|2|64|256000|(null)|amd|c[1-2]\nold|2|64|256000|(null)|amd|c[1-2]\n"
)
CONFIG_24_05 = CONFIG_22_05.replace("22.05.8", "24.05.8-1").replace("= associations", "= associations,limits,qos")
ASSOCIATIONS = "hpcjetlab|phys||long,normal\nhpcjetlab|teach||normal\nother|elsewhere||normal\n"

LAB = read_site(CONFIG_22_05, PARTITIONS_22_05, NODES_22_05, "hpcjetlab|lab||normal\n")
BIG = read_site(CONFIG_24_05, PARTITIONS_24_05, NODES_24_05, ASSOCIATIONS)


def slurm_config(*words: str) -> SlurmConfig:
    """Read as Hydra would, only faster."""
    given: dict[str, Any] = {"sbatch": {}}
    for word in words:
        key, _, text = word.lstrip("+").removeprefix("cluster.").partition("=")
        number = re.fullmatch(r"[0-9.]+", text)
        value = (float(text) if "." in text else int(text)) if number else None if text == "null" else text.strip("'")
        if key.startswith("sbatch."):
            given["sbatch"][key.removeprefix("sbatch.")] = text
        else:
            given[key] = value
    return SlurmConfig(**given)


def said(where: Site, *words: str, array: int | None = None) -> str:
    return "\n".join(problems(slurm_config(*words), where, array=array))


def test_the_site_as_recorded() -> None:
    assert (LAB.version, LAB.cluster, LAB.max_array_size, LAB.max_job_count) == ("22.05.8", "hpcjetlab", 1001, 10000)
    assert LAB.job_requeue and LAB.preempt_mode == "REQUEUE" and LAB.enforced == {"associations"}
    batch = LAB.partitions["batch"]
    assert LAB.default_partition is batch and (batch.max_time_min, batch.default_time_min) == (1440, 10)
    assert [(each.nodes, each.count, each.cpus, each.mem_mb, each.gres) for each in batch.types] == [
        ("n1", 1, 8, 16000, {"gpu": 4}), ("n[2-4]", 3, 8, 16000, {"gpu": 4}),
    ]  # fmt: skip
    assert LAB.associations == (Association("lab", None, frozenset({"normal"})),)


def test_a_site_of_two_node_types() -> None:
    gpu = BIG.partitions["gpu"]
    assert BIG.version == "24.05.8-1"
    assert (gpu.max_nodes, gpu.min_nodes, gpu.max_cpus_per_node, gpu.max_mem_mb_per_node) == (8, 2, 120, 500000)
    assert (
        gpu.whole_nodes and gpu.default_time_min is None and gpu.time_if_unset_min == 2880 and gpu.qos == "gpu_limits"
    )
    assert (gpu.allow_accounts, gpu.allow_qos) == ({"phys", "chem"}, {"normal", "long"})
    assert gpu.types[0].gres == {"gpu": 4, "gpu:a100": 4, "nvme": 1} and gpu.types[0].features == {"ib", "amd"}
    assert BIG.partitions["open"].deny_accounts == {"guest"} and BIG.partitions["open"].max_mem_mb_per_node is None
    assert {each.account for each in BIG.associations or ()} == {"phys", "teach"}, "not of the other cluster"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(null)", {}),
        ("gpu:4", {"gpu": 4}),
        ("gpu", {"gpu": 1}),
        ("gpu:a100:4(S:0-1)", {"gpu": 4, "gpu:a100": 4}),
        ("gpu:a100_1g.5gb:7(S:0),gpu:a100:3(S:1)", {"gpu": 10, "gpu:a100_1g.5gb": 7, "gpu:a100": 3}),
        ("gpu:a100:no_consume:2,nvme:2K", {"gpu": 2, "gpu:a100": 2, "nvme": 2048}),
        ("gpu:tesla", {"gpu": 1, "gpu:tesla": 1}),
        ("gpu:gh200:4(IDX:0-3)", {"gpu": 4, "gpu:gh200": 4}),
        ("craynetwork:4", {"craynetwork": 4}),
    ],
)
def test_generic_resources(text: str, found: dict[str, int]) -> None:
    assert read_gres(text if text != "(null)" else "") == found
    assert text == "(null)" or read_gres(text)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["cluster.nodes=4", "cluster.cpus_per_node=8", "cluster.mem_gb=15.6", "cluster.gpus_per_node=4"],
        ["cluster.time_min=1440", "cluster.partition=batch", "cluster.gres='gpu:2'"],
        ["cluster.exclude='n[1-2]'", "cluster.nodes=2", "cluster.nodelist='n[3-4]'"],
        ["cluster.account=lab", "cluster.qos=anything"],
        ["cluster.constraint='[rack1|rack2]'"],
        ["cluster.nodes=99", "+cluster.sbatch.clusters=other"],
        ["cluster.nodes=99", "+cluster.sbatch.reservation=big"],
        ["+cluster.sbatch.time=5-0", "cluster.exclude=null"],
    ],
    ids=lambda words: " ".join(words) or "defaults",
)
def test_what_fits_or_is_not_known_is_let_through(words: list[str]) -> None:
    assert said(LAB, *words) == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cluster.partition=bacth"],
         "cluster.partition=bacth does not exist on this cluster (did you mean batch?): choose one of batch"),
        (["cluster.partition='batch,nope'"],
         "cluster.partition=nope does not exist on this cluster: choose one of batch"),
        (["cluster.time_min=3000"],
         "cluster.time_min=3000 is over the limit of partition 'batch' (1 to 1440, 24 h); set cluster.time_min=1440"),
        (["cluster.nodes=5"],
         "cluster.nodes=5 is more than partition 'batch' has that fit (4); set cluster.nodes=4"),
        (["cluster.nodes=4", "cluster.exclude=n2"],
         "cluster.nodes=4 is more than partition 'batch' has that fit (3); set cluster.nodes=3"),
        (["cluster.cpus_per_node=9"],
         "cluster.cpus_per_node=9 is more than a node of partition 'batch' gives (1 to 8); set cluster.cpus_per_node="),
        (["cluster.mem_gb=99"],
         "cluster.mem_gb=99 is more than a node of partition 'batch' gives (15.6 GiB); set cluster.mem_gb=15.6"),
        (["cluster.gpus_per_node=9"],
         "cluster.gpus_per_node=9: a node of partition 'batch' has at most 4 of gpu (there is gpu:4); "
         "set cluster.gpus_per_node=4"),
        (["cluster.gres='gpu:a100:2'"],
         "cluster.gres=gpu:a100:2: a node of partition 'batch' has at most 0 of gpu:a100 (there is gpu:4); "
         "set cluster.gres=gpu:2"),
        (["cluster.constraint='ib&a100'"], "has the feature 'ib'; choose from none"),
        (["cluster.nodelist='n[3-6]'"],
         "cluster.nodelist=n[3-6]: n5, n6 are no nodes of this cluster; set cluster.nodelist=n3,n4"),
        (["cluster.exclude=n9"], "cluster.exclude=n9: n9 is no node of this cluster; set cluster.exclude=null"),
        (["cluster.account=labb"],
         "cluster.account=labb is not one of your accounts here (lab); set cluster.account=lab"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_could_never_start_on_the_lab(words: list[str], message: str) -> None:
    assert message in said(LAB, *words) and said(LAB, *words).count("\n") <= 1


GPU = "cluster.partition=gpu"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([GPU, "cluster.nodes=9"], "cluster.nodes=9 is more than partition 'gpu' allows (8); set cluster.nodes=8"),
        ([GPU, "cluster.nodes=1"], "cluster.nodes=1 is less than partition 'gpu' takes (2); set cluster.nodes=2"),
        ([GPU, "cluster.cpus_per_node=128"], "gives (1 to 120); set cluster.cpus_per_node=120"),
        ([GPU, "cluster.mem_gb=500"], "gives (488.2 GiB); set cluster.mem_gb=488.2"),
        ([GPU, "cluster.gres='gpu:a100:8'"], "at most 4 of gpu:a100 (there is gpu:4, gpu:8, gpu:a100:4, gpu:h100:8, "),
        ([GPU, "cluster.gres='gpu:v100:1'"], "at most 0 of gpu:v100"),
        ([GPU, "cluster.constraint=amd", "cluster.gpus_per_node=8"],
         "has no node with all of cluster.gpus_per_node=8, cluster.constraint=amd; it has 128 CPUs, 502.9 GiB, "
         "gpu:a100:4, nvme:1; 256 CPUs, 1006.8 GiB, gpu:h100:8"),
        ([GPU, "cluster.account=teach"], "cluster.account=teach may not use partition 'gpu' (only chem, phys)"),
        ([GPU, "cluster.qos=fast", "cluster.account=phys"], "is not one of your QOS of account phys (long, normal)"),
        (["cluster.partition=open"],
         "cluster.time_min is not set, and partition 'open' has neither a default nor a limit"),
        (["cluster.partition=old"], "partition 'old' is DRAIN: jobs do not start there"),
        ([GPU, "cluster.time_min=5000"], "set cluster.time_min=2880 or set cluster.partition=open"),
        ([GPU, "cluster.nodelist='g[15-16]'"], "g15, g16 are no nodes"),
        (["cluster.partition='gpu,open'", "cluster.time_min=9", "cluster.cpus_per_node=999"],
         "set cluster.cpus_per_node=120"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_could_never_start_on_a_large_site(words: list[str], message: str) -> None:
    words = words if any("nodes=" in word for word in words) else [*words, "cluster.nodes=2"]
    assert message in said(BIG, *words)


@pytest.mark.parametrize(
    "words",
    [
        [GPU, "cluster.gres='gpu:h100:8'"],
        [GPU, "cluster.gres='gpu:a100:4,nvme:1'", "cluster.constraint='ib&amd'"],
        [GPU, "cluster.nodes=8", "cluster.gpus_per_node=8"],
        ["cluster.partition='open,gpu'", "cluster.gpus_per_node=8", "cluster.time_min=60"],
        [GPU, "cluster.account=phys", "cluster.qos=long"],
    ],
    ids=lambda words: " ".join(words),
)
def test_one_node_type_and_one_partition_that_fit_are_enough(words: list[str]) -> None:
    """S19"""
    words = words if any("nodes=" in word for word in words) else [*words, "cluster.nodes=2"]
    assert said(BIG, *words) == ""


def test_arrays() -> None:
    assert said(LAB, array=1001) == "" and said(LAB, array=None) == ""
    assert "an array of 1002 elements is over the cluster's MaxArraySize: at most 1001" in said(LAB, array=1002)
    assert "MaxJobCount=10000" in said(LAB, array=10_000)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        check_request(slurm_config("cluster.time_min=9999", "cluster.mem_gb=99", "cluster.exclude=n9"), LAB)
    assert caught.value.exit_code == 2
    assert [key for key in ("exclude", "time_min", "mem_gb") if f"cluster.{key}=" in str(caught.value)] == [
        "exclude", "time_min", "mem_gb",
    ]  # fmt: skip


def test_a_site_that_says_nothing_refuses_nothing() -> None:
    words = ["cluster.nodes=999", "cluster.partition=x", "cluster.account=y", "cluster.exclude=z"]
    assert said(Site(), *words) == ""


@given(
    st.integers(1, 12), st.none() | st.integers(1, 20), st.none() | st.integers(1, 40), st.none() | st.integers(0, 10),
    st.none() | st.integers(1, 3000),
)  # fmt: skip
def test_the_nearest_value_works(
    nodes: int, cpus: int | None, mem: int | None, gpus: int | None, minutes: int | None
) -> None:
    """Whatever is refused: with the values that the message names it is not refused any more."""
    config = SlurmConfig(nodes=nodes, cpus_per_node=cpus, mem_gb=mem, gpus_per_node=gpus, time_min=minutes)
    for _ in range(3):
        for line in problems(config, LAB):
            key, _, value = line.rpartition("set cluster.")[2].partition("=")
            setattr(config, key, float(value) if key == "mem_gb" else int(value))
    assert problems(config, LAB) == []


@pytest.mark.parametrize("text", ["gpu:2", "gpu:a100:2,nvme:1", "gpu", "none"])
def test_wanted_resources(text: str) -> None:
    wanted = wanted_gres(slurm_config(f"cluster.gres='{text}'"))
    assert wanted == {"gpu:2": {"gpu": 2}, "gpu": {"gpu": 1}, "none": {}}.get(text, {"gpu:a100": 2, "nvme": 1})


# cost


def test_the_cost_with_what_the_site_fills_in() -> None:
    plan, config = request("cluster.nodes=2")
    assert isinstance(config.cluster, SlurmConfig)
    assert cost(plan).node_hours is None
    lab = cost(plan, defaults(config.cluster, LAB))
    assert lab.node_hours == pytest.approx(2 / 6) and lab.cpu_hours == pytest.approx(2 / 6) and lab.gpu_hours == 0
    big = cost(plan, defaults(config.cluster, BIG))
    assert (big.node_hours, big.cpu_hours, big.gpu_hours) == (96, 96 * 256, 96 * 8), "whole nodes are charged"


def test_a_cost_without_a_limit_is_not_known() -> None:
    plan, config = request("cluster.partition=open", "cluster.cpus_per_node=2")
    assert isinstance(config.cluster, SlurmConfig)
    assert cost(plan, defaults(config.cluster, BIG)).node_hours is None
    assert defaults(config.cluster, Site()) == {"main": Defaults(cpus_per_node=2)}


def test_the_cost_on_whole_nodes() -> None:
    plan, config = request("cluster.exclusive=true", "cluster.cpus_per_node=2", "cluster.time_min=60")
    assert isinstance(config.cluster, SlurmConfig)
    assert cost(plan, defaults(config.cluster, LAB)).cpu_hours == 8 and cost(plan).cpu_hours == 2


# what the commands say


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = on_path(tmp_path / "slurm", monkeypatch)
    brisk(monkeypatch)
    pick = f'case "$2" in config) cat {folder}/config;; *) cat {folder}/partitions;; esac; exit 0'
    (folder / "config").write_text(CONFIG_22_05)
    (folder / "partitions").write_text(PARTITIONS_22_05)
    stub(folder, "scontrol", first=f"{noted(folder, 'scontrol')}; {pick}")
    stub(folder, "sinfo", says=NODES_22_05, first=noted(folder, "sinfo"))
    stub(folder, "sacctmgr", says="hpcjetlab|lab||normal\n", first=noted(folder, "sacctmgr"))
    stub(folder, "srun")
    expected = "sbatch: Job 143 to start at 2030-01-02T03:04:05 using 8 processors on nodes n[1-2] in partition batch\n"
    stub(folder, "sbatch", error=expected, first=noted(folder, "sbatch"))
    return folder


def test_four_calls_say_it_all(slurm: Path) -> None:
    assert site() == LAB
    assert sum(len(calls(slurm, name)) for name in ("scontrol", "sinfo", "sacctmgr", "sbatch")) == 4


@pytest.mark.alone
def test_ten_thousand_nodes_cost_no_more(slurm: Path) -> None:
    rows = "".join(f"batch|1|{8 + number % 9}|16000|gpu:4|(null)|n{number}\n" for number in range(10_000))
    (slurm / "rows").write_text(rows)
    stub(slurm, "sinfo", first=f"{noted(slurm, 'sinfo')}; cat {slurm}/rows; exit 0")
    before = time.process_time()
    there = site()
    assert there is not None and len(calls(slurm, "sinfo")) == 1 and time.process_time() - before < 2
    assert "n10000 is no node" in said(there, "cluster.exclude=n10000")


@pytest.mark.parametrize("silent", ["scontrol", "sacctmgr", "sinfo"])
def test_one_that_does_not_answer_leaves_its_part_open(silent: str, slurm: Path) -> None:
    stub(slurm, silent, error="down\n", code=1)
    there = site()
    assert there is not None
    assert ("batch" in there.partitions, there.associations is None) == (True, silent != "sinfo")
    assert said(there, "cluster.nodes=99") == "" if silent == "sinfo" else "set cluster.nodes=4"


def test_a_launch_is_refused_before_anything_is_made(slurm: Path) -> None:
    config = compose(["+exp=noop", "cluster=slurm", "cluster.nodes=7"])
    with pytest.raises(ConfigError, match=r"cluster\.nodes=7 is more than .* set cluster\.nodes=4"):
        check_slurm(config)
    check_slurm(compose(["+exp=noop", "cluster=slurm", "cluster.nodes=4"]))
    with pytest.raises(ConfigError, match="MaxArraySize"):
        check_slurm(compose(["+exp=noop", "cluster=slurm"]), array=5000)
    assert calls(slurm, "sbatch") == []


def test_a_slurm_that_is_away_refuses_nothing(slurm: Path) -> None:
    for name in ("scontrol", "sinfo", "sacctmgr"):
        stub(slurm, name, error="Unable to contact slurm controller\n", code=1)
    check_slurm(compose(["+exp=noop", "cluster=slurm", "cluster.nodes=99", "cluster.partition=x"]))


def test_a_dry_run_shows_the_expected_start_and_what_the_site_fills_in(slurm: Path) -> None:
    plan, config = request("cluster.nodes=2")
    text = dry_run_text(plan, config, [])
    assert "Slurm 22.05.8 here\n  expected start: in " in text
    assert "(2030-01-02 03:04) on n[1-2] in partition batch" in text
    assert "0.333333 node-hours, 0.333333 CPU-hours, 0 GPU-hours" in text
    assert calls(slurm, "sbatch") == [["--test-only"]]


def test_a_dry_run_tells_what_would_be_refused(slurm: Path) -> None:
    plan, config = request("cluster.nodes=9")
    assert "  would not start: cluster.nodes=9 is more than" in dry_run_text(plan, config, [])
    assert calls(slurm, "sbatch") == []


def test_a_dry_run_needs_no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, config = request("cluster.nodes=2")
    on_path(tmp_path / "empty", monkeypatch, alone=True)
    text = dry_run_text(plan, config, [])
    assert "here" not in text.partition("script")[0] and "#SBATCH --nodes=2" in text
    assert text == page(plan, [], script=text_of(text), said=Forecast())


def text_of(text: str) -> str:
    """The script in a page."""
    shown = text.partition("\nscript\n")[2].partition("\n\nnext\n")[0]
    return "".join(f"{line[2:]}\n" for line in shown.splitlines())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("sbatch: Job 143 to start at 2026-11-30T08:35:07 using 1 processors on nodes n1 in partition batch\n",
         ("2026-11-30T08:35:07", "n1", "batch")),
        ("sbatch: Job 7 to start at 2026-11-30T08:35:07 using 64 processors on g[001-002]\n",
         ("2026-11-30T08:35:07", "g[001-002]", "")),
        ("lua: hello\nsbatch: Job 9 to start at 2026-11-30T08:35:07 using 4 processors on nodes a,b in partition p\n",
         ("2026-11-30T08:35:07", "a,b", "p")),
        ("sbatch: error: Unable to contact slurm controller (connect failure)\n", None),
        ("allocation failure: Unable to contact slurm controller (connect failure)\n", None),
        ("", None),
    ],
    ids=["22.05", "20.11", "with a word of the site", "away", "away, other words", "nothing"],
)  # fmt: skip
def test_the_answer_of_test_only(words: str, expected: tuple[str, str, str] | None) -> None:
    wanted = Expected(moment(expected[0]), expected[1], expected[2]) if expected else None
    assert read_expected(words) == wanted


def test_no_start_in_sight() -> None:
    words = "allocation failure: Requested node configuration is not available"
    found = read_expected(words, words=words)
    assert found and found.text() == f"Slurm sees no start as things are: {words}"
    soon = Expected(1000.0, "n1", "batch")
    assert soon.text(now=990.0) == "now on n1 in partition batch"
    assert soon.text(now=-9000.0).startswith("in 3 h (19")


def test_one_type_is_as_good_as_two_alike() -> None:
    types = (NodeType("n[1-2]", 2, 8, 16000), NodeType("n[3-4]", 2, 8, 16000))
    there = Site(partitions={"p": Partition("p", is_default=True, types=types)})
    assert (
        said(there, "cluster.nodes=4", "cluster.time_min=1")
        == ""
        != said(there, "cluster.nodes=5", "cluster.time_min=1")
    )


DEBUG = Partition("debug", max_time_min=30, types=(NodeType("d1", 1, 4, 8000),))
SITE_OF_TWO = Site(partitions={"debug": DEBUG, "batch": LAB.partitions["batch"]})


def test_each_group_is_compared_with_its_own_partition() -> None:
    groups = ["cluster.groups.head={partition: debug}", "cluster.groups.cpu={nodes: 9, max: 90, time_min: 9000}"]
    words = [*groups, "cluster.partition=batch", "cluster.time_min=5", "cluster.form=jobs"]
    _, config = request(*words, "cluster.groups.head.cpus_per_node=99", "cluster.groups.cpu.nodes_per_job=5")
    assert isinstance(config.cluster, SlurmConfig)
    found = problems(config.cluster, SITE_OF_TWO)
    assert [problem.partition("=")[0].partition(" ")[0] for problem in found] == [
        "cluster.groups.head.cpus_per_node", "cluster.groups.cpu.time_min", "cluster.groups.cpu.nodes",
    ]  # fmt: skip
    assert "set cluster.groups.cpu.nodes=4" in found[2], "it is the size of one job that must fit"


def test_groups_of_one_job_are_one_request() -> None:
    _, config = request("cluster.groups.a={nodes: 2}", "cluster.groups.b={nodes: 3, cpus_per_node: 99}")
    assert isinstance(config.cluster, SlurmConfig)
    found = problems(config.cluster, SITE_OF_TWO)
    assert any("cluster.cpus_per_node=99" in problem for problem in found)


def test_what_the_site_fills_in_is_known_for_each_group() -> None:
    _, config = request(
        "cluster.groups.a={partition: debug}", "cluster.groups.b={partition: batch}", "cluster.form=het"
    )
    assert isinstance(config.cluster, SlurmConfig)
    found = defaults(config.cluster, SITE_OF_TWO)
    assert (found["a"].time_min, found["b"].time_min) == (30, 10)
