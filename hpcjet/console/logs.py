"""hpcjet logs: the log files of a run, their ends, or all that comes."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcjet.cluster.child import tail
from hpcjet.errors import ConfigError
from hpcjet.rundir import RunDir, path_name
from hpcjet.slurm.allocations import allocations
from hpcjet.slurm.jobid import job_of

POLL_S = 0.3


def log_files(
    run: RunDir, *, node: str | None = None, restart: int | None = None, group: str | None = None
) -> list[Path]:
    """The logs of a run, oldest change first; of one node, one restart, or one group's worker allocations, if asked.

    Raises ConfigError naming those that there are if the node, the restart or the group has none.
    """
    folders = sorted(run.path.glob("logs/*-*"))
    jobs = None if group is None else _jobs(run, group)
    if jobs is not None:
        folders = [folder for folder in folders if folder.name.rpartition("-")[0] in jobs]
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
        outputs = run.submit_folder.glob("*_log.*")
        files += [file for file in outputs if jobs is None or job_of(file.name) in jobs]
    return sorted(files, key=_changed)


def print_ends(files: Sequence[Path], lines: int, *, labels: Mapping[str, str]) -> None:
    """The last lines of each file; `labels`: job -> what it is to the run, where that is no matter of course."""
    for file in files:
        when = time.strftime("%H:%M:%S", time.localtime(_changed(file)))
        job = file.parent.name.rpartition("-")[0] or job_of(file.name)
        also = f"{labels[job]}, " if job in labels else ""
        print(f"==> {file} ({also}{when})\n{tail(file, lines)}\n")


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


def _jobs(run: RunDir, group: str) -> set[str]:
    """The jobs of a group's worker allocations."""
    there = allocations(run)
    if jobs := {each.job_id for each in there if each.group == group}:
        return jobs
    names = ", ".join(sorted({each.group for each in there})) or "none yet"
    raise ConfigError(f"--group {group}: it has no worker allocations; those that have: {names}")


def _restarts(run: RunDir) -> str:
    numbers = sorted({int(folder.name.rpartition("-")[2]) for folder in run.path.glob("logs/*-*")})
    return ", ".join(map(str, numbers)) or "none yet"
