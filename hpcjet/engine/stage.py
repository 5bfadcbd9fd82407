"""A model's files copied once to a node, to its disk or its memory, for all replicas there.

One node reads them from where they lie; the others fetch each part from a node that has it already.
"""

import contextlib
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from hpcjet.cluster.leftovers import hold, sweep
from hpcjet.config.engine import Stage
from hpcjet.engine.stage_fetch import Upstream
from hpcjet.engine.stage_parts import Part, Parts
from hpcjet.engine.words import StageParent
from hpcjet.errors import EngineError

MEMORY = Path("/dev/shm")
PREFIX = "hj-model-"
READERS = 8
"""Parts that are copied at a time: one reader alone gets a fraction of what a parallel file system gives."""
PART = 64 * 1024**2
"""Passed on as one: small against a model, so that all nodes copy at almost the same time."""
_CHUNK = 4 * 1024**2
_SPARE = 1024**3
_SAY_S = 10.0
GIB = 1024**3


@dataclass
class _Copy:
    users: int = 0
    whole: bool = False
    busy: threading.Lock = field(default_factory=threading.Lock)
    parts: Parts | None = None
    """Once it is being made."""
    held: int | None = None
    """The descriptor that marks a folder in memory as in use: what a killed run left there, the next one removes."""


class Shelf:
    """The copies that this process made. A copy goes when the last of those that took it gives it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies: dict[Path, _Copy] = {}

    def take(
        self, model: Path, folder: Path, *, say: Callable[[str], None], stopping: Callable[[], bool] = lambda: False,
        parent: StageParent | None = None, key: str = "",
    ) -> None:  # fmt: skip
        """Have the files of `model` in `folder`; who comes second waits for the first.

        They come from the node `parent`, which wants the run's engine key, and what it cannot give from `model`.

        Raises EngineError without room, or when a file cannot be copied.
        """
        with self._lock:
            copy = self._copies.setdefault(folder, _Copy())
            copy.users += 1
        with copy.busy:
            if not copy.whole:
                maker = _Maker(model, folder, copy, say=say, stopping=stopping)
                maker.make(parent, key)
                copy.whole = True

    def find(self, digest: str) -> Parts | None:
        """The copy of the files with this digest, which may still be in the making."""
        with self._lock:
            known = [copy.parts for copy in self._copies.values() if copy.parts and copy.parts.digest == digest]
        return known[0] if known else None

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
        if copy.parts:
            copy.parts.close("the replica there has ended")
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


def parts_of(files: dict[Path, int], size: int = PART) -> list[Part]:
    """No file is too long for one reader."""
    return [
        (name, begin, min(size, length - begin))
        for name, length in files.items()
        for begin in range(0, max(1, length), size)
    ]


@dataclass
class _Maker:
    """Makes one copy."""

    model: Path
    folder: Path
    copy: _Copy
    _: KW_ONLY
    say: Callable[[str], None]
    stopping: Callable[[], bool]

    def make(self, parent: StageParent | None, key: str) -> None:
        """All of it, or nothing is left. Raises EngineError."""
        model, folder, copy = self.model, self.folder, self.copy
        try:
            if folder.is_relative_to(MEMORY):
                sweep(MEMORY, prefix=PREFIX)
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            copy.held = hold(folder.parent) if folder.is_relative_to(MEMORY) else None
            files = files_of(model)
            _check_room(sum(files.values()), folder)
            _lay_out(folder, files)
            copy.parts = Parts(model, folder, parts_of(files))
            self._fill(copy.parts, parent, key)
        except BaseException as error:
            if copy.parts:
                copy.parts.close("its copy has failed")
            _remove(folder, copy.held)
            copy.parts = copy.held = None
            if isinstance(error, OSError):
                raise EngineError(
                    f"engine.stage: {model} could not be copied to {folder}: {error.strerror}; set engine.stage=none"
                ) from error
            raise

    def _fill(self, parts: Parts, parent: StageParent | None, key: str) -> None:
        begin = time.monotonic()
        upstream = Upstream(parent, parts, key=key, say=self.say, stopping=self.stopping) if parent else None
        try:
            self._get_all(parts, upstream)
        finally:
            if upstream:
                upstream.close()
        took, whole = max(0.001, time.monotonic() - begin), sum(length for _, _, length in parts.all)
        origin = (
            f"; {parts.read / GIB:.2f} GiB of it from the source, the rest from {upstream.label}" if upstream else ""
        )
        self.say(
            f"copied {self.model} to {self.folder}: {whole / GIB:.2f} GiB in {took:.1f} s, "
            f"{whole / GIB / took:.2f} GiB/s{origin}"
        )

    def _get_all(self, parts: Parts, upstream: Upstream | None) -> None:
        whole, done = sum(length for _, _, length in parts.all), 0
        next_say = time.monotonic() + _SAY_S
        with ThreadPoolExecutor(READERS, thread_name_prefix="stage") as pool:
            tasks = {pool.submit(self._get, parts, n, upstream): part[2] for n, part in enumerate(parts.all)}
            try:
                for task in as_completed(tasks):
                    task.result()
                    done += tasks[task]
                    if time.monotonic() >= next_say:
                        self.say(f"copied {done / GIB:.1f} of {whole / GIB:.1f} GiB to {self.folder}")
                        next_say = time.monotonic() + _SAY_S
            except BaseException:
                if upstream:
                    upstream.close()
                pool.shutdown(cancel_futures=True)
                raise

    def _get(self, parts: Parts, number: int, upstream: Upstream | None) -> None:
        checksum = upstream.fetch(number) if upstream and parts.all[number][2] else None
        if checksum is None:
            _copy_part(self.model, parts, number, self.stopping)
        parts.add(number, checksum=checksum)


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


def _lay_out(folder: Path, files: dict[Path, int]) -> None:
    for name, size in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("wb") as file:
            os.truncate(file.fileno(), size)


def _copy_part(model: Path, parts: Parts, number: int, stopping: Callable[[], bool]) -> None:
    name, begin, length = parts.all[number]
    with (model / name).open("rb") as source, (parts.folder / name).open("r+b") as target:
        at, end = begin, begin + length
        target.seek(at)
        while at < end:
            if stopping():
                raise EngineError("the copy of the model was stopped")
            sent = os.sendfile(target.fileno(), source.fileno(), at, min(end - at, _CHUNK))
            if not sent:
                raise EngineError(f"{model / name} became shorter while it was copied")
            at += sent
            parts.came(sent)
        with contextlib.suppress(OSError):
            # A node's memory is for the engines: pages of the source are of no more use.
            os.posix_fadvise(source.fileno(), begin, length, os.POSIX_FADV_DONTNEED)
