"""metrics.csv and TensorBoard's files: whole after crashes, resumes and full disks."""

import csv
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from watch_scenes import row

from hpcjet.swarm.watch import Loss, MetricsLog, SeatFacts, SwarmFiles, note_loss, write_seats
from hpcjet.swarm.watch.csv_log import CsvLog, read_rows
from hpcjet.swarm.watch.told import read_losses, read_seats


def versions(folder: Path) -> list[float]:
    return [float(each["version"]) for each in read_rows(SwarmFiles(folder).metrics)]


def shown(folder: Path, tag: str) -> dict[int, float]:
    """What TensorBoard shows: by step, without what a later start has taken back."""
    from tensorboardX.crc32c import crc32c
    from tensorboardX.proto import event_pb2

    made: Any = event_pb2
    found: dict[int, float] = {}
    for file in sorted(SwarmFiles(folder).tensorboard.iterdir()):
        data = file.read_bytes()
        while len(data) >= 12:
            (size,) = struct.unpack("<Q", data[:8])
            if len(data) < 16 + size:
                break
            body, (check,) = data[12 : 12 + size], struct.unpack("<I", data[12 + size : 16 + size])
            crc = crc32c(body)
            assert check == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
            event, data = made.Event.FromString(body), data[16 + size :]
            if event.HasField("session_log"):
                found = {step: value for step, value in found.items() if step < event.step}
            for each in event.summary.value:
                if each.tag == tag:
                    found[event.step] = each.simple_value
    return found


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    written = [row(version) for version in range(1, 6)]
    for each in written:
        log.write(each)
    log.close()
    assert list(read_rows(SwarmFiles(tmp_path).metrics)) == written
    assert shown(tmp_path, "swarm/return") == pytest.approx(
        {version: row(version)["return"] for version in range(1, 6)}
    )
    assert shown(tmp_path, "worlds/held") == pytest.approx({n: row(n)["metric.held"] for n in range(1, 6)})
    assert len(shown(tmp_path, "agent/entropy")) == 5


def test_new_columns_may_come_later_and_old_ones_may_go(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.write({"agent.loss": 1.0, "version": 1, "return": 2})
    log.write({"version": 2, "b.loss": float("nan"), "evaluation.note": 'two\n"lines", both'})
    log.write({"version": 3})
    log.close()
    lines = SwarmFiles(tmp_path).metrics.read_text().splitlines()
    assert lines[0] == "version,return,agent.loss,b.loss,evaluation.note"
    assert list(csv.reader(lines))[1:] == [
        ["1", "2", "1", "", ""],
        ["2", "", "", "nan", 'two "lines", both'],
        ["3", "", "", "", ""],
    ]


@pytest.mark.parametrize("cut", [b"4,1.", b"4", b"\0" * 300, b"4,\0\0\n\0"], ids=["half", "one cell", "zeros", "mixed"])
def test_what_a_crash_left_half_written_is_cut_off(tmp_path: Path, cut: bytes) -> None:
    log = MetricsLog(tmp_path)
    for version in range(1, 4):
        log.write(row(version))
    log.close()
    with SwarmFiles(tmp_path).metrics.open("ab") as file:
        file.write(cut)
    assert versions(tmp_path) == [1, 2, 3]
    CsvLog(SwarmFiles(tmp_path).metrics).write(row(4))
    assert versions(tmp_path) == [1, 2, 3, 4]
    assert list(read_rows(SwarmFiles(tmp_path).metrics))[-1] == row(4)


@pytest.mark.parametrize("damage", [b"", b"vers", b"\0\0\0\0"], ids=["empty", "half a header", "zeros"])
def test_a_file_without_a_header_begins_anew(tmp_path: Path, damage: bytes) -> None:
    SwarmFiles(tmp_path).metrics.write_bytes(damage)
    CsvLog(SwarmFiles(tmp_path).metrics).write(row(1))
    assert list(read_rows(SwarmFiles(tmp_path).metrics)) == [row(1)]


def test_a_resumed_training_drops_what_it_does_again(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for version in range(1, 10):
        log.write({"version": version, "return": 0})
    log.close()
    resumed = MetricsLog(tmp_path)
    resumed.write({"version": 6, "return": 1, "later": 2})
    resumed.close()
    assert versions(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert shown(tmp_path, "swarm/return") == {1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 1}
    resumed.rewind(2)
    assert versions(tmp_path) == [1, 2]
    resumed.write({"version": 3, "return": 2})
    resumed.close()
    assert shown(tmp_path, "swarm/return") == {1: 0, 2: 0, 3: 2}


def test_a_killed_writer_leaves_whole_rows(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from hpcjet.swarm.watch.csv_log import CsvLog
log, version = CsvLog(Path({str(tmp_path / "metrics.csv")!r})), 0
while True:
    version += 1
    log.write({{"version": version, **{{f"c{{version // 50}}": 1.5}}, "x": 1 / version}})
    if version == 200: print("go", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    rows = list(read_rows(tmp_path / "metrics.csv"))
    assert [each["version"] for each in rows] == list(range(1, len(rows) + 1)) and len(rows) >= 199
    CsvLog(tmp_path / "metrics.csv").write({"version": len(rows) + 1})
    assert len(list(read_rows(tmp_path / "metrics.csv"))) == len(rows) + 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_told_once_and_rows_come_later(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = MetricsLog(small_disk)
    log.write(row(1))
    with (small_disk / "filler").open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue
    for version in range(2, 60):
        log.write(row(version))
    with pytest.raises(OSError, match="No space left"):
        note_loss(SwarmFiles(small_disk).losses, Loss(time=1.0, what="x"))
    write_seats(SwarmFiles(small_disk).seats, [SeatFacts(seat="s", node="n", worlds=1)])
    told = [record.message for record in caplog.records if "metrics.csv" in record.message]
    assert len(told) == 1 and "No space left" in told[0] and "training goes on" in told[0]
    before = versions(small_disk)
    assert before == list(range(1, len(before) + 1)) and len(before) < 59
    (small_disk / "filler").unlink()
    log.write(row(60))
    assert list(read_rows(SwarmFiles(small_disk).metrics)) == [row(version) for version in range(1, 61)]
    log.close()
    assert shown(small_disk, "swarm/return")[60] == pytest.approx(row(60)["return"])


def test_a_folder_that_cannot_be_is_no_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "swarm").write_text("a file")
    log = MetricsLog(tmp_path / "swarm")
    for version in range(1, 4):
        log.write(row(version))
    log.close()
    assert sum("cannot be written" in record.message for record in caplog.records) == 2


def test_losses_and_seats_are_read_again(tmp_path: Path) -> None:
    files = SwarmFiles(tmp_path / "swarm")
    losses = [Loss(time=2.0, what="node n1", lost_fragments=3, seconds_to_first_new_sample=1.5), Loss(time=3, what="x")]
    for loss in losses:
        note_loss(files.losses, loss)
    with files.losses.open("a") as file:
        file.write('{"time": "soon"}\n[]\n{"ti')
    assert read_losses(files.losses) == losses
    seats = [SeatFacts(seat="seat-0001", node="n1", worlds=4, shares={"act": 0.5})]
    write_seats(files.seats, seats)
    assert read_seats(files.seats) == seats
    files.seats.write_text('[{"seat": 1}]')
    assert read_seats(files.seats) == [] == read_seats(tmp_path / "none")
    assert read_losses(tmp_path / "none") == []
