"""Opening an attempt's sandbox with its tree, many at the same moment: ready, in the usual way, and as others do.

Called by sandbox.py. Times count from the one moment at which all ask, so they hold the waiting for each other: `open`
until the sandbox is there, `first` until its first command (`test -e` of a file of the tree) has ended.
"""

import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from hpcjet.sandbox import ReadySandboxes, Sandbox, SandboxConfig, SandboxSpec, View, open_sandbox, probe

Row = dict[str, Any]
_names = count()


def spec_of(base: Path, tree: Path) -> SandboxSpec:
    scratch = base / f"o{os.getpid()}-{next(_names)}"
    return SandboxSpec(scratch=scratch, view=View(lowers=(tree,), at="/testbed"), cwd="/testbed")


def measure_openings(
    base: Path, tree: Path, file: str, *, peers: Path | None, at: list[int], rounds: int, say: Callable[[Row], None]
) -> None:
    """The ways take turns round by round, so that other work on the machine meets all of them."""
    config = SandboxConfig()
    for num in at:
        with ReadySandboxes(config, spec_of(base, tree), folder=base / f"ready{num}", num=num) as ready:
            ways: dict[str, Callable[[], tuple[Callable[[], Any], Callable[[Any], Any]]]] = {
                "ready": lambda: _ours(base, tree, file, ready),
                "cold": lambda: _ours(base, tree, file, None),
            }
            if peers is not None:
                ways["peer: bash in bwrap with overlay"] = lambda: _peer(base, tree, file, peers)
            found: dict[str, dict[str, list[list[float]]]] = {name: {"open": [], "first": []} for name in ways}
            cpu: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(max(rounds, 16 // num)):
                for name, way in ways.items():
                    open_one, first = way()
                    begin = cpu_s()
                    for key, use in (("open", lambda _: None), ("first", first)):
                        if name == "ready":
                            assert ready.wait(120) == num
                        time.sleep(0.3)  # what the last ones left is cleaned up
                        if key == "first" or not name.startswith("peer"):
                            found[name][key].append(burst(open_one, use, num=num))
                    cpu[name].append((cpu_s() - begin) / num / sum(bool(kept) for kept in found[name].values()))
        for name, times in found.items():
            say(row_of(name, num, times) | {"cpu_ms_each": round(statistics.median(cpu[name]) * 1e3, 1)})
        with ReadySandboxes(config, spec_of(base, tree), folder=base / f"flow{num}", num=4) as ready:
            if num >= 8:
                assert ready.wait(120) == 4
                say(flow(base, tree, ready, living=num))


def row_of(name: str, num: int, times: dict[str, list[list[float]]]) -> Row:
    """Median and best of the rounds; the percentiles are taken within a round, over all that asked at once."""
    row: Row = {"what": "open", "way": name, "at_once": num}
    for key, rounds in times.items():
        for percent in (50, 95):
            each = [percentile(values, percent) * 1e3 for values in rounds]
            if each:
                row[f"{key}_p{percent}_ms"] = round(statistics.median(each), 1)
                row[f"{key}_p{percent}_best"] = round(min(each), 1)
    return row


def _ours(
    base: Path, tree: Path, file: str, ready: ReadySandboxes | None
) -> tuple[Callable[[], Sandbox], Callable[[Sandbox], Any]]:
    config = SandboxConfig()

    def first(box: Sandbox) -> None:
        assert box.run(f"test -e {file}", timeout_s=60).returncode == 0

    return lambda: open_sandbox(config, spec_of(base, tree), ready=ready), first


def _peer(base: Path, tree: Path, file: str, peers: Path) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """bwrap with the overlay, and a bash that waits for commands; it is known to be there after its first."""
    if str(peers) not in sys.path:
        sys.path.insert(0, str(peers))
    from sandboxes import PersistentShell, overlaid  # type: ignore[import-not-found]

    bwrap = str(probe(SandboxConfig()).bwrap)

    def first(shell: Any) -> None:
        assert shell.run(f"test -e {file}")[0] == 0

    return lambda: PersistentShell(overlaid(bwrap, tree, base / f"peer{next(_names)}")), first


def burst(open_one: Callable[[], Any], use: Callable[[Any], Any], *, num: int) -> list[float]:
    """`num` threads ask at the same moment; seconds from it until each has opened and used its own."""
    moment = [0.0]
    gate = threading.Barrier(num, action=lambda: moment.__setitem__(0, time.perf_counter()))
    times, boxes = [0.0] * num, [None] * num

    def ask(index: int) -> None:
        gate.wait()
        boxes[index] = open_one()
        use(boxes[index])
        times[index] = time.perf_counter() - moment[0]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for box in boxes:
        box.close()  # type: ignore[attr-defined]
    return times


def flow(base: Path, tree: Path, ready: ReadySandboxes, *, living: int, openers: int = 2) -> Row:
    """The other reading: `living` sandboxes stay open, each new one in the place of the oldest, `openers` at a time."""
    config = SandboxConfig()
    boxes: list[Sandbox] = [open_sandbox(config, spec_of(base, tree)) for _ in range(living)]
    lock, times = threading.Lock(), list[float]()

    def work() -> None:
        for _ in range(living):
            with lock:
                oldest = boxes.pop(0)
            oldest.close()
            begin = time.perf_counter()
            box = open_sandbox(config, spec_of(base, tree), ready=ready)
            times.append(time.perf_counter() - begin)
            box.run("true", timeout_s=60)
            with lock:
                boxes.append(box)

    threads = [threading.Thread(target=work) for _ in range(openers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for box in boxes:
        box.close()
    row: Row = {"what": "open", "way": f"flow, {openers} openers, 4 ready", "living": living}
    return row | {f"open_p{percent}_ms": round(percentile(times, percent) * 1e3, 1) for percent in (50, 95)}


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[max(1, -(-len(ordered) * int(percent) // 100)) - 1]


def cpu_s() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
