"""Limits, on every kind of sandbox."""
# ruff: noqa: F811 (fixtures are imported)

import os
import threading
import time
from pathlib import Path

import pytest
from sandbox_scenes import (  # noqa: F401 (fixtures)
    NAP,
    Opener,
    config,
    napping,
    opened,
    output,
    place,
    processes_below,
    tree,
    wait_for,
)

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import ConfigError, SandboxError
from hpcjet.sandbox import Limits, SandboxSpec, open_sandbox, probe
from hpcjet.sandbox.cgroup import find_delegation, new_group, own_folders, settings
from hpcjet.sandbox.cpus import choose_cpus
from hpcjet.sandbox.disk import Disk, removed_but_open, walk
from hpcjet.sandbox.meter import Meter
from hpcjet.sandbox.processes import Usage, cpu_seconds
from hpcjet.sandbox.spec import GIB
from hpcjet.sandbox.supervisor import Supervisor, Watched

LONG_S = 300
"""For what a limit ends within seconds, on a machine that has time for it."""


def test_cpu_time_of_all_processes_together_is_limited(opened: Opener) -> None:
    box = opened(limits=Limits(cpu_s=1.0))
    done = box.run("for i in 1 2 3; do while :; do :; done & done; wait", timeout_s=LONG_S)
    assert (done.limit, done.timed_out, done.returncode) == ("cpu", False, 137)
    assert output(box, "echo usable") == "usable\n"  # it counts per command


def test_cpu_time_of_short_children_counts(opened: Opener) -> None:
    box = opened(limits=Limits(cpu_s=1.0))
    assert box.run("while :; do (for i in $(seq 2000); do :; done); done", timeout_s=LONG_S).limit == "cpu"


def test_the_share_of_cpus_is_what_programs_count(opened: Opener) -> None:
    box = opened(limits=Limits(cpus=1))
    script = "import os; print(len(os.sched_getaffinity(0)))"
    makefile = "all:\\n\\t@echo $(MAKEFLAGS)\\n"
    found = output(
        box, f"nproc; /usr/bin/python3 -c '{script}'; echo $PYTHON_CPU_COUNT; printf '{makefile}' | make -f -"
    )
    assert found.split()[:3] == ["1", "1", "1"] and "-j1" in found.split()[3:]


def test_cpus_are_taken_in_turn() -> None:
    there = sorted(os.sched_getaffinity(0))
    assert choose_cpus(None) is None and choose_cpus(len(there)) is None
    if len(there) > 1:
        assert {cpu for _ in there for cpu in choose_cpus(1) or ()} == set(there)


def test_too_much_on_disk_ends_the_command_and_can_be_cleaned_up(opened: Opener) -> None:
    box = opened(limits=Limits(disk_bytes=20 << 20))
    done = box.run("while :; do head -c 4000000 /dev/urandom >>$TMPDIR/$RANDOM; sleep 0.05; done", timeout_s=LONG_S)
    assert (done.limit, done.timed_out) == ("disk", False)
    assert output(box, "sleep 3; rm -r $TMPDIR/*; echo cleaned") == "cleaned\n"


def test_too_many_files_end_the_command(opened: Opener) -> None:
    box = opened(limits=Limits(disk_files=1000))
    done = box.run("while :; do : >f$((i++)); done", timeout_s=LONG_S)
    assert (done.limit, done.timed_out) == ("files", False)


def test_files_without_a_name_count(opened: Opener) -> None:
    box = opened(limits=Limits(disk_bytes=20 << 20))
    done = box.run(
        "exec 9>$TMPDIR/x; rm $TMPDIR/x; while :; do head -c 1000000 /dev/zero >&9; sleep .02; done", timeout_s=LONG_S
    )
    assert (done.limit, done.timed_out) == ("disk", False)


def test_memory_that_no_process_maps_counts(opened: Opener) -> None:
    box = opened(limits=Limits(memory_bytes=100 << 20))
    program = "import os, time; f = os.memfd_create('x')\nwhile True: os.write(f, bytes(1 << 20)); time.sleep(0.005)"
    done = box.run(f'/usr/bin/python3 -c "{program}"', timeout_s=LONG_S)
    assert (done.limit, done.timed_out) == ("memory", False)


def test_the_life_of_a_sandbox_is_limited(opened: Opener) -> None:
    box = opened(limits=Limits(wall_s=6))
    assert box.run("echo early", timeout_s=LONG_S).output == b"early\n"
    done = box.run(f"echo out; sleep {NAP}", timeout_s=LONG_S)
    assert (done.limit, done.timed_out, done.output) == ("wall", True, b"out\n") and done.seconds < 60
    assert box.run("echo late", timeout_s=LONG_S).limit == "wall"


def test_nothing_is_looked_at_while_nothing_runs(opened: Opener) -> None:
    box = opened()
    looks: list[float] = []
    watched = box._watched
    assert watched is not None
    measure = watched.measure

    def look() -> Usage:
        if threading.current_thread().name == "hpcjet-supervisor":  # the disk has its own thread and its own pace
            looks.append(time.monotonic())
        return measure()

    watched.measure = look
    output(box, "true")
    time.sleep(1.5)
    seen = len(looks)
    time.sleep(1.5)
    assert seen and len(looks) == seen
    output(box, f"sleep {NAP} & sleep 1.5")
    assert len(looks) > seen
    seen = len(looks)
    wait_for(lambda: len(looks) > seen)  # something was left in the background


def test_ten_megabytes_a_second_of_output_cost_no_memory(opened: Opener) -> None:
    box = opened(limits=Limits(output_bytes=1000))
    done = box.run("head -c 200000000 /dev/zero", timeout_s=LONG_S)
    assert done.dropped_bytes == 200_000_000 - 1000 and len(done.output) == 1000


def test_limits_of_the_config() -> None:
    limits = Limits.of(SandboxConfig(memory_gb=2, processes=100, cpus=3, disk_gb=None, disk_files=5000))
    assert limits == Limits(memory_bytes=2 * GIB, processes=100, cpus=3, disk_bytes=None, disk_files=5000)
    with pytest.raises(ConfigError, match=r"sandbox\.cpus=0 is not allowed"):
        SandboxConfig(cpus=0)


# The parts


def test_a_walk_counts_blocks_and_names_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/f").write_bytes(b"x" * 100_000)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "closed").mkdir(mode=0)
    found = walk([tmp_path, tmp_path / "missing"])
    assert found.files == 5 and 100_000 <= found.bytes <= 140_000
    disk = Disk([tmp_path])
    (tmp_path / "new").write_bytes(b"y" * 50_000)
    assert disk.measure(()).files == 1 and 50_000 <= disk.now.bytes < 70_000


def test_a_walk_ends_where_more_than_enough_is_there(tmp_path: Path) -> None:
    disk = Disk([tmp_path])
    for number in range(100):
        (tmp_path / str(number)).write_bytes(b"x" * 50_000)
    assert disk.measure((), enough_files=10).files == 11
    assert 100_000 < disk.measure((), enough_bytes=100_000).bytes < 250_000
    assert disk.measure((), enough_files=100, enough_bytes=1 << 30).files == 100


def test_a_walk_that_had_to_wait_for_its_cpu_does_not_put_off_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcjet.sandbox.supervisor.DISK_TICK_S", 0.1)
    meter, looks = Meter(Limits(), Disk([tmp_path])), []

    def starved(_pids: object) -> None:
        looks.append(time.monotonic())
        time.sleep(0.5)

    monkeypatch.setattr(meter, "look_at_disk", starved)
    watched = Watched(meter, measure=lambda: Usage(0, (2**22 + 1,)), kill=lambda: False, written=True)
    watcher = Supervisor()
    watcher.watch(watched)
    wait_for(lambda: len(looks) >= 3, timeout_s=15)  # paced by the clock, the third would come after 21 s
    watcher.forget(watched)


def test_removed_files_are_found_by_their_descriptors(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.write(b"x" * 100_000)
        file.flush()
        (tmp_path / "f").unlink()
        memory = os.memfd_create("test")
        os.write(memory, b"x" * 50_000)
        found = removed_but_open([os.getpid()])
        os.close(memory)
    assert found.bytes >= 100_000 and found.memory_bytes >= 50_000 and found.files >= 1


def test_cpu_seconds_grow() -> None:
    begin, before = time.process_time(), cpu_seconds(os.getpid(), ())
    while time.process_time() - begin < 0.1:
        pass
    assert 0.05 <= cpu_seconds(os.getpid(), ()) - before < 5
    assert cpu_seconds(2**22 + 1, ()) == 0


V1_MOUNTS = """
30 24 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 24 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
""".strip()
V1_OWN = "4:memory:/slurm/uid_7/job_1/step_0\n2:cpu,cpuacct:/slurm\n1:name=systemd:/x\n0::/"


def test_the_own_cgroups_are_read_from_proc() -> None:
    found = {name: str(path) for name, path in own_folders(V1_OWN, V1_MOUNTS).items()}
    assert found == {
        "cpu": "/sys/fs/cgroup/cpu,cpuacct/slurm",
        "memory": "/sys/fs/cgroup/memory/slurm/uid_7/job_1/step_0",
        "": "/sys/fs/cgroup/unified",
    }
    inside = "35 24 0:29 /system.slice/job_3 /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw"
    assert own_folders("0::/system.slice/job_3/step", inside) == {"": Path("/sys/fs/cgroup/step")}


def test_settings_of_both_versions() -> None:
    limits = Limits(memory_bytes=1 << 30, processes=100, cpus=2)
    assert settings(2, limits) == {
        "memory": {"memory.max": "1342177280", "memory.swap.max": "0"},
        "pids": {"pids.max": "200"},
        "cpu": {"cpu.max": "200000 100000"},
    }
    assert settings(1, limits)["cpu"] == {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "200000"}
    assert not any(settings(2, Limits(memory_bytes=None, processes=None)).values())


def test_a_wrong_cgroup_is_named(place: Path) -> None:
    config = SandboxConfig(cgroup=place, scratch=place)
    with pytest.raises(SandboxError, match=r"sandbox\.cgroup=.*cannot hold sandboxes.*or leave it out"):
        open_sandbox(config, SandboxSpec(scratch=place / "s"))


def test_without_a_delegation_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/somewhere\n")
    (tmp_path / "mountinfo").write_text("35 24 0:29 / /no/such/folder rw - cgroup2 cgroup rw\n")
    assert find_delegation(None, proc=tmp_path) is None
    assert new_group(None, Limits(), ()) is None


@pytest.fixture
def delegated() -> SandboxConfig:
    """The cgroups of this process, where it may make others: as root, and where a site delegates them."""
    if find_delegation(None) is None:
        pytest.skip("no cgroup is delegated to this process")
    config = SandboxConfig()
    assert probe(config).limits.startswith("cgroup v")
    return config


def test_a_cgroup_holds_the_memory_between_two_looks_of_the_watchdog(delegated: SandboxConfig, place: Path) -> None:
    if "memory" not in probe(delegated).limits:
        pytest.skip("the memory controller is not delegated")
    limits = Limits(memory_bytes=100 << 20)
    with open_sandbox(delegated, SandboxSpec(scratch=place / "s", limits=limits)) as box:
        inside = Path(f"/proc/{processes_below(box)[0]}/cgroup").read_text()
        assert "hpcjet-sandbox-" in inside
        done = box.run("/usr/bin/python3 -c 'bytearray(b\"1\" * (300 << 20))'", timeout_s=LONG_S)
        assert (done.limit, done.returncode) == ("memory", 137)
        assert box.run("echo usable", timeout_s=LONG_S).limit == ""
    left = [line.split(":")[2] for line in inside.splitlines() if "hpcjet-sandbox-" in line]
    assert left and not [path for path in left if list(Path("/sys/fs/cgroup").glob(f"*{path}"))]


def test_a_killed_owner_leaves_cgroups_that_are_swept(delegated: SandboxConfig) -> None:
    from hpcjet.sandbox.cgroup import NAME, sweep

    found = find_delegation(None)
    assert found
    left = found.folders[0][1] / f"{NAME}{2**22 + 1}-0"
    left.mkdir()
    sweep(found)
    assert not left.exists()
