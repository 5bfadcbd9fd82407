"""Taking base trees away: by age, by size, and whatever makers that were killed left behind.

Whoever uses a layer has its folder locked, and who builds on one too. A layer goes before the one below it: what was
built on a layer does not fit one that is made anew, whose files are younger.
"""

import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from stat import S_ISREG

from hpcjet.sandbox.disk import BLOCK_BYTES, walk
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.tasks.layerfile import last_used, read_about
from hpcjet.tasks.lease import seized
from hpcjet.tasks.lockfile import tried
from hpcjet.tasks.room import DAY_S, GIB, Keep, free_bytes

log = logging.getLogger(__name__)
FAILURES_S = 7 * DAY_S
"""How long the log of a build that failed is kept."""
GONE = ".gone"
"""Ending of a folder that is being removed."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer in the folder of trees."""

    folder: Path
    below: str
    used: float
    """When it, or one that stands on it, was last used; seconds since the epoch."""
    size_bytes: int


@dataclass
class Cleaned:
    """What one cleaning did."""

    layers: list[Path] = field(default_factory=list)
    """Removed because of their age, or for room."""
    freed_bytes: int = 0
    """By layers and drafts together, as they stood on disk."""
    drafts: int = 0
    """Half-made layers of makers that were killed."""
    failures: int = 0
    """Old logs of builds that failed."""
    in_use: list[Path] = field(default_factory=list)
    """Layers that should have gone and are in use."""
    left_bytes: int = 0
    """Size of the layers that are still there."""

    def __str__(self) -> str:
        parts = [f"{len(self.layers)} layers", f"{self.drafts} drafts", f"{self.failures} logs of failed builds"]
        used = f"; {len(self.in_use)} more are in use" if self.in_use else ""
        return (
            f"removed {', '.join(parts)}: {self.freed_bytes / GIB:.2f} GiB; "
            f"{self.left_bytes / GIB:.2f} GiB are left{used}"
        )


def clean(root: Path, keep: Keep, *, dry_run: bool = False) -> Cleaned:
    """Take away what `keep` does not let stay below a folder of trees; any number of processes may do it at once.

    With dry_run nothing is removed, and `layers` are those that would be, if nobody uses them.
    """
    done = Cleaned()
    if not dry_run:
        _remove_left_overs(root, done)
    layers = list_layers(root)
    done.left_bytes = sum(layer.size_bytes for layer in layers)
    free = free_bytes(root) if layers else 0
    for layer in eviction_order(layers):
        if not is_due(layer, keep, now=time.time(), total_bytes=done.left_bytes, free_bytes=free):
            break
        if not dry_run and not _take_away(layer):
            done.in_use.append(layer.folder)
            continue
        done.layers.append(layer.folder)
        done.freed_bytes += layer.size_bytes
        done.left_bytes -= layer.size_bytes
        free += layer.size_bytes
    return done


def list_layers(root: Path) -> list[Layer]:
    """The whole layers in a folder of trees."""
    found: dict[str, Layer] = {}
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        about = None if folder.suffix in (GONE, ".draft") else read_about(folder)
        if about is not None:
            size = about.size_bytes if about.size_bytes is not None else own_bytes(folder, stacked=bool(about.below))
            with contextlib.suppress(FileNotFoundError):
                used = last_used(folder)
                found[folder.name] = Layer(folder=folder, below=about.below, used=used, size_bytes=size)
    return [_with_uppers(layer, found) for layer in found.values()]


def own_bytes(folder: Path, *, stacked: bool) -> int:
    """What a layer takes on disk; git objects that it shares by hard links are counted with the layer below."""
    shared = 0
    if stacked:
        files = (path.lstat() for path in (folder / "git/objects").rglob("*"))
        shared = sum(about.st_blocks * BLOCK_BYTES for about in files if S_ISREG(about.st_mode) and about.st_nlink > 1)
    return walk([folder]).bytes - shared


def _with_uppers(layer: Layer, found: dict[str, Layer]) -> Layer:
    used, names = layer.used, {layer.folder.name}
    while above := [upper for upper in found.values() if upper.below in names and upper.folder.name not in names]:
        names |= {upper.folder.name for upper in above}
        used = max(used, *(upper.used for upper in above))
    return Layer(folder=layer.folder, below=layer.below, used=used, size_bytes=layer.size_bytes)


def eviction_order(layers: Sequence[Layer]) -> list[Layer]:
    """The order in which layers go: longest unused first, but each after all that stand on it."""
    below = {layer.folder.name: layer.below for layer in layers}

    def depth(name: str) -> int:
        steps = 0
        while (name := below.get(name, "")) and steps < len(below):
            steps += 1
        return steps

    return sorted(layers, key=lambda layer: (layer.used, -depth(layer.folder.name), layer.folder.name))


def is_due(layer: Layer, keep: Keep, *, now: float, total_bytes: int, free_bytes: int) -> bool:
    """Whether a layer must go, when all layers and the free space are of this size."""
    too_old = keep.age_s is not None and now - layer.used > keep.age_s
    too_big = keep.size_bytes is not None and total_bytes > keep.size_bytes
    return too_old or too_big or free_bytes < keep.free_bytes


def _take_away(layer: Layer) -> bool:
    with seized(layer.folder) as free:
        # Seen again with the lock: somebody may have built on it meanwhile, and have left.
        if not free or _is_stood_on(layer.folder):
            return not layer.folder.exists()
        gone = put_aside(layer.folder)
    _discard(gone)
    return True


def _is_stood_on(folder: Path) -> bool:
    names = [entry for entry in folder.parent.iterdir() if entry.suffix not in (GONE, ".draft") and entry != folder]
    return any(about.below == folder.name for about in map(read_about, names) if about is not None)


def put_aside(folder: Path) -> Path:
    """Give a folder a name under which nobody looks for it; where it is now."""
    gone = folder.with_name(f"{folder.name}.{token_hex(4)}{GONE}")
    folder.rename(gone)
    return gone


def _discard(gone: Path) -> None:
    """Remove a folder that was put aside. What cannot be removed now, the next cleaning tries again."""
    try:
        remove_tree(gone)
    except OSError as error:
        log.info("%s could not be removed yet: %s", gone, error)


# What was left behind


def _remove_left_overs(root: Path, done: Cleaned) -> None:
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):
            if path.suffix == GONE:
                with seized(path) as free:
                    if free:
                        done.freed_bytes += walk([path]).bytes
                        _discard(path)
            elif path.suffix == ".lock":
                _remove_drafts(path, done)
            elif path.name.endswith((".failed.json", ".failed.log")) and _age_s(path) > FAILURES_S:
                path.unlink()
                done.failures += path.suffix == ".log"


def _remove_drafts(lock: Path, done: Cleaned) -> None:
    """Of one layer, unless it is being made: whoever makes it holds its lock."""
    folder = lock.with_suffix("")
    with tried(lock) as free:
        if not free:
            return
        for draft in lock.parent.glob(f"{folder.name}.*.draft"):
            done.freed_bytes += walk([draft]).bytes
            done.drafts += 1
            _discard(draft)
        if not folder.exists():
            lock.unlink()  # who waits for it sees that it is gone, and makes another


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime
