"""Processes that own sandboxes, to be killed: `python owners.py ROLE BASE`, with a repository at BASE/repos.

runner: opens sandboxes by the public API, from several threads. starter: the same with a bubblewrap that is slow where
it must not be killed. worker: makes attempts, as a Ray worker does.
agent: keeps two workers going, as the node agent does by way of Ray.
"""

import itertools
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.tasks.task import Recipe, Task

THREADS = 3
AGENT = "mkdir d; echo x >d/f; rm -f calc.py; (setsid sleep 1000 &); sleep 0.0%d; seq 2000"


def runner(base: Path, bwrap: Path | None = None) -> None:
    """Scratch folders are at BASE/recorded, known beforehand as the API asks."""
    from hpcjet.sandbox import SandboxSpec, View, open_sandbox

    config = SandboxConfig(scratch=base, bwrap=bwrap)

    def work(number: int) -> None:
        for turn in itertools.count():
            spec = SandboxSpec(
                scratch=base / f"recorded/{number}-{turn}", view=View(lowers=(base / "tree",), at="/t"), cwd="/t"
            )
            with open_sandbox(config, spec) as box:
                for step in range(3):
                    box.run(AGENT % (step + number), timeout_s=0.02 if turn % 4 == 3 else 30)

    _threads(work)


def starter(base: Path) -> None:
    runner(base, base / "slow/bwrap")


def worker(base: Path) -> None:
    from hpcjet.swe.attempt import AttemptSettings, Job
    from hpcjet.swe.host import AttemptHost
    from hpcjet.swe.scaffold import ScaffoldSettings

    settings = AttemptSettings(
        run_dir=base / "run", repos=base / "repos", trees=base / "trees", scratch=base, sandbox=SandboxConfig(),
        scaffold="reference", scaffold_settings=ScaffoldSettings(), agent_timeout_s=60,
        test_timeout_s=60, build_timeout_s=60, cpus=1,
    )  # fmt: skip
    host = AttemptHost(settings)
    task = task_of(base)

    def work(number: int) -> None:
        for turn in itertools.count():
            record = host.make(Job(replace(task, instance_id=f"own__calc-{number}"), turn))
            if record.failure:
                print(record.failure, record.detail, file=sys.stderr, flush=True)

    _threads(work)


def agent(base: Path) -> None:
    from hpcjet.cluster.child import Child, adopt_orphans, end_orphans
    from hpcjet.cluster.leftovers import held, sweep
    from hpcjet.cluster.site import TEMP_VARIABLE
    from hpcjet.cluster.temp import private_temp

    adopt_orphans()
    temp = private_temp({"TMPDIR": str(base)}, fallbacks=())
    with held(temp):
        sweep(temp.parent)
        env = {**os.environ, TEMP_VARIABLE: str(temp)}
        argv = [sys.executable, __file__, "worker", str(base)]
        children: list[Any] = []
        print("ready", flush=True)
        while True:
            children = [child for child in children if child.returncode is None]
            while len(children) < 2:
                children.append(Child("worker", argv, env=env, log=base / "worker.log"))
            print("workers", *(child.pid for child in children), flush=True)
            if not sys.stdin.isatty() and _asked_to_end():
                break
            time.sleep(0.05)
        for child in children:
            child.stop(0)
        end_orphans()
    from hpcjet.sandbox.scratch import remove_tree

    remove_tree(temp)


def task_of(base: Path) -> Task:
    patch = (base / "fix.patch").read_text()
    return Task(
        instance_id="own__calc-1", repo="own/calc", base_commit="main", problem_statement="add", patch=patch,
        test_patch="", FAIL_TO_PASS=("t::a",), tests=("t",),
        recipe=Recipe(test_command="(setsid sleep 1000 &); sleep 0.05; echo '<testsuites/>' >{junit}"),
    )  # fmt: skip


def _threads(work: Any) -> None:
    for number in range(THREADS):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    print("ready", flush=True)
    threading.Event().wait()


def _asked_to_end() -> bool:
    import select

    return bool(select.select([sys.stdin], [], [], 0)[0])


if __name__ == "__main__":
    {"runner": runner, "starter": starter, "worker": worker, "agent": agent}[sys.argv[1]](Path(sys.argv[2]))
