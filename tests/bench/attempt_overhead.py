"""What an attempt costs beyond its agent's and its tests' own time, through the whole of hpcjet, at 8 in flight.

    python tests/bench/attempt_overhead.py [--attempts 64] [--latency 1.0] [--real-tests]

Prints JSON lines: for each stage and for the overhead (total less agent, rebuild and tests) the mean, median and 95th
percentile in milliseconds. The trees are real, CPython's; the tests are a second of waiting and a report, so that what
is measured is hpcjet and not the contest of eight test suites for the cores; --real-tests runs those instead. Needs a
validated task set; takes its first tasks that need no rebuild.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from hpcjet.paths import cache_dir
from hpcjet.swe.record import Record
from hpcjet.swe.store import ResultStore
from hpcjet.tasks.jsonl import dump_tasks, load_tasks, patched_files
from hpcjet.tasks.layer import needs_rebuild
from hpcjet.tasks.sets import resolve_tasks

IN_FLIGHT = 8
TESTS = 'sleep 1; printf \'<testsuite><testcase classname="a" name="b"/></testsuite>\' >{junit}; : {tests}'


def tasks_file(folder: Path, *, real_tests: bool) -> tuple[Path, Path]:
    """(tasks, repositories): eight tasks of the default set."""
    found, repos = resolve_tasks(None, None, cache=cache_dir())
    tasks = [task for task in load_tasks(found) if not needs_rebuild(task.recipe, patched_files(task.patch))][
        :IN_FLIGHT
    ]
    assert len(tasks) == IN_FLIGHT, f"{found} has too few tasks: hpcjet tasks validate --limit 12"
    if not real_tests:
        tasks = [
            replace(task, FAIL_TO_PASS=(), PASS_TO_PASS=(), recipe=replace(task.recipe, test_command=TESTS))
            for task in tasks
        ]
    dump_tasks(folder / "tasks.jsonl", tasks)
    return folder / "tasks.jsonl", repos


def run(attempts: int, latency: float, root: Path, *, real_tests: bool) -> list[Record]:
    """The records of one launch."""
    each = max(1, attempts // IN_FLIGHT)
    tasks, repos = tasks_file(root, real_tests=real_tests)
    words = [
        "+exp=swe", "exp.limit=0", f"exp.tasks={tasks}", f"exp.repos={repos}", f"exp.attempts={each}",
        f"exp.in_flight={IN_FLIGHT}", "exp.cpus=0.1", "exp.memory_gb=0.1", f"engine.latency_s={latency}",
        f"run.root={root / 'runs'}",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "hpcjet.launch", *words], check=True, stdout=subprocess.DEVNULL)
    (results,) = root.glob("runs/swe/*/results")
    records = list(ResultStore(results).index().records())
    assert len(records) == each * IN_FLIGHT, len(records)
    assert all(record.verdict.value == "resolved" for record in records), [record.detail for record in records]
    return records


def overhead(record: Record) -> float:
    """Seconds of one attempt that are neither the agent's nor the tests'."""
    seconds = record.seconds
    return seconds["total"] - seconds["agent"] - seconds["tests"] - seconds.get("rebuild", 0.0)


def show(name: str, values: list[float]) -> None:
    ordered = sorted(values)
    row = {
        "what": name,
        "mean_ms": statistics.fmean(values) * 1e3,
        "p50_ms": ordered[len(ordered) // 2] * 1e3,
        "p95_ms": ordered[int(len(ordered) * 0.95)] * 1e3,
    }
    print(json.dumps({key: round(value, 1) if isinstance(value, float) else value for key, value in row.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=64)
    parser.add_argument("--latency", type=float, default=1.0, help="seconds of each answer of the oracle")
    parser.add_argument("--real-tests", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        records = run(arguments.attempts, arguments.latency, Path(root), real_tests=arguments.real_tests)
    # The first of each task may prepare its tree; a run has thousands of attempts.
    warm = [record for record in records if record.attempt > 0] or records
    for stage in sorted({stage for record in warm for stage in record.seconds}):
        show(stage, [record.seconds.get(stage, 0.0) for record in warm])
    show("overhead", [overhead(record) for record in warm])


if __name__ == "__main__":
    main()
