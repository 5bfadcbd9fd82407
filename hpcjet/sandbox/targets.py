"""Whether the places at which a sandbox shows things are safe to make.

bubblewrap makes the missing folders of a mount point while the root of the host is still there, below /oldroot, and it
follows links. A link that an earlier sandbox left in a kept scratch folder, or that a tree brings along, would have it
make folders anywhere on the host that the user may write.
"""

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from hpcjet.errors import SandboxError
from hpcjet.sandbox.etc import HOME
from hpcjet.sandbox.options import Layout
from hpcjet.sandbox.spec import SandboxSpec


def check_targets(spec: SandboxSpec, layout: Layout) -> None:
    """Raise SandboxError if a link lies on the way to a mount point, in a folder that commands could write.

    Nothing runs in these folders yet, and the scratch folder is locked, so what is seen here stays.
    """
    shown = [("/tmp", layout.tmp), ("/var/tmp", layout.tmp), (HOME, layout.home)]
    if spec.view:
        at = _check(spec.view.at, shown)
        shown += [(at, folder) for folder in (layout.upper, *spec.view.lowers)]
    for mount in spec.mounts:
        shown.append((_check(mount.target, shown), mount.source))


def _check(target: str, shown: Sequence[tuple[str, Path]]) -> str:
    """The target without doubled slashes and dots."""
    parts = PurePosixPath(target).parts[1:]
    if not target.startswith("/") or ".." in parts:
        raise SandboxError(f"target={target!r} of a mount must be an absolute path without '..'")
    path = "/" + "/".join(parts)
    for place, folder in shown:
        if path == place or path.startswith(f"{place.rstrip('/')}/"):
            for step in _steps(folder, path[len(place) + 1 :]):
                if _is_link(step):
                    raise SandboxError(
                        f"a symbolic link, {step}, lies on the way to the mount point {target}; choose another target, "
                        "or a scratch folder that no sandbox has used"
                    )
    return path


def _steps(folder: Path, relative: str) -> Iterator[Path]:
    for part in filter(None, relative.split("/")):
        folder = folder / part
        yield folder


def _is_link(path: Path) -> bool:
    try:
        return stat.S_ISLNK(path.lstat().st_mode)
    except OSError:
        return False
