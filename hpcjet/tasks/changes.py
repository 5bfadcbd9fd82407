"""What a sandbox changed, seen from the host: a walk over the upper layer of its overlay view."""

import os
import stat
from collections.abc import Container, Sequence
from pathlib import Path

_OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")


def changed_paths(
    upper: Path, lowers: Sequence[Path], *, limit: int, skip: Container[bytes] = ()
) -> tuple[bytes, ...] | None:
    """The changed places below an upper layer, each a file or a whole folder, relative; without the top `.git`.

    None if they do not tell the whole story (more than `limit`, a folder in place of a file, something unreadable):
    look at all of the view then. Entries with a name in `skip` are passed over. The layer must be at rest. No link in
    it is followed; only folders in it are opened.
    """
    found: list[bytes] = []
    waiting = [b""]
    try:
        while waiting:
            folder = waiting.pop()
            with os.scandir(os.fsencode(upper) + b"/" + folder) as entries:
                for entry in entries:
                    place = folder + b"/" + entry.name if folder else entry.name
                    if place == b".git" or entry.name in skip:
                        continue
                    change = _change(entry, place, lowers)
                    if change is None:
                        return None
                    if change == "descend":
                        waiting.append(place)
                    elif change == "changed":
                        found.append(place)
                        if len(found) > limit:
                            return None
    except OSError:
        return None
    return tuple(sorted(found))


def _change(entry: "os.DirEntry[bytes]", place: bytes, lowers: Sequence[Path]) -> str | None:
    """ "changed", "descend" (look inside), "nothing" or None (unclear)."""
    mode = entry.stat(follow_symlinks=False).st_mode
    below = [_mode(os.fsencode(lower) + b"/" + place) for lower in lowers]
    over_folder = any(map(stat.S_ISDIR, below))
    if stat.S_ISDIR(mode):
        if over_folder:
            return "changed" if _opaque(entry) else "descend"
        return None if any(below) else "changed"
    if stat.S_ISCHR(mode):  # a whiteout; a sandbox user can make no other device
        return "changed"
    if over_folder:
        return None
    if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
        return "changed"
    return None if any(below) else "nothing"


def _mode(path: bytes) -> int:
    """The mode of what a layer has there, 0 if it has nothing."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def _opaque(entry: "os.DirEntry[bytes]") -> bool:
    """Whether a folder hides what the layers below have in it."""
    names = os.listxattr(entry.path, follow_symlinks=False)
    return any(name in names for name in _OPAQUE)
