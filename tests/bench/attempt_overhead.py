"""What an attempt costs beyond its agent's and its tests' own time, through the whole of hpcjet, at 8 in flight.

    python tests/bench/attempt_overhead.py [--attempts 64] [--latency 1.0]

Prints JSON lines: for each stage and for the overhead (total less agent, tests and rebuilds) the mean, median and 95th
percentile in milliseconds. Agents wait `--latency` seconds for each answer, as agents do; 0 keeps every core busy, and
then each millisecond of CPU counts several times. Needs a validated task set; takes its first eight tasks.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from hpcjet.swe.record import Record
from hpcjet.swe.store import ResultStore

IN_FLIGHT = 8


def run(attempts: int, latency: float, root: Path) -> list[Record]:
    """The records of one launch."""
    each = max(1, attempts // IN_FLIGHT)
    words = [
        "+exp=swe", f"exp.limit={IN_FLIGHT}", f"exp.attempts={each}", f"exp.in_flight={IN_FLIGHT}", "exp.cpus=0.1",
        "exp.memory_gb=0.1", f"engine.latency_s={latency}", f"run.root={root}",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "hpcjet.launch", *words], check=True, stdout=subprocess.DEVNULL)
    (results,) = root.glob("swe/*/results")
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
    parser.add_argument("--latency", type=float, default=1.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        records = run(arguments.attempts, arguments.latency, Path(root))
    # The first of each task may prepare its tree; a run has thousands of attempts.
    warm = [record for record in records if record.attempt > 0] or records
    for stage in sorted({stage for record in warm for stage in record.seconds}):
        show(stage, [record.seconds.get(stage, 0.0) for record in warm])
    show("overhead", [overhead(record) for record in warm])


if __name__ == "__main__":
    main()
