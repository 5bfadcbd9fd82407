"""hpcjet logs: the log files of a run, their ends, or all that comes."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcjet.cluster.child import tail
from hpcjet.errors import ConfigError
from hpcjet.rundir import RunDir, path_name

POLL_S = 0.3


def log_files(run: RunDir, *, node: str | None = None, restart: int | None = None) -> list[Path]:
    """The logs of a run, oldest change first; of one node, or of one restart of its allocation, if asked.

    Raises ConfigError naming those that there are if the node or the restart has none.
    """
    folders = sorted(run.path.glob("logs/*-*"))
    if restart is not None:
        folders = [folder for folder in folders if folder.name.endswith(f"-{restart}")]
        if not folders:
            raise ConfigError(f"--restart {restart}: there are no logs of it; there are {_restarts(run)}")
    files = [file for folder in folders for file in folder.glob("*.log")]
    if node is not None:
        nodes = sorted({file.name.partition(".")[0] for file in files})
        files = [file for file in files if file.name.startswith(f"{path_name(node)}.")]
        if not files:
            raise ConfigError(f"--node {node}: it has no logs here; choose one of {', '.join(nodes) or 'none yet'}")
    elif restart is None:
        files += run.submit_folder.glob("*_log.*")
    return sorted(files, key=_changed)


def print_ends(files: Sequence[Path], lines: int) -> None:
    """The last lines of each file."""
    for file in files:
        when = time.strftime("%H:%M:%S", time.localtime(_changed(file)))
        print(f"==> {file} ({when})\n{tail(file, lines)}\n")


def follow_files(list_files: Callable[[], Sequence[Path]], is_over: Callable[[], bool]) -> None:
    """Print what is added to the files, and to those that come, each piece under the name of its file.

    Ends when the run is over and nothing more has come.
    """
    followed: dict[Path, _Followed] = {}
    last: Path | None = None
    first = True
    while True:
        over = is_over()
        for file in list_files():
            each = followed.setdefault(file, _Followed(file, position=_near_the_end(file) if first else 0))
            if text := each.more():
                if file != last:
                    print(f"==> {file}")
                    last = file
                sys.stdout.write(text.decode(errors="replace"))
        sys.stdout.flush()
        if over:
            return
        first = False
        time.sleep(POLL_S)


@dataclass
class _Followed:
    file: Path
    position: int
    _rest: bytes = field(default=b"", repr=False)

    def more(self) -> bytes:
        """Whole lines that were added."""
        try:
            with self.file.open("rb") as opened:
                opened.seek(self.position)
                data = opened.read()
        except OSError:
            return b""
        self.position += len(data)
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        return whole + newline


def _near_the_end(file: Path) -> int:
    """Where the last few lines begin: what was there before is not all repeated."""
    with contextlib.suppress(OSError), file.open("rb") as opened:
        start = max(0, os.fstat(opened.fileno()).st_size - 1000)
        opened.seek(start)
        return start + opened.read().find(b"\n") + 1 if start else 0
    return 0


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _restarts(run: RunDir) -> str:
    numbers = sorted({int(folder.name.rpartition("-")[2]) for folder in run.path.glob("logs/*-*")})
    return ", ".join(map(str, numbers)) or "none yet"
