"""Running hpcjet in the lab as users do: as its ordinary user, from an installed wheel; root's task sets are shared."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hpcjet.errors import ConfigError
from hpcjet.lab.lab import Lab
from hpcjet.lab.user import become, user_environment
from hpcjet.paths import PACKAGE, cache_dir
from hpcjet.tasks.sets import sets_dir


def run_as_lab_user(words: Sequence[str]) -> NoReturn:
    """Become a command of the lab's user. Raises LabError if the lab is down, ConfigError outside a checkout."""
    project = PACKAGE.parent
    if not (project / "pyproject.toml").exists():
        raise ConfigError(f"the lab installs hpcjet from a checkout, and {project} is none; run it from there")
    lab = Lab()
    command = lab.login_command(words)
    programs = lab.install(project) / "bin"
    share_task_sets(lab)
    environment = user_environment(lab.layout, lab.user) | {"TERM": os.environ.get("TERM", "dumb")}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    os.chdir(lab.layout.home)
    os.execvpe(command[0], command, environment)


def share_task_sets(lab: Lab) -> None:
    """Copy root's task sets to the user's cache where it has none of that name; trees are built anew by the user."""
    mine, theirs = sets_dir(cache_dir()), sets_dir(lab.layout.home / ".cache" / "hpcjet")
    if not mine.is_dir():
        return
    subprocess.run([*become(lab.user), "mkdir", "-p", str(theirs)], check=True)
    for source in sorted(mine.iterdir()):
        target = theirs / source.name
        if source.name.startswith(".") or target.exists():
            continue
        draft = theirs / f".{source.name}.{os.getpid()}"
        _copy(source, draft, lab)
        draft.rename(target)


def _copy(source: Path, target: Path, lab: Lab) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)
    subprocess.run(["chown", "-R", "-h", f"{lab.user.uid}:{lab.user.gid}", str(target)], check=True)
