"""CPython's test suite in a sandbox and outside of it: same machine, same build, same user, same flags.

    python tests/bench/cpython_suite.py [--modules test_os ...] [--task-modules] [--jobs 2] [--minutes 60]

Each module runs as the tasks run it (`./python -m test -j1 --timeout S --junit-xml ...`), inside and right after that
outside, in a copy of the same tree. Modules that differ run twice more on both sides, so that tests that waver are told
from those that the sandbox changes. One JSON line per module goes to --results, and a later call goes on from there;
the differences are printed at the end as a table. As root, both sides run as sandbox.root_uid, and the copy is shown at
the place where the tree was built, in a mount namespace; other users' copy lies elsewhere, which a few tests notice.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from hpcjet import paths
from hpcjet.config.sandbox import SandboxConfig
from hpcjet.sandbox import Mount, Sandbox, SandboxSpec, View, open_sandbox, read_back
from hpcjet.sandbox.copies import copy_stack
from hpcjet.sandbox.identity import Identity, identity
from hpcjet.sandbox.options import environment
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.tasks.jsonl import load_tasks
from hpcjet.tasks.junit import Outcome, ReportError, parse_junit
from hpcjet.tasks.sets import resolve_tasks
from hpcjet.tasks.task import TESTBED
from hpcjet.tasks.tree import TreeStore

AGAIN = 2
"""How often modules that differ run once more on each side."""
Results = dict[str, str]


@dataclass(frozen=True)
class Side:
    """Where modules run: `run` takes a command line and its time limit; reports appear in `reports` as `shown`."""

    run: Callable[[str, float], int]
    reports: Path
    shown: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", nargs="+", default=[], help="only these")
    parser.add_argument("--task-modules", action="store_true", help="only those that the tasks of the set use")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60, help="no module starts later")
    parser.add_argument("--timeout", type=float, default=240, help="seconds for one module")
    parser.add_argument("--results", type=Path, default=Path("cpython-suite.jsonl"))
    arguments = parser.parse_args()
    file, repos = resolve_tasks(None, None, cache=paths.cache_dir())
    tasks = load_tasks(file)
    used = sorted({module for task in tasks for module in task.tests})
    config = SandboxConfig()
    lowers = TreeStore(paths.cache_dir() / "trees", config, repos).prepare(tasks[-1]).lowers
    place = Path(tempfile.mkdtemp(prefix="hpcjet-suite-"))
    place.chmod(0o711)
    try:
        wanted = arguments.modules or (used if arguments.task_modules else _all(config, lowers, place, used))
        known = _known(arguments.results)
        waiting = [module for module in wanted if module not in known]
        print(f"{len(wanted)} modules, {len(known)} known, {len(used)} used by the tasks of {file.parent.name}")
        deadline = time.monotonic() + arguments.minutes * 60
        runner = _Runner(config, lowers, place, arguments.timeout, arguments.results)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(lambda module: runner.compare(module) if time.monotonic() < deadline else None, waiting))
    finally:
        remove_tree(place)
        with contextlib.suppress(OSError):  # not ours, or not empty
            Path(TESTBED).rmdir()
    _tell(arguments.results, used, wanted)


def _all(config: SandboxConfig, lowers: tuple[Path, ...], place: Path, first: list[str]) -> list[str]:
    """Every module of the suite; those of the tasks come first."""
    spec = SandboxSpec(scratch=place / "list", view=View(lowers=lowers, at=TESTBED), cwd=TESTBED)
    with open_sandbox(config, spec) as box:
        listed = box.run("./python -m test --list-tests", timeout_s=120).output.decode().split()
    return [*first, *(module for module in listed if module not in first)]


def _known(results: Path) -> dict[str, dict[str, object]]:
    if not results.exists():
        return {}
    return {row["module"]: row for row in map(json.loads, results.read_text().splitlines())}


class _Runner:
    def __init__(
        self, config: SandboxConfig, lowers: tuple[Path, ...], place: Path, timeout_s: float, results: Path
    ) -> None:
        self._config, self._lowers, self._place, self._timeout_s = config, lowers, place, timeout_s
        self._who = identity(config)
        self._results, self._writing = results, threading.Lock()
        self._copies: list[Path] = []
        self._local = threading.local()
        self._count = 0
        self._etc = place / "etc"
        self._etc.mkdir(mode=0o755)
        for name, line in (("passwd", f"agent:x:{self._who.uid}:{self._who.gid}:agent:/home/agent:/bin/bash"),
                           ("group", f"agent:x:{self._who.gid}:")):  # fmt: skip
            (self._etc / name).write_text(f"{Path('/etc', name).read_text().rstrip()}\n{line}\n")

    def compare(self, module: str) -> None:
        begin = time.monotonic()
        inside, inside_s = self._inside(module)
        outside, outside_s = self._outside(module)
        wavering: set[str] = set()
        differ = differences(inside, outside)
        for _ in range(AGAIN if differ else 0):
            again = differences(self._inside(module)[0], self._outside(module)[0])
            wavering |= {test for test in differ if again.get(test) != differ[test]}
        row = {
            "module": module,
            "tests": len(outside),
            "passed": sum(outcome == Outcome.passed.value for outcome in outside.values()),
            "inside_s": round(inside_s, 1),
            "outside_s": round(outside_s, 1),
            "differ": {test: pair for test, pair in differ.items() if test not in wavering},
            "waver": {test: pair for test, pair in differ.items() if test in wavering},
        }
        with self._writing, self._results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        state = "differs" if row["differ"] else "same"
        print(f"{module}: {state}, {len(outside)} tests, {time.monotonic() - begin:.0f} s", flush=True)

    def _inside(self, module: str) -> tuple[Results, float]:
        """In a fresh sandbox, as a verification is."""
        folder = self._reports("in")
        spec = SandboxSpec(
            scratch=folder / "scratch",
            view=View(lowers=self._lowers, at=TESTBED),
            mounts=(Mount(source=folder / "report", target="/run/report", writable=True),),
            cwd=TESTBED,
        )
        with open_sandbox(self._config, spec) as box:
            side = Side(lambda line, limit: _box_run(box, line, limit), folder / "report", "/run/report")
            return self._module(module, side)

    def _outside(self, module: str) -> tuple[Results, float]:
        folder, tree = self._reports("out"), self._copy()
        for name in ("tmp", "home"):
            (folder / name).mkdir(mode=0o755)
            self._who.own(folder / name)
        env = {**environment(SandboxSpec(scratch=folder)), "TMPDIR": f"{folder}/tmp", "HOME": f"{folder}/home"}

        def run(line: str, limit: float) -> int:
            return _host_run(line, limit, tree=tree, env=env, who=self._who, etc=self._etc)

        return self._module(module, Side(run, folder / "report", f"{folder}/report"))

    def _module(self, module: str, side: Side) -> tuple[Results, float]:
        begin = time.monotonic()
        line = (
            f"./python -m test -j1 --timeout {self._timeout_s:.0f} --junit-xml {side.shown}/junit.xml {module} "
            f">{side.shown}/log 2>&1"
        )
        code = side.run(line, self._timeout_s + 60)
        try:
            outcomes = parse_junit(read_back(side.reports, "junit.xml"))
            found = {test: outcome.value for test, outcome in outcomes.items()}
        except (FileNotFoundError, ReportError):
            found = {}
        # A module that is skipped as a whole, or crashes, reports no test.
        found["(module)"] = _module_word(side.reports, code)
        return found, time.monotonic() - begin

    def _reports(self, side: str) -> Path:
        with self._writing:
            self._count += 1
            folder = self._place / f"{side}{self._count}"
        folder.mkdir(mode=0o711)
        (folder / "report").mkdir(mode=0o755)
        self._who.own(folder / "report")
        return folder

    def _copy(self) -> Path:
        """One copy of the tree for each thread."""
        if not hasattr(self._local, "tree"):
            tree = self._place / f"tree-{threading.get_ident()}"
            tree.mkdir(mode=0o755)
            self._who.own(tree)
            copy_stack(self._lowers, tree, self._who)
            self._local.tree = tree
        return self._local.tree  # type: ignore[no-any-return]


def differences(inside: Results, outside: Results) -> dict[str, list[str]]:
    """Tests whose outcome is not the same: inside, outside."""
    names = {*inside, *outside}
    pairs = {name: [inside.get(name, "absent"), outside.get(name, "absent")] for name in sorted(names)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _module_word(reports: Path, code: int) -> str:
    try:
        log = read_back(reports, "log").decode(errors="replace")
    except FileNotFoundError:
        return f"no log, code {code}"
    lines = [line for line in log.splitlines() if " skipped -- " in line]
    return f"{lines[0].partition(' skipped -- ')[2]}" if lines else f"code {code}"


def _box_run(box: Sandbox, line: str, limit: float) -> int:
    done = box.run(line, timeout_s=limit)
    return -1 if done.timed_out else done.returncode


def _host_run(line: str, limit: float, *, tree: Path, env: dict[str, str], who: Identity, etc: Path) -> int:
    """In a session of its own without a terminal, with an empty stdin, like a command in a sandbox.

    The user of root's sandboxes has no name on the host; as tests look for it, it gets one in this mount namespace.
    """
    argv, where = ["bash", "-c", line], str(tree)
    if who.switch:
        drop = f"setpriv --reuid {who.uid} --regid {who.gid} --clear-groups bash -c 'cd {TESTBED}; exec bash -c \"$0\"'"
        mounts = "".join(f"mount --bind {etc}/{name} /etc/{name} && " for name in ("passwd", "group"))
        argv = [
            "unshare",
            "--mount",
            "bash",
            "-c",
            f'{mounts}mount --bind "$1" {TESTBED} && exec {drop} "$0"',
            line,
            where,
        ]
        Path(TESTBED).mkdir(exist_ok=True)
    with subprocess.Popen(
        argv, cwd=where, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return -1
        finally:
            _end_session(process.pid)


def _end_session(leader: int) -> None:
    from hpcjet.cluster.child import kill_session

    kill_session(leader)


def _tell(results: Path, used: Iterable[str], wanted: list[str]) -> None:
    rows = _known(results)
    tests = sum(int(str(row["tests"])) for row in rows.values())
    done = sum(module in rows for module in wanted)
    print(f"\n{done} of {len(wanted)} modules compared, {tests} tests outside")
    for kind, what in (("differ", "each time"), ("waver", "not each time")):
        for module, row in rows.items():
            for test, (inside, outside) in row[kind].items():  # type: ignore[attr-defined]
                mark = " (used by the tasks)" if module in used else ""
                print(f"{what} | {module}{mark} | {test} | inside {inside} | outside {outside}")


if __name__ == "__main__":
    main()
