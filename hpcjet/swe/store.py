"""The result store: a folder of JSON lines in which a result that was once acknowledged stays.

Each writer appends to a segment of its own, so it works on NFS and Lustre, where two writers of one file lose lines.
Readers list the folder and open what they find: a name that is looked for too early stays invisible on NFS.
"""

import errno
import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcjet.atomic import sync_folder
from hpcjet.errors import StoreError
from hpcjet.swe.record import Record
from hpcjet.swe.record_json import checked_values, to_line, to_record
from hpcjet.tasks.verdict import Verdict

_SUFFIX = ".jsonl"
_REMEDIES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free some of your quota there",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EROFS: "have the file system made writable",
    errno.EACCES: "make the folder writable",
    errno.EPERM: "make the folder writable",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}

_log = logging.getLogger(__name__)

Key = tuple[str, int]


@dataclass(frozen=True)
class Problem:
    """A line that is no record."""

    segment: Path
    line: int
    """1-based."""
    reason: str

    def __str__(self) -> str:
        return f"{self.segment}:{self.line}: {self.reason}"


class ResultStore:
    """The results of a run, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def writer(self, name: str) -> "Writer":
        """A writer of its own segment; `name`, such as that of the node, is for people who look into the folder."""
        return Writer(self.folder, name)

    def index(self) -> "Index":
        """Read every line once and keep which one counts for each attempt. Raises StoreError if that is impossible."""
        index = Index()
        try:
            for segment in self.segments():
                index.read_segment(segment)
        except OSError as error:
            raise StoreError(
                f"results in {self.folder} cannot be read: {error.strerror} ({error.filename}); check the file system"
            ) from error
        return index

    def segments(self) -> list[Path]:
        """The files of results, in the order of their names."""
        try:
            names = _listing(self.folder)
        except FileNotFoundError:
            return []
        return [self.folder / name for name in sorted(names) if name.endswith(_SUFFIX) and not name.startswith(".")]

    def read(self) -> Iterator[Record]:
        """The one record that counts of each attempt. What is wrong with other lines is logged."""
        index = self.index()
        for problem in index.problems:
            _log.warning("%s", problem)
        return index.records()

    def keys_done(self, *, max_tries: int = 1) -> set[Key]:
        """The attempts that need not run again: judged, or failed by the infrastructure `max_tries` times."""
        return self.index().keys_done(max_tries=max_tries)


@dataclass(frozen=True, slots=True)
class _Place:
    segment: int
    offset: int
    tries: int
    """0 for a judged record, else how often the infrastructure had failed."""
    recorded: float

    def counts_before(self, other: "_Place") -> bool:
        if self.tries != other.tries:
            return not self.tries or self.tries > other.tries > 0
        return self.recorded < other.recorded  # of two at the same time, the one read first stays


@dataclass
class Index:
    """Where the record that counts of each attempt stands, and what else was found.

    A judged record counts before an infrastructure failure, and the one recorded first before later ones; of
    infrastructure failures only, the one with most tries counts.
    """

    segments: list[Path] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    duplicates: int = 0
    """Judged records of attempts that had one already."""
    retried: int = 0
    """Infrastructure failures that a later try made up for or repeated."""
    _places: dict[Key, _Place] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def keys_done(self, *, max_tries: int = 1) -> set[Key]:
        """The attempts that need not run again: judged, or failed by the infrastructure `max_tries` times."""
        return {key for key, place in self._places.items() if not place.tries or place.tries >= max_tries}

    def tries(self, key: Key) -> int:
        """How often an attempt that is not judged was started; 0 for all others."""
        place = self._places.get(key)
        return place.tries if place else 0

    def read_segment(self, segment: Path) -> None:
        """Add the lines of one segment."""
        number, offset = len(self.segments), 0
        self.segments.append(segment)
        with segment.open("rb") as file:
            for line_number, line in enumerate(file, 1):
                try:
                    if not line.endswith(b"\n"):
                        raise ValueError("unfinished last line: its writer was stopped, or is still writing")
                    self._add(checked_values(line), number, offset)
                except ValueError as error:
                    self.problems.append(Problem(segment, line_number, _reason(error)))
                offset += len(line)

    def _add(self, values: dict[str, Any], segment: int, offset: int) -> None:
        judged = values["verdict"] != Verdict.infrastructure.value
        tries = 0 if judged else max(1, values.get("tries", 1))
        place = _Place(segment, offset, tries, values.get("recorded", 0.0))
        key = values["instance_id"], values["attempt"]
        old = self._places.get(key)
        if old is None or place.counts_before(old):
            self._places[key] = place
        if old is not None and judged and not old.tries:
            self.duplicates += 1
        elif old is not None:
            self.retried += 1

    def records(self) -> Iterator[Record]:
        """The records that count, segment by segment; one at a time is in memory."""
        places = sorted((place.segment, place.offset) for place in self._places.values())
        file, opened = None, -1
        try:
            for segment, offset in places:
                if file is None or segment != opened:
                    if file is not None:
                        file.close()
                    file, opened = self.segments[segment].open("rb"), segment
                file.seek(offset)
                yield to_record(json.loads(file.readline()))
        finally:
            if file is not None:
                file.close()


def _listing(folder: Path) -> list[str]:
    """The names in a folder. On NFS one that was missing a while ago stays so, until its parent is listed."""
    try:
        return os.listdir(folder)  # noqa: PTH208
    except FileNotFoundError:
        if folder.name not in os.listdir(folder.parent):  # noqa: PTH208
            raise
        return os.listdir(folder)  # noqa: PTH208


def _reason(error: ValueError) -> str:
    return f"not a record: {error}" if not str(error).startswith("unfinished") else str(error)


class Writer:
    """Appends records to a segment of its own. Threads may share one; a process that is forked off begins a segment."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:60] or "writer"
        self._lock = threading.Lock()
        self._segment: Path | None = None
        self._descriptor = -1
        self._size = 0
        self._pid = 0

    def add(self, record: Record) -> None:
        """Record an attempt: when this returns it is on disk, whatever is killed.

        Raises StoreError if it could not be written. The store is whole then; `add` works again once the cause is gone.
        """
        line = to_line(record, recorded=time.time())
        with self._lock:
            try:
                if self._descriptor < 0 or self._pid != os.getpid():
                    self._begin_segment()
                _write_all(self._descriptor, line, self._size)
                os.fsync(self._descriptor)
                self._size += len(line)
            except OSError as error:
                self._drop_segment()
                raise StoreError(self._failure(record, error)) from error
            except BaseException:
                self._drop_segment()
                raise

    def close(self) -> None:
        """Close the segment; every record is on disk already."""
        with self._lock:
            if self._descriptor >= 0 and self._pid == os.getpid():
                os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin_segment(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._segment = self._folder / f"{self._name}-{secrets.token_hex(8)}{_SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = -1  # in a forked process it was the parent's
        self._descriptor, self._size, self._pid = os.open(self._segment, flags, 0o600), 0, os.getpid()
        sync_folder(self._folder)

    def _drop_segment(self) -> None:
        """Cut off what may be half written and leave the segment: after a failed fsync its state is not known for sure.

        Should the cut fail too, readers pass over the half line, it being the last of its segment.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0 or self._segment is None:
            return
        try:
            try:
                os.ftruncate(descriptor, self._size)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if self._size == 0:
                self._segment.unlink()
        except OSError as error:
            _log.warning("%s could not be cut back to %d bytes: %s", self._segment, self._size, error.strerror)

    def _failure(self, record: Record, error: OSError) -> str:
        remedy = _REMEDIES.get(error.errno or 0, "check the file system")
        return (
            f"the result of {record.instance_id} attempt {record.attempt} could not be written to {self._folder}:"
            f" {error.strerror}; results safe there: {_count_lines(self._folder)};"
            f" {remedy}, then: hpcjet resume {self._folder.parent}"
        )


def _write_all(descriptor: int, line: bytes, offset: int) -> None:
    """One write, as a rule. The rest after a short one is tried for the error that tells why."""
    written = os.pwrite(descriptor, line, offset)
    while written < len(line):
        more = os.pwrite(descriptor, line[written:], offset + written)
        if not more:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += more


def _count_lines(folder: Path) -> str:
    """How many results stand in the store, for a message."""
    try:
        return str(sum(_lines_in(segment) for segment in ResultStore(folder).segments()))
    except OSError:
        return "all earlier ones"


def _lines_in(segment: Path) -> int:
    with segment.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
