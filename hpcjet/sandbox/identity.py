"""The user that sandboxes run as."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import SandboxError


@dataclass(frozen=True)
class Identity:
    """A user and group id, and whether hpcjet has to change to it (it runs as root) or has it already."""

    uid: int
    gid: int
    switch: bool

    def popen(self) -> dict[str, Any]:
        """The arguments of subprocess that start a program as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switch else {}

    def own(self, path: Path) -> None:
        """Give one file or folder (never the target of a link) to this user."""
        if self.switch:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def identity(config: SandboxConfig) -> Identity:
    """Who sandboxes run as: the user of this process, or config.root_uid where that is root."""
    if os.geteuid() != 0:
        return Identity(os.geteuid(), os.getegid(), switch=False)
    if config.root_uid <= 0:
        raise SandboxError(f"sandbox.root_uid={config.root_uid} must be the id of an unprivileged user, such as 60999")
    return Identity(config.root_uid, config.root_uid, switch=True)


def check_reachable(folder: Path, who: Identity) -> None:
    """Raise SandboxError if a folder on the way to `folder` keeps the sandbox user out."""
    if not who.switch:
        return
    for parent in (folder, *folder.parents):
        mode = parent.stat().st_mode
        if not mode & 0o001 and parent.stat().st_uid != who.uid:
            raise SandboxError(
                f"the sandbox user {who.uid} cannot enter {parent} (mode {mode & 0o777:o}) on the way to {folder}; "
                f"run `chmod o+x {parent}` or set sandbox.scratch to a folder that every user can enter"
            )
