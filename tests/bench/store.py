"""What the result store costs beside the usual ways to keep results, in one run on one file system.

    python tests/bench/store.py --scratch FOLDER [--records 5500 100000] [--writers 1 8] [--rounds 3]

Prints JSON lines, each the median of the rounds: `write_per_s` of all writers (processes) together, `write_p50_ms` and
`write_p95_ms` of one add, `read_per_s` (all records once, as at resume), `files`. "jsonl, fsync each" is the floor for
a store that keeps its word: it only appends. "file per attempt" and "one file rewritten" are what batch runners do.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parents[2]))

from hpcjet.swe.record import Record
from hpcjet.swe.store import ResultStore
from hpcjet.tasks.verdict import Verdict

REWRITTEN_AT_MOST = 1_000
"""Rewriting one file takes time that grows with the square of the number of records: it gets this many."""


def record(number: int) -> Record:
    """Of about half a kilobyte as JSON."""
    return Record(
        instance_id=f"cpython-{number:06d}",
        attempt=0,
        verdict=Verdict.resolved if number % 3 else Verdict.failed,
        scaffold="mini",
        exit_status="Submitted",
        steps=10 + number % 90,
        tokens={"prompt": 1_203_112 + number, "completion": 20_313 + number},
        seconds={"tree": 0.03, "agent": 61.5, "llm": 50.25, "diff": 0.2, "verify": 20.0, "total": 82.0},
        tests={"passed": 311, "failed": number % 4, "skipped": 12},
        node=f"n{number % 64:03d}",
        started=1_760_000_000.25 + number,
        artifacts=f"artifacts/cpython-{number:06d}/0",
    )


class Store(Protocol):
    """A way to keep results, for one writer process."""

    def add(self, record: Record) -> None: ...


class Hpcjet:
    """The result store."""

    def __init__(self, folder: Path, writer: int) -> None:
        self.add = ResultStore(folder).writer(f"n{writer}").add

    @staticmethod
    def read(folder: Path) -> Iterator[str]:
        return (record.instance_id for record in ResultStore(folder).read())


class Lines:
    """JSON lines, a file per writer, fsync after each; nothing is checked."""

    def __init__(self, folder: Path, writer: int) -> None:
        self.file = os.open(folder / f"{writer}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, record: Record) -> None:
        os.write(self.file, json.dumps(asdict(record)).encode() + b"\n")
        os.fsync(self.file)

    @staticmethod
    def read(folder: Path) -> Iterator[str]:
        for path in folder.glob("*.jsonl"):
            with path.open("rb") as file:
                yield from (json.loads(line)["instance_id"] for line in file)


class FilePerAttempt:
    """A JSON file per attempt; with `durable` written beside, synced, renamed, and the folder synced."""

    durable = False

    def __init__(self, folder: Path, writer: int) -> None:
        self.folder = folder

    def add(self, record: Record) -> None:
        path = self.folder / f"{record.instance_id}.json"
        if not self.durable:
            path.write_text(json.dumps(asdict(record)))
            return
        part = path.with_suffix(".part")
        with part.open("w") as file:
            file.write(json.dumps(asdict(record)))
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        descriptor = os.open(self.folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    @staticmethod
    def read(folder: Path) -> Iterator[str]:
        for path in folder.iterdir():
            yield json.loads(path.read_bytes())["instance_id"]


class DurableFilePerAttempt(FilePerAttempt):
    """As FilePerAttempt, on disk when add returns."""

    durable = True


class RewrittenFile:
    """One JSON object that is read, extended and written for each record; not durable, and for one writer only."""

    def __init__(self, folder: Path, writer: int) -> None:
        self.path = folder / "preds.json"

    def add(self, record: Record) -> None:
        data = json.loads(self.path.read_text()) if self.path.exists() else {}
        data[record.instance_id] = asdict(record)
        self.path.write_text(json.dumps(data, indent=2))

    @staticmethod
    def read(folder: Path) -> Iterator[str]:
        yield from json.loads((folder / "preds.json").read_text())


STORES: dict[str, Any] = {
    "hpcjet": Hpcjet,
    "jsonl, fsync each": Lines,
    "file per attempt, durable": DurableFilePerAttempt,
    "file per attempt": FilePerAttempt,
    "one file rewritten": RewrittenFile,
}


def write(open_store: Callable[[Path, int], Store], folder: Path, writer: int, numbers: range, out: Any) -> None:
    """Add the records of `numbers` and send the seconds that each took."""
    store, taken = open_store(folder, writer), []
    for number in numbers:
        row = record(number)
        begin = time.perf_counter()
        store.add(row)
        taken.append(time.perf_counter() - begin)
    out.put(taken)


def one_round(name: str, scratch: Path, records: int, writers: int) -> dict[str, float]:
    folder = scratch / "store"
    folder.mkdir()
    out = multiprocessing.get_context("fork").Queue()
    jobs = [(STORES[name], folder, writer, range(writer, records, writers), out) for writer in range(writers)]
    begin = time.perf_counter()
    processes = [multiprocessing.get_context("fork").Process(target=write, args=job) for job in jobs]
    for process in processes:
        process.start()
    taken = sorted(each for _ in processes for each in out.get())
    for process in processes:
        process.join()
    write_s = time.perf_counter() - begin
    files = len(list(folder.iterdir()))
    begin = time.perf_counter()
    found = set(STORES[name].read(folder))
    read_s = time.perf_counter() - begin
    assert len(found) == records, f"{name}: {len(found)} of {records} came back"
    shutil.rmtree(folder)
    return {
        "write_per_s": records / write_s,
        "write_p50_ms": taken[len(taken) // 2] * 1e3,
        "write_p95_ms": taken[len(taken) * 95 // 100] * 1e3,
        "read_per_s": records / read_s,
        "files": files,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, required=True, help="an empty folder on the file system to measure")
    parser.add_argument("--records", type=int, nargs="+", default=[5_500, 100_000])
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(STORES), default=list(STORES))
    args = parser.parse_args()
    for records in args.records:
        for writers in args.writers:
            names = [each for each in args.only if each != "one file rewritten" or writers == 1]
            number = {
                each: min(records, REWRITTEN_AT_MOST) if each == "one file rewritten" else records for each in names
            }
            rounds = [
                {each: one_round(each, args.scratch, number[each], writers) for each in names}
                for _ in range(args.rounds)
            ]
            for each in names:
                median = {key: statistics.median(row[each][key] for row in rounds) for key in rounds[0][each]}
                shown = {key: round(value, 3) for key, value in median.items()}
                print(json.dumps({"store": each, "records": number[each], "writers": writers, **shown}), flush=True)


if __name__ == "__main__":
    main()
