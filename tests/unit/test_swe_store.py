import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from hpcjet.errors import StoreError
from hpcjet.swe import record_json
from hpcjet.swe.record import Record
from hpcjet.swe.record_json import from_line, to_line
from hpcjet.swe.store import ResultStore
from hpcjet.tasks.verdict import Verdict

FULL = Record(
    instance_id="django__django-1",
    attempt=3,
    verdict=Verdict.resolved,
    failure="none",
    detail="line\nwith \udcff, \ud800 and ü",
    tries=2,
    scaffold="mini",
    exit_status="Submitted",
    steps=17,
    tokens={"prompt": 1_203_112, "completion": 20_313},
    seconds={"agent": 61.5, "total": 80},
    tests={"passed": 311, "failed": 0},
    patch_bytes=812,
    edited_tests=("tests/a.py", "tests/b.py"),
    node="n001",
    started=1_760_000_000.25,
    artifacts="artifacts/django__django-1/3",
)


def record(number: int = 0, verdict: Verdict = Verdict.failed, **changes: object) -> Record:
    return replace(Record(instance_id=f"task-{number}", attempt=0, verdict=verdict), **changes)  # type: ignore[arg-type]


def only_segment(store: ResultStore) -> Path:
    (segment,) = store.segments()
    return segment


def test_every_field_comes_back() -> None:
    assert from_line(to_line(FULL, recorded=5.0)) == (FULL, 5.0)
    assert all(getattr(FULL, field.name) != getattr(record(), field.name) for field in fields(Record))
    assert set(record_json._KINDS) == {field.name for field in fields(Record)} | {"recorded"}


def test_a_line_is_one_line_of_plain_json() -> None:
    line = to_line(FULL, recorded=5.0)
    assert line.isascii() and line.count(b"\n") == 1 and line.endswith(b"\n")
    assert json.loads(line)["verdict"] == "resolved"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "Expecting value"),
        ("[1]", "not a JSON object"),
        ('{"instance_id": "a", "attempt": 0}', "verdict is missing"),
        ('{"instance_id": "a", "attempt": true, "verdict": "failed"}', "attempt is no int"),
        ('{"instance_id": null, "attempt": 0, "verdict": "failed"}', "instance_id is no str"),
        ('{"instance_id": "a", "attempt": 0, "verdict": "won"}', "won"),
        ('{"instance_id": "a", "attempt": 0, "verdict": "failed", "tokens": {"prompt": "7"}}', "tokens is no map"),
        ('{"instance_id": "a", "attempt": 0, "verdict": "failed", "edited_tests": [1]}', "edited_tests is no list"),
    ],
)
def test_a_foreign_line_is_refused_with_the_reason(line: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        from_line(line.encode())


def test_a_field_of_a_later_version_is_passed_over() -> None:
    line = '{"instance_id": "a", "attempt": 0, "verdict": "failed", "mood": "good"}'
    assert from_line(line.encode())[0] == record(instance_id="a")


def test_two_writers_have_a_segment_each(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results")
    assert list(store.read()) == []
    with store.writer("n001") as first, store.writer("../n 2") as second:
        for number in range(10):
            (first, second)[number % 2].add(record(number))
    assert sorted(each.instance_id for each in store.read()) == sorted(f"task-{n}" for n in range(10))
    assert [path.name.rsplit("-", 1)[0] for path in store.segments()] == ["_n_2", "n001"]


def test_a_writer_that_adds_nothing_leaves_nothing(tmp_path: Path) -> None:
    with ResultStore(tmp_path / "results").writer("n001"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", ".nfs0001.jsonl", "x.jsonl.part"):
        (tmp_path / name).write_text("not json\n")
    assert ResultStore(tmp_path).index().problems == []


def test_torn_and_foreign_lines_are_named_and_the_others_read(tmp_path: Path) -> None:
    lines = [to_line(record(number), recorded=number) for number in range(3)]
    (tmp_path / "a.jsonl").write_bytes(lines[0] + b"\0\0\0\n" + lines[1] + b'"foreign"\n\xff\n' + lines[2][:-5])
    index = ResultStore(tmp_path).index()
    assert [each.instance_id for each in index.records()] == ["task-0", "task-1"]
    assert [problem.line for problem in index.problems] == [2, 4, 5, 6]
    assert f"{tmp_path}/a.jsonl:4: not a record: not a JSON object" in map(str, index.problems)
    assert "unfinished last line" in index.problems[-1].reason


def test_a_line_without_its_end_was_not_acknowledged(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(to_line(record(), recorded=1)[:-1])
    assert list(ResultStore(tmp_path).read()) == []


INFRA = Verdict.infrastructure


@pytest.mark.parametrize(
    ("lines", "winner", "duplicates", "retried"),
    [
        ([(record(), 1.0)], 0, 0, 0),
        ([(record(steps=1), 2.0), (record(steps=2), 1.0)], 1, 1, 0),
        ([(record(steps=1), 1.0), (record(steps=2), 1.0)], 0, 1, 0),
        ([(record(0, INFRA), 1.0), (record(), 2.0)], 1, 0, 1),
        ([(record(), 2.0), (record(0, INFRA, tries=3), 1.0)], 0, 0, 1),
        ([(record(0, INFRA), 1.0), (record(0, INFRA, tries=2), 2.0), (record(0, INFRA, tries=2), 3.0)], 1, 0, 2),
    ],
    ids=["one", "first recorded", "same time", "retry", "late failure", "failures only"],
)
@pytest.mark.parametrize("apart", [False, True], ids=["one segment", "a segment each"])
def test_which_record_of_an_attempt_counts(
    tmp_path: Path, lines: list[tuple[Record, float]], winner: int, duplicates: int, retried: int, apart: bool
) -> None:
    for number, (each, recorded) in enumerate(lines):
        with (tmp_path / f"{number if apart else 0}.jsonl").open("ab") as file:
            file.write(to_line(each, recorded=recorded))
    index = ResultStore(tmp_path).index()
    assert list(index.records()) == [lines[winner][0]]
    assert (index.duplicates, index.retried, len(index)) == (duplicates, retried, 1)


def test_what_need_not_run_again(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    with store.writer("n001") as writer:
        writer.add(record(1))
        writer.add(record(2, Verdict.tests_timeout))
        writer.add(record(3, INFRA))
        writer.add(record(4, INFRA, tries=3))
        writer.add(record(5, INFRA))
        writer.add(record(5, tries=2))
    done = {("task-1", 0), ("task-2", 0), ("task-4", 0), ("task-5", 0)}
    assert store.keys_done(max_tries=3) == done
    assert store.keys_done(max_tries=4) == done - {("task-4", 0)}
    assert store.index().tries(("task-4", 0)) == 3
    assert store.index().tries(("task-1", 0)) == store.index().tries(("task-9", 0)) == 0


def test_threads_share_a_writer(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    with store.writer("n001") as writer:

        def add_fifty(first: int) -> None:
            for number in range(first, first + 50):
                writer.add(record(number))

        threads = [threading.Thread(target=add_fifty, args=(first,)) for first in range(0, 200, 50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(store.index()) == 200 and store.index().problems == []


def test_forked_process_begins_its_own_segment(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    with store.writer("n001") as writer:
        writer.add(record(1))
        child = os.fork()
        if child == 0:
            try:
                writer.add(record(2))
                writer.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        writer.add(record(3))
    assert len(store.segments()) == 2 and len(store.index()) == 3 and store.index().problems == []


WRITE_UNTIL_KILLED = """
import sys
from pathlib import Path
from hpcjet.swe.record import Record
from hpcjet.swe.store import ResultStore
from hpcjet.tasks.verdict import Verdict
writer = ResultStore(Path(sys.argv[1])).writer("n001")
for number in range(10**9):
    writer.add(Record(instance_id=f"{sys.argv[2]}-{number}", attempt=0, verdict=Verdict.failed, detail="x" * 3000))
    sys.stdout.write(f"{sys.argv[2]}-{number}\\n")
    sys.stdout.flush()
"""


def test_kill_at_any_moment_loses_nothing_acknowledged(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    acknowledged: list[str] = []
    moments = random.Random(7)
    for life in range(25):
        command = [sys.executable, "-c", WRITE_UNTIL_KILLED, str(tmp_path), str(life)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        acknowledged.append(process.stdout.readline().strip())
        time.sleep(moments.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        acknowledged += process.communicate()[0].split()
    lines = [line for segment in store.segments() for line in segment.read_bytes().split(b"\n")[:-1]]
    ids = [json.loads(line)["instance_id"] for line in lines]
    assert len(acknowledged) > 25
    assert set(acknowledged) <= set(ids)
    assert len(ids) == len(set(ids)) == len(store.index())
    assert len(set(ids) - set(acknowledged)) <= 25


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of a few megabytes at most."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root; test_a_limit_on_file_size covers the same path")
    folder, image = tmp_path / "disk", tmp_path / "image"
    folder.mkdir()
    if request.param == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    else:
        image.write_bytes(bytes(2_000_000))
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no space in the file system of `folder`; the file to remove afterwards."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
                os.fsync(file.fileno())
            except OSError:
                continue
    return filler


def test_a_full_disk_corrupts_nothing_and_heals(small_disk: Path) -> None:
    store = ResultStore(small_disk / "run" / "results")
    writer = store.writer("n001")
    safe = 5
    for number in range(safe):
        writer.add(record(number))
    filler = fill(small_disk)
    for number in range(safe, 1000):
        try:
            writer.add(record(number, detail="x" * 700))
            safe += 1
        except StoreError as error:
            message = str(error)
            break
    assert safe < 1000
    assert f"the result of task-{safe} attempt 0" in message and "No space left on device" in message
    assert f"results safe there: {safe}; free space there, then: hpcjet resume {small_disk}/run" in message
    for _ in range(3):
        with pytest.raises(StoreError, match=f"results safe there: {safe};"):
            writer.add(record(safe, detail="x" * 700))
    assert len(store.index()) == safe and store.index().problems == []
    filler.unlink()
    writer.add(record(safe, detail="x" * 700))
    writer.add(record(safe + 1))
    writer.close()
    assert len(store.index()) == safe + 2 and store.index().problems == [] and store.index().duplicates == 0


def test_a_read_only_file_system_is_named(small_disk: Path) -> None:
    writer = ResultStore(small_disk / "results").writer("n001")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreError, match=r"Read-only file system.*have the file system made writable"):
        writer.add(record())


def test_a_limit_on_file_size(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    writer = store.writer("n001")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
        writer.add(record(1, detail="x" * 3000))
        with pytest.raises(StoreError, match="results safe there: 1; raise the limit on file sizes"):
            writer.add(record(2, detail="x" * 3000))
        assert only_segment(store).read_bytes().count(b"\n") == 1
        assert store.index().problems == []
        writer.add(record(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [each.instance_id for each in store.read()] in (["task-1", "task-3"], ["task-3", "task-1"])


def test_an_interrupt_within_add_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ResultStore(tmp_path)
    writer = store.writer("n001")
    writer.add(record(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            writer.add(record(2, detail="x" * 3000))
    writer.add(record(3))
    assert {each.instance_id for each in store.read()} >= {"task-1", "task-3"} and store.index().problems == []


def test_a_segment_that_cannot_be_read_stops_the_count(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(StoreError, match=r"cannot be read: Is a directory \(.*a.jsonl\)"):
        ResultStore(tmp_path).index()
