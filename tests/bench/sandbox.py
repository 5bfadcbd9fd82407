"""Times and memory of sandboxes, and beside them, in the same run, what others do: mini-swe-agent's bubblewrap
environment and bare bubblewrap, which start a new sandbox for each command, and no sandbox at all.

    python tests/bench/sandbox.py [--at 1 8 64] [--rounds 5] [--kind bwrap userns process] [--idle 1000] [--bwrap PATH]
    python tests/bench/sandbox.py --peers DIR [--tree DIR] [--tree-file NAME] [--only commands openings idle batches]

The second form runs everything beside the peers' scripts in DIR (`sandboxes.py`, `batch.py`), and ends with a table:
later commands, opening a sandbox on a tree (openings.py), 1,000 idle ones, a batch (batches.py). `--tree` is a built
source tree that user 60999 may read; without it one of 500 small files is made.

Prints one JSON object per line; times in milliseconds, CPU in milliseconds per command, or per sandbox with its ten
commands (in the line of its close). `of_mini`: a later command as a part of mini-swe-agent's. `idle`: memory of open
sandboxes that do nothing, by the proportional set size of all their processes and by what the machine has less
(`kernel_kb`: page tables, stacks and slabs). Started as root, it becomes the unprivileged user 60999 first.
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

from hpcjet.config.sandbox import SandboxConfig, SandboxKind
from hpcjet.sandbox import Sandbox, SandboxSpec, View, open_sandbox, probe, processes
from hpcjet.sandbox.bwrap import BwrapBackend, system_links
from hpcjet.sandbox.options import Layout, render_options

COMMANDS = 10
ORDINARY_UID = 60_999
PARTS = ["commands", "openings", "idle", "batches"]
_rows: list[dict[str, object]] = []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kind", nargs="+", default=["bwrap"], choices=["bwrap", "userns", "process"])
    parser.add_argument("--idle", type=int, default=0, metavar="N", help="open N sandboxes and count their memory")
    parser.add_argument("--bwrap", type=Path)
    parser.add_argument("--peers", type=Path, metavar="DIR", help="the peers' scripts: run everything beside them")
    parser.add_argument("--tree", type=Path, help="with --peers: a built source tree")
    parser.add_argument("--tree-file", default="configure", help="a file at its top")
    parser.add_argument("--only", nargs="+", default=PARTS, choices=PARTS, help="with --peers")
    arguments = parser.parse_args()
    if arguments.peers:
        from batches import hand_over, own_cgroup

        cgroup = own_cgroup()
        try:
            # A child, because somebody must remove the cgroup who may.
            if cgroup is None or not (child := os.fork()):
                if cgroup is not None:
                    hand_over(cgroup, ORDINARY_UID)
                become_ordinary()
                beside_peers(arguments, cgroup)
                return
            raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        finally:
            if cgroup is not None and os.geteuid() == 0:
                cgroup.rmdir()
    become_ordinary()
    configs = {
        kind: SandboxConfig(kind=SandboxKind(kind), bwrap=arguments.bwrap if kind == "bwrap" else None)
        for kind in arguments.kind
    }
    for config in configs.values():
        show_probe(config)
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        make_tree(base / "tree")
        for num in arguments.at:
            rounds = max(arguments.rounds, 20 // num)
            for kind, config in configs.items():
                living(kind, config, base, num=num, rounds=rounds)
            side_by_side(configs, base, num=num, rounds=rounds)
        for kind, config in configs.items():
            if arguments.idle:
                idle(kind, config, base, num=arguments.idle)


def beside_peers(arguments: argparse.Namespace, cgroup: Path | None) -> None:
    """Everything in one run, and a table of it."""
    from batches import measure_batches
    from openings import measure_openings

    config = SandboxConfig()
    show_probe(config)
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        os.environ.update(MSWEA_SILENT_STARTUP="1", MSWEA_GLOBAL_CONFIG_DIR=name, LITELLM_LOCAL_MODEL_COST_MAP="True")
        make_tree(base / "tree")
        tree, file = (arguments.tree, arguments.tree_file) if arguments.tree else (base / "tree", "package0")
        say({"what": "machine", "cores": os.cpu_count(), "load": os.getloadavg()[0]})
        for num in arguments.at if "commands" in arguments.only else []:
            side_by_side({"bwrap": config}, base, num=num, rounds=max(arguments.rounds, 20 // num))
        if "openings" in arguments.only:
            measure_openings(base, tree, file, peers=arguments.peers, at=arguments.at, rounds=arguments.rounds, say=say)
        if "idle" in arguments.only:
            idle("bwrap", config, base, num=arguments.idle or 1000)
        if "batches" in arguments.only:
            measure_batches(
                base,
                tree,
                peers=arguments.peers,
                tasks=200,
                steps=10,
                rounds=min(3, arguments.rounds),
                cgroup=cgroup,
                say=say,
            )
        say({"what": "machine", "cores": os.cpu_count(), "load": os.getloadavg()[0]})
    print_table(_rows)


def say(row: dict[str, object]) -> None:
    _rows.append(row)
    print(json.dumps(row), flush=True)


def print_table(rows: list[dict[str, object]]) -> None:
    """What was measured, one line each: what and how, then the figures."""
    print()
    for row in rows:
        left = " ".join(str(row[key]) for key in ("what", "step", "way", "how") if key in row)
        right = "  ".join(f"{key} {value}" for key, value in row.items() if key not in ("what", "step", "way", "how"))
        print(f"{left:48} {right}")


def show_probe(config: SandboxConfig) -> None:
    found = probe(config)
    assert found.runtime is not None, found.reason
    facts = {"kind": found.kind, "version": found.version, "overlay": found.overlay, "seccomp": found.seccomp}
    print(json.dumps({**facts, "limits": found.limits, "why": found.reason}))


def side_by_side(configs: dict[str, SandboxConfig], base: Path, *, num: int, rounds: int) -> None:
    """One command each way, `num` at once. The ways take turns, so that other work on the machine meets all of them."""
    boxes = {kind: [open_on(config, base, f"{kind}-{i}") for i in range(num)] for kind, config in configs.items()}
    ways: dict[str, Callable[[int], object]] = {
        f"living_{kind}": lambda i, found=found: found[i].run("true", timeout_s=60) for kind, found in boxes.items()
    }
    ways["bare_bwrap"] = bare_bwrap(base)
    ways["no_sandbox"] = lambda _: run(["bash", "-c", "true"])
    mini = mini_bubblewrap(base)
    if mini is not None:
        ways["mini_bubblewrap"] = mini
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            at_once(way, num=num, repeats=COMMANDS, times=times[name])
    for found in boxes.values():
        for box in found:
            box.close()
    of = statistics.median(times.get("mini_bubblewrap") or [float("nan")])
    for name, found in times.items():
        report(name, "later command", num, found, None, of_mini=round(statistics.median(found) / of, 3))


def open_on(config: SandboxConfig, base: Path, name: str) -> Sandbox:
    spec = SandboxSpec(scratch=base / name, view=View(lowers=(base / "tree",), at="/testbed"), cwd="/testbed")
    return open_sandbox(config, spec)


def mini_bubblewrap(base: Path) -> Callable[[int], None] | None:
    """mini-swe-agent's own environment, with the bubblewrap that we use."""
    os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
    os.environ.setdefault("MSWEA_GLOBAL_CONFIG_DIR", str(base))
    try:
        from minisweagent.environments.extra.bubblewrap import BubblewrapEnvironment
    except ImportError:
        return None
    found = probe(SandboxConfig(kind=SandboxKind.bwrap))
    work = base / "mini"
    work.mkdir(exist_ok=True)
    environment = BubblewrapEnvironment(executable=str(found.bwrap), cwd=str(work))

    def call(_: int) -> None:
        answer = environment.execute({"command": "true"})
        assert answer["returncode"] == 0, answer

    return call


def idle(kind: str, config: SandboxConfig, base: Path, *, num: int) -> None:
    """Memory per open sandbox that has run one command."""
    before, begin = memory_kb(), time.perf_counter()
    boxes = []
    for index in range(num):
        boxes.append(open_on(config, base, f"idle{index}"))
        boxes[-1].run("true", timeout_s=60)
    opened_s = time.perf_counter() - begin
    time.sleep(2)
    after = memory_kb()
    pids = [os.getpid(), *processes.descendants(os.getpid())]
    sizes = {pid: pss_kb(pid) for pid in pids}
    own = sizes.pop(os.getpid())
    cpu = cpu_s()
    time.sleep(5)
    row = {"how": f"living_{kind}", "step": "idle", "open": num, "opened_s": round(opened_s, 1)}
    row |= {
        "pss_kb": round(sum(sizes.values()) / num),
        "processes": round(len(sizes) / num, 2),
        "runner_mb": own // 1024,
    }
    row |= {"kernel_kb": round((after["kernel"] - before["kernel"]) / num)}
    row |= {"watch_cpu_percent": round((cpu_s() - cpu) / 5 * 100, 1)}
    say(row)
    for box in boxes:
        box.close()


def pss_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def memory_kb() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    found = {words[0].rstrip(":"): int(words[1]) for words in lines}
    return {"kernel": found["Slab"] + found["PageTables"] + found["KernelStack"] + found.get("Percpu", 0)}


def become_ordinary(uid: int = ORDINARY_UID) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)


def make_tree(tree: Path, num: int = 500) -> None:
    for index in range(num):
        path = tree / f"package{index % 20}" / f"module{index}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")


def living(kind: str, config: SandboxConfig, base: Path, *, num: int, rounds: int) -> None:
    """One sandbox per thread, `num` at once: all open, run their commands and close, `rounds` times."""
    times: dict[str, list[float]] = {"open": [], "command": [], "close": []}
    before = cpu_s()
    for round_ in range(rounds):
        boxes = [None] * num
        steps: dict[str, Callable[[int], object]] = {
            "open": lambda i, r=round_, b=boxes: b.__setitem__(
                i,
                open_sandbox(
                    config,
                    SandboxSpec(scratch=base / f"{kind}{r}-{i}", view=View(lowers=(base / "tree",), at="/testbed")),
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
        report(f"living_{kind}", name, num, found, cpu if name == "close" else None)


def bare_bwrap(base: Path) -> Callable[[int], None]:
    backend = probe(SandboxConfig(kind=SandboxKind.bwrap)).runtime
    assert isinstance(backend, BwrapBackend)
    layout = Layout(base / "bare", backend.node.etc)
    for folder in (layout.io, layout.tmp, layout.home):
        folder.mkdir(parents=True, exist_ok=True)
    options = render_options(SandboxSpec(scratch=layout.scratch), layout, backend.features, links=system_links())
    argv = [str(backend.bwrap), *options, "--", str(backend.node.shell), "-c", "true"]
    return lambda _: run(argv)


def run(argv: list[str]) -> None:
    subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)


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


def report(how: str, step: str, num: int, times: list[float], cpu: float | None, **more: float) -> None:
    times.sort()
    p95 = times[min(len(times) - 1, int(0.95 * len(times)))]
    row: dict[str, object] = {"how": how, "step": step, "at_once": num}
    row |= {"p50_ms": round(statistics.median(times) * 1e3, 2), "p95_ms": round(p95 * 1e3, 2)}
    row |= more
    if cpu is not None:
        row["cpu_ms"] = round(cpu * 1e3, 2)
    say(row)


if __name__ == "__main__":
    main()
