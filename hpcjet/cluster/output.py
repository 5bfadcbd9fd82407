"""What a program of the user's printed, read while it grows: every byte once, through every restart."""

import time
from collections.abc import Iterator
from pathlib import Path

from hpcjet.rundir import RunDir

CHUNK_BYTES = 64 * 1024


class Output:
    """The output files of a run that match; a requeued run starts a new one, which is read after those before it."""

    def __init__(self, run: RunDir, *, allocations: str = "*", since: float = 0.0) -> None:
        """`allocations` is a pattern for <allocation>-<restart>; files last written before `since` do not count."""
        self._run, self._pattern, self._since = run, allocations, since
        self._positions: dict[Path, int] = {}

    @property
    def found(self) -> bool:
        """Whether a program has started."""
        return bool(self._positions or self._new_files())

    def read(self, *, patience_s: float = 0.0) -> Iterator[bytes]:
        """What is new, in pieces.

        `patience_s`, after the end: how long to wait for a first file, which may be on its way through a shared file
        system.
        """
        deadline = time.monotonic() + patience_s
        while not self.found and time.monotonic() < deadline:
            time.sleep(0.2)
        for file in self._new_files():
            self._positions[file] = 0
        for file in self._positions:
            yield from self._rest(file)

    def _new_files(self) -> list[Path]:
        """Oldest first."""
        found = []
        for file in self._run.path.glob(f"logs/{self._pattern}/output.log"):
            if file not in self._positions and (written := _mtime(file)) >= self._since:
                found.append((written, file))
        return [file for _, file in sorted(found)]

    def _rest(self, file: Path) -> Iterator[bytes]:
        # Opened each time: that is when a network file system looks how long the file is now.
        try:
            with file.open("rb") as opened:
                opened.seek(self._positions[file])
                while piece := opened.read(CHUNK_BYTES):
                    self._positions[file] += len(piece)
                    yield piece
        except OSError:
            return


def _mtime(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return -1.0
