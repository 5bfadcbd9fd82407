"""What must hold on NFS, run by test_nfs.py within the guest of guest.sh: prints {scenario: traceback or ""} as JSON.

A process on a "node" has that node's mount, host name and process ids: nothing but the file system connects them.
"""

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path

from hpcjet import runlock
from hpcjet.errors import BusyError, StoreError
from hpcjet.runlock import RunLock, holder
from hpcjet.swe.record import Record
from hpcjet.swe.store import ResultStore
from hpcjet.tasks.room import Keep
from hpcjet.tasks.shelf import Shelf
from hpcjet.tasks.verdict import Verdict

NODES = {"node-a": Path(os.environ.get("NODE_A", "")), "node-b": Path(os.environ.get("NODE_B", ""))}
A, B = NODES.values()


def record(name: str, **changes: str) -> Record:
    return Record(instance_id=name, attempt=0, verdict=Verdict.failed, **changes)  # type: ignore[arg-type]


def on(node: str, job: str, *arguments: object) -> subprocess.Popen[str]:
    """Start one of the JOBS in a process of `node`; it is killed with the process that is returned."""
    own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]
    enter = ["sh", "-c", 'hostname "$0" && exec "$@"', node]
    command = [*own, *enter, sys.executable, __file__, job, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> list[str]:
    """Kill a job; what it still said."""
    process.kill()
    return process.communicate()[0].split()


def write(folder: str, name: str, count: str) -> None:
    """A job: add records and acknowledge each."""
    with ResultStore(Path(folder)).writer(name) as writer:
        for number in range(int(count)):
            writer.add(record(f"{name}-{number}", detail="x" * 2000))
            print(f"{name}-{number}", flush=True)


def hold(run_dir: str, heartbeat_s: str, stale_s: str, hold_s: str, start: str = "0") -> None:
    """A job: take the lock, or say who has it."""
    runlock._boot_id = socket.gethostname  # as on another machine, where nobody can see whether the process lives
    time.sleep(max(0.0, float(start) - time.time()))
    try:
        with RunLock(Path(run_dir), heartbeat_s=float(heartbeat_s), stale_s=float(stale_s)):
            print("held", flush=True)
            time.sleep(float(hold_s))
    except BusyError as error:
        print(error, flush=True)


def share(shelf: str, work_s: str) -> None:
    """A job: make a tree for all nodes, or unpack it; say which, then what it holds."""
    runlock._boot_id = socket.gethostname
    with tempfile.TemporaryDirectory() as place:
        layer = Path(place)
        with Shelf(Path(shelf), Keep(free_bytes=0)).turn("pack", layer, timeout_s=300) as found:
            print("found" if found else "making", flush=True)
            if not found:
                time.sleep(float(work_s))
                for folder in ("tree", "git"):
                    (layer / folder).mkdir()
                (layer / "tree/file").write_bytes(random.Random(3).randbytes(3_000_000))
                os.utime(layer / "tree/file", ns=(10**18 + 7, 10**18 + 7))
                (layer / "layer.json").write_text("{}")
                Shelf(Path(shelf), Keep(free_bytes=0)).put("pack", layer)
        file = layer / "tree/file"
        print(zlib.crc32(file.read_bytes()), file.stat().st_mtime_ns, flush=True)


JOBS: dict[str, Callable[..., None]] = {"write": write, "hold": hold, "share": share}


def two_writers_lose_nothing() -> None:
    jobs = [on(node, "write", mount / "two", node, 150) for node, mount in NODES.items()]
    said = {name for job in jobs for name in job.communicate()[0].split()}
    assert len(said) == 300
    for mount in NODES.values():
        index = ResultStore(mount / "two").index()
        assert {each.instance_id for each in index.records()} == said
        assert index.problems == [] and index.duplicates == 0


def reader_on_the_other_node_sees_each_result_at_once() -> None:
    reader = ResultStore(B / "see")
    assert len(reader.index()) == 0
    with ResultStore(A / "see").writer("node-a") as first, ResultStore(A / "see").writer("node-a") as second:
        for number in range(10):
            (first, second)[number > 4].add(record(f"task-{number}"))
            assert len(reader.index()) == number + 1, f"{len(reader.index())} seen of {number + 1}"


def kill_loses_nothing_acknowledged() -> None:
    moments, said = random.Random(7), set()
    for life in range(6):
        job = on("node-a", "write", A / "kill", f"life{life}", 10**9)
        said.add(line_of(job))
        time.sleep(moments.uniform(0, 0.5))
        said |= set(end(job))
    index = ResultStore(B / "kill").index()
    there = {each.instance_id for each in index.records()}
    assert len(said) > 6 and said <= there and len(there - said) <= 6 and index.duplicates == 0


def full_server_corrupts_nothing_and_heals() -> None:
    store = ResultStore(A / "full")
    writer, filler = store.writer("node-a"), A / "filler"
    writer.add(record("task-0"))
    try:
        fill(filler)
        safe, message = 1, ""
        while not message and safe < 1000:
            try:
                writer.add(record(f"task-{safe}", detail="x" * 5000))
                safe += 1
            except StoreError as error:
                message = str(error)
        assert "No space left on device" in message and f"results safe there: {safe};" in message, message
        check_full(safe)
    finally:
        filler.unlink()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            writer.add(record(f"task-{safe}"))
            break
        except StoreError:
            time.sleep(0.2)
    check_full(safe + 1)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 20))
                os.fsync(file.fileno())
        except OSError:
            pass


def check_full(safe: int) -> None:
    """Every acknowledged record is there. A full server may refuse to cut the half line off: readers pass over it."""
    seen = ResultStore(B / "full").index()
    assert len(seen) == safe and len(seen.problems) <= 1, seen
    assert all("unfinished last line" in each.reason for each in seen.problems), seen.problems


def restart_of_the_server_loses_nothing() -> None:
    jobs = [on(node, "write", mount / "restart", node, 200) for node, mount in NODES.items()]
    said = {line_of(job) for job in jobs}
    nfsd = ["rpc.nfsd", "--no-nfs-version", "3", "--nfs-version", "4"]
    subprocess.run([*nfsd, "0"], check=True)
    time.sleep(1)
    subprocess.run([*nfsd, "4"], check=True)
    Path("/proc/fs/nfsd/v4_end_grace").write_text("Y")
    said |= {name for job in jobs for name in job.communicate()[0].split()}
    assert len(said) == 400
    for mount in NODES.values():
        index = ResultStore(mount / "restart").index()
        assert {each.instance_id for each in index.records()} == said and index.problems == []


def lock_keeps_the_other_node_out() -> None:
    (A / "out").mkdir()
    assert holder(B / "out") is None
    job = on("node-a", "hold", A / "out", 0.3, 6, 300)
    try:
        assert line_of(job) == "held"
        for _ in range(2):
            refused = line_of(on("node-b", "hold", B / "out", 0.3, 6, 0))
            assert " in use by " in refused and " on node-a (pid 1)" in refused, refused
            time.sleep(8)  # longer than the limit: signs of life must come through
    finally:
        end(job)


def released_lock_is_free_for_the_other_node() -> None:
    (A / "free").mkdir()
    for node, mount in [*NODES.items()] * 2:
        job = on(node, "hold", mount / "free", 0.3, 60, 0)
        assert job.communicate()[0] == "held\n"


def race_has_one_winner() -> None:
    for number in range(3):
        (A / f"race{number}").mkdir()
        check_race(f"race{number}", stale_s=60)


def takeover_has_one_winner() -> None:
    (A / "take").mkdir()
    job = on("node-a", "hold", A / "take", 0.3, 60, 60)
    assert line_of(job) == "held"
    end(job)
    refused = line_of(on("node-b", "hold", B / "take", 0.3, 60, 0))
    assert " on node-a " in refused, refused
    time.sleep(6.5)
    check_race("take", stale_s=6)


def check_race(name: str, *, stale_s: float) -> None:
    start = time.time() + 4
    jobs = [on(node, "hold", mount / name, 0.3, stale_s, 300, start) for node, mount in NODES.items() for _ in range(3)]
    said = [line_of(job) for job in jobs]
    for job in jobs:
        end(job)
    assert said.count("held") == 1 and sum(" in use by " in each for each in said) == len(jobs) - 1, said


def one_node_builds_a_tree_for_both() -> None:
    assert not (B / "shelf/pack.tar.gz").exists()  # and so node-b may believe for a while
    first = on("node-a", "share", A / "shelf", 3)
    assert line_of(first) == "making"
    others = [on("node-b", "share", B / "shelf", 0) for _ in range(2)]
    wanted = first.communicate()[0].split()
    for other in others:
        said = other.communicate()[0].split()
        assert said == ["found", *wanted], said


SCENARIOS = (
    two_writers_lose_nothing,
    reader_on_the_other_node_sees_each_result_at_once,
    kill_loses_nothing_acknowledged,
    full_server_corrupts_nothing_and_heals,
    restart_of_the_server_loses_nothing,
    lock_keeps_the_other_node_out,
    released_lock_is_free_for_the_other_node,
    race_has_one_winner,
    takeover_has_one_winner,
    one_node_builds_a_tree_for_both,
)


def outcome(scenario: Callable[[], None]) -> str:
    try:
        scenario()
    except Exception:  # whatever it is goes into the test's report
        return traceback.format_exc()
    return ""


def main() -> None:
    if len(sys.argv) > 1:
        JOBS[sys.argv[1]](*sys.argv[2:])
        return
    for scenario in SCENARIOS:
        begin = time.monotonic()
        failed = outcome(scenario)
        print(
            json.dumps({"scenario": scenario.__name__, "failed": failed, "seconds": time.monotonic() - begin}),
            flush=True,
        )


if __name__ == "__main__":
    main()
