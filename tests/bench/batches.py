"""A batch of attempts from nothing, as mini-swe-agent's own batch runner makes it and as hpcjet does.

Called by sandbox.py, which passes the folder with the peers' scripts; their `batch.py` runs mini's side. Ours: the same
agent class and deterministic model in threads, hpcjet's environment over a living sandbox with a tree, a trajectory
file and a durable record per attempt. Neither verifies anything. `written_kb`: what an attempt's folders take on disk.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
Row = dict[str, Any]


def measure_batches(
    base: Path,
    tree: Path,
    *,
    peers: Path,
    tasks: int,
    steps: int,
    rounds: int,
    cgroup: Path | None,
    say: Callable[[Row], None],
) -> None:
    """Rounds of both, in turn."""
    from hpcjet.sandbox import SandboxConfig, probe

    bwrap = str(probe(SandboxConfig()).bwrap)
    common = ["--bwrap", bwrap, "--tasks", str(tasks), "--steps", str(steps), "--parallel", "8"]
    ways = {
        "mini batch runner": [sys.executable, str(peers / "batch.py"), "--way", "mini batch runner"],
        "hpcjet": [sys.executable, __file__, "--peers", str(peers), "--tree", str(tree)],
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, argv in ways.items():
            with tempfile.TemporaryDirectory(dir=base) as out:
                found[name].append(_timed([*argv, *common, "--out", out], cgroup))
                done = [json.loads(path.read_text())["info"] for path in Path(out).glob("*/*.traj.json")]
                right = [info for info in done if (info["exit_status"], info["submission"]) == ("Submitted", "patch\n")]
                assert len(right) == tasks, f"{name}: {len(right)} of {tasks} attempts submitted"
                written = Path(out, "written")
                kb = float(written.read_text()) if written.exists() else None
    for name, all_rounds in found.items():
        walls, cpus = zip(*all_rounds, strict=True)
        row: Row = {"what": "batch", "way": name, "rounds": rounds, "tasks": tasks}
        row |= {"tasks_per_s": round(tasks / statistics.median(walls), 1), "best": round(tasks / min(walls), 1)}
        row |= {"cpu_by": "cgroup" if cgroup else "rusage"}
        row |= {"cpu_ms_per_task": round(statistics.median(cpus) / tasks * 1e3, 1)}
        say(row | ({"written_kb": kb} if name == "hpcjet" else {}))
    ratios = [mini[0] / ours[0] for mini, ours in zip(found["mini batch runner"], found["hpcjet"], strict=True)]
    cpu = [ours[1] / mini[1] for mini, ours in zip(found["mini batch runner"], found["hpcjet"], strict=True)]
    say({"what": "batch", "way": "hpcjet by mini", "tasks_per_s_x": round(statistics.median(ratios), 2),
         "cpu_x": round(statistics.median(cpu), 2)})  # fmt: skip


def own_cgroup() -> Path | None:
    """As root: a cgroup that counts CPU, to be given to the user who measures. rusage misses whom nobody waits for."""
    top = next(
        (top for top in (Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup")) if cpu_file(top).exists()), None
    )
    if os.geteuid() != 0 or top is None:
        return None
    folder = top / f"hpcjet-bench-{os.getpid()}"
    folder.mkdir()
    return folder


def hand_over(folder: Path, uid: int) -> None:
    for path in (folder, folder / "cgroup.procs"):
        os.chown(path, uid, uid)


def cpu_file(folder: Path) -> Path:
    usage = folder / "cpuacct.usage"
    return usage if usage.exists() else folder / "cpu.stat"


def cgroup_cpu_s(folder: Path) -> float:
    file = cpu_file(folder)
    if file.name == "cpuacct.usage":
        return int(file.read_text()) / 1e9
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith("usage_usec")) / 1e6


def _timed(argv: list[str], cgroup: Path | None) -> tuple[float, float]:
    """Seconds of wall and CPU of a process with all below it; without a cgroup, with all that it waited for."""
    if cgroup is not None:
        argv = ["bash", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(cgroup), *argv]

    def spent() -> float:
        return cgroup_cpu_s(cgroup) if cgroup else sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])

    before, begin = spent(), time.perf_counter()
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    wall_s = time.perf_counter() - begin
    assert done.returncode == 0, done.stdout.decode()[-2000:]
    return wall_s, spent() - before


def ours(out: Path, tree: Path, *, tasks: int, steps: int, parallel: int) -> None:
    """Our side, in a process of its own."""
    from batch import agent_config, model_config  # type: ignore[import-not-found]
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.models.test_models import DeterministicModel

    from hpcjet.sandbox import ReadySandboxes, SandboxConfig, SandboxSpec, View, open_sandbox
    from hpcjet.swe.record import Record
    from hpcjet.swe.scaffold.meter import Meter
    from hpcjet.swe.scaffold.mini_environment import SandboxEnvironment
    from hpcjet.swe.scaffold.settings import ScaffoldSettings
    from hpcjet.swe.store import ResultStore
    from hpcjet.tasks.verdict import Verdict

    config, settings = SandboxConfig(), ScaffoldSettings()
    written: list[int] = []

    def spec(name: str) -> SandboxSpec:
        return SandboxSpec(scratch=out / name / "box", view=View(lowers=(tree,), at="/testbed"), cwd="/testbed")

    def attempt(name: str) -> None:
        with open_sandbox(config, spec(name), ready=ready) as box:
            environment = SandboxEnvironment(box, settings, meter=Meter(), deadline=time.monotonic() + 600)
            agent = DefaultAgent(DeterministicModel(**model_config(steps)), environment, **agent_config())
            agent.run(name)
            info = agent.save(out / name / f"{name}.traj.json", {"instance_id": name})["info"]
            if len(written) < 3:
                written.append(used_kb(out / name / "box"))
        record = Record(
            instance_id=name, attempt=0, verdict=Verdict.failed, exit_status=info["exit_status"], steps=steps
        )
        writer.add(record)

    with (
        ResultStore(out / "results").writer("bench") as writer,
        ReadySandboxes(config, spec("like"), folder=out / "ready", num=config.ready) as ready,
        ThreadPoolExecutor(parallel) as pool,
    ):
        list(pool.map(attempt, [f"task-{number}" for number in range(tasks)]))
    (out / "written").write_text(str(statistics.median(written)))


def used_kb(folder: Path) -> int:
    """Kilobytes on disk below a folder, read-only trees that it shows not counted."""
    total = 0
    for parent, folders, files in os.walk(folder):
        total += sum(os.lstat(Path(parent, name)).st_blocks for name in (*folders, *files))
    return total // 2


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser()
    for option in ("--peers", "--tree", "--out"):
        parser.add_argument(option, type=Path, required=True)
    for option in ("--tasks", "--steps", "--parallel"):
        parser.add_argument(option, type=int, required=True)
    parser.add_argument("--bwrap")
    given = parser.parse_args()
    sys.path.insert(0, str(given.peers))
    ours(given.out, given.tree, tasks=given.tasks, steps=given.steps, parallel=given.parallel)
