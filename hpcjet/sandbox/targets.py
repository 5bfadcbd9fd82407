"""Whether the places at which a sandbox shows things are safe to make.

bubblewrap makes the missing folders of a mount point while the root of the host is still there, below /oldroot, and it
follows links. A link that an earlier sandbox left in a kept scratch folder, or that a tree brings along, would have it
make folders anywhere on the host that the user may write.
"""

import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from hpcjet.errors import SandboxError
from hpcjet.sandbox.etc import HOME
from hpcjet.sandbox.options import Layout
from hpcjet.sandbox.spec import SandboxSpec


def check_targets(spec: SandboxSpec, layout: Layout) -> None:
    """Raise SandboxError if a link lies on the way to a mount point, in a folder that commands could write.

    Nothing runs in these folders yet, and the scratch folder is locked, so what is seen here stays.
    """
    shown: list[tuple[PurePosixPath, Path]] = [
        (PurePosixPath("/tmp"), layout.tmp),
        (PurePosixPath("/var/tmp"), layout.tmp),
        (PurePosixPath(HOME), layout.home),
    ]
    if spec.view:
        _check(spec.view.at, shown)
        shown += [(PurePosixPath(spec.view.at), folder) for folder in (layout.upper, *spec.view.lowers)]
    for mount in spec.mounts:
        _check(mount.target, shown)
        shown.append((PurePosixPath(mount.target), mount.source))


def _check(target: str, shown: list[tuple[PurePosixPath, Path]]) -> None:
    path = PurePosixPath(target)
    if not path.is_absolute() or ".." in path.parts:
        raise SandboxError(f"target={target!r} of a mount must be an absolute path without '..'")
    for place, folder in shown:
        if path.is_relative_to(place):
            for step in _steps(folder, path.relative_to(place)):
                if _is_link(step):
                    raise SandboxError(
                        f"a symbolic link, {step}, lies on the way to the mount point {target}; choose another target, "
                        "or a scratch folder that no sandbox has used"
                    )


def _steps(folder: Path, relative: PurePosixPath) -> Iterator[Path]:
    for part in relative.parts:
        folder = folder / part
        yield folder


def _is_link(path: Path) -> bool:
    try:
        return stat.S_ISLNK(path.lstat().st_mode)
    except OSError:
        return False
