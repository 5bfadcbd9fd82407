"""metrics.csv: appended row by row, whole again after a crash, wider when a row brings new columns."""

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hpcjet.atomic import replacing
from hpcjet.swarm.row import PLAIN, Row


class CsvLog:
    """One writer appends rows of rising `version`; a row that goes back takes the place of all from its version on.

    Raises OSError where the disk is full or gone; what is in the file then is whole rows, and the next write is tried
    anew.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = []
        self._size = 0
        self._last: float | None = None
        self._is_open = False

    @property
    def version(self) -> float | None:
        """Of the last row."""
        return self._last

    def open(self) -> None:
        """Cut off what a crash left half written."""
        if self._is_open:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        rows = list(read_rows(self._path)) if self._path.exists() else []
        self._last = float(rows[-1]["version"]) if rows else None
        self._columns = _columns(_header(self._path))
        self._size = _whole_bytes(self._path)
        self._is_open = True

    def write(self, row: Mapping[str, float | str]) -> None:
        self.open()
        version = float(row["version"])
        if self._last is not None and version <= self._last:
            self.rewind(version - 1)
        new = [key for key in row if key not in self._columns]
        if new:
            self._replace(read_rows(self._path), [*self._columns, *new] if self._columns else _ordered(new))
        self._append(_line([_cell(row.get(key, "")) for key in self._columns]))
        self._last = version

    def rewind(self, version: float) -> None:
        """Drop the rows beyond this version."""
        self.open()
        if self._last is None or self._last <= version:
            return
        kept = [row for row in read_rows(self._path) if float(row["version"]) <= version]
        self._replace(kept, self._columns)
        self._last = float(kept[-1]["version"]) if kept else None

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # What a write that failed left behind is no row.
            os.ftruncate(descriptor, self._size)
            written = os.pwrite(descriptor, line, self._size)
            if written < len(line):
                written += os.pwrite(descriptor, line[written:], self._size + written)
            self._size += written
        finally:
            os.close(descriptor)

    def _replace(self, rows: Iterable[Row], columns: Sequence[str]) -> None:
        size = 0
        with replacing(self._path) as descriptor:
            for line in _lines(list(columns), rows):
                view = memoryview(line)
                while view:
                    written = os.write(descriptor, view)
                    view, size = view[written:], size + written
        self._columns, self._size = list(columns), size


def read_rows(path: Path) -> Iterator[Row]:
    """The whole rows of a metrics.csv, numbers as numbers, without empty cells; none if there is no such file."""
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            lines = (line for line in file if line.endswith("\n") and "\0" not in line)
            for cells in csv.DictReader(lines):
                row = {key: _value(key, text) for key, text in cells.items() if key and isinstance(text, str) and text}
                if isinstance(row.get("version"), float):
                    yield row
    except FileNotFoundError:
        return


def _lines(columns: list[str], rows: Iterable[Row]) -> Iterator[bytes]:
    yield _line(columns)
    for row in rows:
        yield _line([_cell(row.get(key, "")) for key in columns])


def _line(cells: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _cell(value: float | str) -> str:
    if isinstance(value, str):
        return " ".join(value.split())
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def _value(key: str, text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _ordered(keys: Iterable[str]) -> list[str]:
    """The plain ones first, as they are listed."""
    there = list(keys)
    return [key for key in PLAIN if key in there] + [key for key in there if key not in PLAIN]


def _header(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            line = file.readline()
    except FileNotFoundError:
        return b""
    return line if line.endswith(b"\n") and b"\0" not in line else b""


def _columns(header: bytes) -> list[str]:
    return next(csv.reader([header.decode("utf-8", "replace")]), []) if header else []


def _whole_bytes(path: Path) -> int:
    """Length without a last line that has no end, or that a crash of the machine left as zeros."""
    if not _header(path):
        return 0
    size = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n") or b"\0" in line:
                break
            size += len(line)
    return size
