"""A model's files copied once to a node, to its disk or its memory, for all replicas there."""

import contextlib
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from hpcjet.cluster.leftovers import hold, sweep
from hpcjet.config.engine import Stage
from hpcjet.errors import EngineError

MEMORY = Path("/dev/shm")
PREFIX = "hj-model-"
READERS = 8
"""Parts that are copied at a time: one reader alone gets a fraction of what a parallel file system gives."""
PART = 1024**3
_CHUNK = 16 * 1024**2
_SPARE = 1024**3
_SAY_S = 10.0
GIB = 1024**3


@dataclass
class _Copy:
    users: int = 0
    whole: bool = False
    busy: threading.Lock = field(default_factory=threading.Lock)
    held: int | None = None
    """The descriptor that marks a folder in memory as in use: what a killed run left there, the next one removes."""


class Shelf:
    """The copies that this process made. A copy goes when the last of those that took it gives it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies: dict[Path, _Copy] = {}

    def take(
        self, model: Path, folder: Path, *, say: Callable[[str], None], stopping: Callable[[], bool] = lambda: False
    ) -> None:
        """Have the files of `model` in `folder`; who comes second waits for the first.

        Raises EngineError without room, or when a file cannot be copied.
        """
        with self._lock:
            copy = self._copies.setdefault(folder, _Copy())
            copy.users += 1
        with copy.busy:
            if not copy.whole:
                copy.held = _make(model, folder, say=say, stopping=stopping)
                copy.whole = True

    def give_back(self, folder: Path) -> None:
        """The other side of `take`, also of one that raised."""
        with self._lock:
            copy = self._copies.get(folder)
            if copy is None:
                return
            copy.users -= 1
            if copy.users:
                return
            del self._copies[folder]
        _remove(folder, copy.held)


SHELF = Shelf()
"""Of this process: on a node all replicas of a run have the same parent."""


def staged_path(model: Path, kind: Stage, *, private: Path) -> Path:
    """Where the copy of a model goes: `private` is a folder of the run on a local disk, which is removed with it."""
    if kind is Stage.none:
        return model
    run = hashlib.sha256(os.fsencode(private)).hexdigest()[:8]
    return (MEMORY / f"{PREFIX}{run}" if kind is Stage.shm else private / "models") / model.name


def files_of(model: Path) -> dict[Path, int]:
    """The files that an engine reads, with their sizes: not the copies for other programs, nor hidden ones."""
    names = [path.relative_to(model) for path in model.rglob("*") if path.is_file()]
    chosen = [name for name in names if not any(part.startswith(".") or part == "original" for part in name.parts)]
    if any(name.suffix == ".safetensors" for name in chosen):
        chosen = [name for name in chosen if name.suffix not in (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")]
    return {name: (model / name).stat().st_size for name in sorted(chosen)}


def parts_of(files: dict[Path, int], size: int = PART) -> list[tuple[Path, int, int]]:
    """(file, first byte, number of bytes): no file is too long for one reader."""
    return [
        (name, begin, min(size, length - begin))
        for name, length in files.items()
        for begin in range(0, max(1, length), size)
    ]


def _make(model: Path, folder: Path, *, say: Callable[[str], None], stopping: Callable[[], bool]) -> int | None:
    """Returns the descriptor that marks a folder in memory as in use."""
    held = None
    try:
        if folder.is_relative_to(MEMORY):
            sweep(MEMORY, prefix=PREFIX)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        held = hold(folder.parent) if folder.is_relative_to(MEMORY) else None
        files = files_of(model)
        _check_room(sum(files.values()), folder)
        _copy(model, folder, files, say=say, stopping=stopping)
    except OSError as error:
        _remove(folder, held)
        raise EngineError(
            f"engine.stage: {model} could not be copied to {folder}: {error.strerror}; set engine.stage=none"
        ) from error
    except BaseException:
        _remove(folder, held)
        raise
    return held


def _remove(folder: Path, held: int | None) -> None:
    if held is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    shutil.rmtree(folder.parent, ignore_errors=True)  # with the mark
    os.close(held)


def _check_room(size: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < size + _SPARE:
        raise EngineError(
            f"engine.stage: {folder} has {free / GIB:.1f} GiB free, and the model takes {size / GIB:.1f} with a spare "
            "of 1.0; set engine.stage=none, or the other one of disk and shm"
        )


def _copy(
    model: Path, folder: Path, files: dict[Path, int], *, say: Callable[[str], None], stopping: Callable[[], bool]
) -> None:
    begin, whole, done = time.monotonic(), sum(files.values()), 0
    next_say = begin + _SAY_S
    for name, size in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("wb") as file:
            os.truncate(file.fileno(), size)
    with ThreadPoolExecutor(READERS, thread_name_prefix="stage") as pool:
        tasks = {pool.submit(_copy_part, model, folder, part, stopping): part[2] for part in parts_of(files)}
        try:
            for task in as_completed(tasks):
                task.result()
                done += tasks[task]
                if time.monotonic() >= next_say:
                    say(f"copied {done / GIB:.1f} of {whole / GIB:.1f} GiB to {folder}")
                    next_say = time.monotonic() + _SAY_S
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    took = max(0.001, time.monotonic() - begin)
    say(f"copied {model} to {folder}: {whole / GIB:.2f} GiB in {took:.1f} s, {whole / GIB / took:.2f} GiB/s")


def _copy_part(model: Path, folder: Path, part: tuple[Path, int, int], stopping: Callable[[], bool]) -> None:
    name, begin, length = part
    with (model / name).open("rb") as source, (folder / name).open("r+b") as target:
        target.seek(begin)
        while length > 0:
            if stopping():
                raise EngineError("the copy of the model was stopped")
            sent = os.sendfile(target.fileno(), source.fileno(), begin, min(length, _CHUNK))
            if not sent:
                raise EngineError(f"{model / name} became shorter while it was copied")
            begin, length = begin + sent, length - sent
        with contextlib.suppress(OSError):
            # A node's memory is for the engines: pages of the source are of no more use.
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
