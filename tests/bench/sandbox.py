"""Times of a sandbox: open, one command, close; and bare bubblewrap per command and no sandbox beside it.

    python tests/bench/sandbox.py [--at 1 8 64] [--rounds 5] [--bwrap PATH]

Prints one JSON object per line; times in milliseconds, CPU in milliseconds per command, or per sandbox with its ten
commands (in the line of its close). Started as root, it
becomes the unprivileged user 60999 first.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.sandbox import SandboxSpec, View, open_sandbox, probe
from hpcjet.sandbox.bwrap import Runtime, system_links
from hpcjet.sandbox.options import Layout, render_options

COMMANDS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bwrap", type=Path)
    arguments = parser.parse_args()
    become_ordinary()
    config = SandboxConfig(bwrap=arguments.bwrap)
    found = probe(config)
    print(
        json.dumps({"bwrap": str(found.bwrap), "version": found.version, "overlay": found.overlay, "why": found.reason})
    )
    assert found.runtime is not None
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        make_tree(base / "tree")
        for num in arguments.at:
            rounds = max(arguments.rounds, 20 // num)
            living(config, base, num=num, rounds=rounds)
            peer("bare_bwrap", bare_bwrap(found.runtime, base), num=num, rounds=rounds)
            peer("no_sandbox", lambda: run(["bash", "-c", "true"]), num=num, rounds=rounds)


def become_ordinary(uid: int = 60_999) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)


def make_tree(tree: Path, num: int = 500) -> None:
    for index in range(num):
        path = tree / f"package{index % 20}" / f"module{index}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")


def living(config: SandboxConfig, base: Path, *, num: int, rounds: int) -> None:
    """One sandbox per thread, `num` at once: all open, run their commands and close, `rounds` times."""
    times: dict[str, list[float]] = {"open": [], "command": [], "close": []}
    before = cpu_s()
    for round_ in range(rounds):
        boxes = [None] * num
        steps: dict[str, Callable[[int], object]] = {
            "open": lambda i, r=round_, b=boxes: b.__setitem__(
                i,
                open_sandbox(
                    config, SandboxSpec(scratch=base / f"s{r}-{i}", view=View(lowers=(base / "tree",), at="/testbed"))
                ),
            ),
            "command": lambda i, b=boxes: b[i].run("true", timeout_s=60),
            "close": lambda i, b=boxes: b[i].close(),
        }
        for name, step in steps.items():
            repeats = COMMANDS if name == "command" else 1
            at_once(step, num=num, repeats=repeats, times=times[name])
    # Of all steps together: the processes of a sandbox are counted when it has been closed.
    cpu = (cpu_s() - before) / num / rounds
    for name, found in times.items():
        report("living", name, num, found, cpu if name == "close" else None)


def bare_bwrap(runtime: Runtime, base: Path) -> Callable[[], None]:
    layout = Layout(base / "bare", runtime.etc)
    for folder in (layout.io, layout.tmp, layout.home):
        folder.mkdir(parents=True, exist_ok=True)
    options = render_options(SandboxSpec(scratch=layout.scratch), layout, runtime.features, links=system_links())
    argv = [str(runtime.bwrap), *options, "--", str(runtime.shell), "-c", "true"]
    return lambda: run(argv)


def run(argv: list[str]) -> None:
    subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)


def peer(name: str, call: Callable[[], None], *, num: int, rounds: int) -> None:
    times: list[float] = []
    before = cpu_s()
    at_once(lambda _: call(), num=num, repeats=rounds, times=times)
    report(name, "command", num, times, (cpu_s() - before) / len(times))


def at_once(step: Callable[[int], object], *, num: int, repeats: int, times: list[float]) -> None:
    gate = threading.Barrier(num)

    def work(index: int) -> None:
        gate.wait()
        for _ in range(repeats):
            begin = time.perf_counter()
            step(index)
            times.append(time.perf_counter() - begin)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def cpu_s() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def report(how: str, step: str, num: int, times: list[float], cpu: float | None) -> None:
    times.sort()
    p95 = times[min(len(times) - 1, int(0.95 * len(times)))]
    row: dict[str, object] = {"how": how, "step": step, "at_once": num}
    row |= {"p50_ms": round(statistics.median(times) * 1e3, 2), "p95_ms": round(p95 * 1e3, 2)}
    if cpu is not None:
        row["cpu_ms"] = round(cpu * 1e3, 2)
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
