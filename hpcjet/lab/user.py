"""The ordinary user of the lab: what works as root proves little."""

import pwd
from pathlib import Path
from typing import NamedTuple

from hpcjet.errors import LabError
from hpcjet.lab.layout import USER, Layout
from hpcjet.lab.process import clean_environment, run

LOSE_ROOTS_RIGHTS = ("/usr/bin/env", "--")
"""Between setpriv and the command: setpriv still looks its command up with root's right to enter every folder."""


class User(NamedTuple):
    """An account of this machine, with the home directory that all nodes share."""

    name: str
    uid: int
    gid: int
    home: Path


def find_user() -> User | None:
    try:
        entry = pwd.getpwnam(USER)
    except KeyError:
        return None
    return User(entry.pw_name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir))


def ensure_user(layout: Layout) -> User:
    """Create the user, or move their home to this lab's root, and make the home."""
    user = find_user()
    if user is None:
        options = [
            "--system",
            "--user-group",
            "--no-create-home",
            "--shell",
            "/bin/bash",
            "--home-dir",
            str(layout.home),
        ]
        run(["useradd", *options, "--comment", "user of the hpcjet lab", USER])
    elif user.home != layout.home:
        run(["usermod", "--home", str(layout.home), USER])
    return _with_home(layout)


def remove_user(layout: Layout) -> None:
    """Remove the user, unless their home is in another lab's root."""
    if (user := find_user()) and user.home == layout.home:
        run(["userdel", USER])


def user_environment(layout: Layout, user: User) -> dict[str, str]:
    """A login's environment, without anything of the caller's."""
    return clean_environment(
        HOME=str(user.home),
        USER=user.name,
        LOGNAME=user.name,
        SHELL="/bin/bash",
        SLURM_CONF=str(layout.slurm_conf),
    )


def become(user: User) -> list[str]:
    """The words in front of a command that make root run it as the user."""
    return ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", "--", *LOSE_ROOTS_RIGHTS]


def _with_home(layout: Layout) -> User:
    user = find_user()
    if user is None:
        raise LabError(f"useradd made no user {USER}; see /etc/passwd and /etc/nsswitch.conf")
    layout.home.mkdir(mode=0o755, exist_ok=True)
    if layout.home.stat().st_uid != user.uid:
        run(["chown", "-R", f"{user.uid}:{user.gid}", str(layout.home)])
    return user
