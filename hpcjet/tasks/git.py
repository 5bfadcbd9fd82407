"""git as hpcjet calls it: bytes in and out, and nobody's configuration."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcjet.errors import TaskError

ISOLATED = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    # repositories of another user (root's, a colleague's) may be read
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_CONFIG_KEY_1": "gc.auto",
    "GIT_CONFIG_VALUE_1": "0",
    "LC_ALL": "C",
}
"""Variables that keep a user's and the system's git settings out."""

AUTHOR = {
    "GIT_AUTHOR_NAME": "hpcjet",
    "GIT_AUTHOR_EMAIL": "hpcjet@localhost",
    "GIT_AUTHOR_DATE": "946684800 +0000",
    "GIT_COMMITTER_NAME": "hpcjet",
    "GIT_COMMITTER_EMAIL": "hpcjet@localhost",
    "GIT_COMMITTER_DATE": "946684800 +0000",
}
"""A fixed author and date, so that the same content has the same hash everywhere."""


def git(
    arguments: Sequence[str | Path],
    *,
    git_dir: Path | None = None,
    cwd: Path | None = None,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
) -> bytes:
    """Standard output of one git command. Raises TaskError with the end of what it said if it fails."""
    place = [f"--git-dir={git_dir}"] if git_dir else []
    command = ["git", "--no-pager", *place, *map(str, arguments)]
    # GIT_DIR and its relatives would lead a git hook's or a user's git elsewhere
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            input=stdin,
            capture_output=True,
            env={**inherited, **ISOLATED, **(env or {})},
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise TaskError("git is not on PATH; install git (module load git, or apt-get install git)") from None
    except subprocess.TimeoutExpired:
        raise TaskError(f"{' '.join(command)} took more than {timeout_s:.0f} s") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()[-2000:]
        raise TaskError(f"{' '.join(command)} ended with {done.returncode}: {said}")
    return done.stdout
