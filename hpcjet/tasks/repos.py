"""Where the repositories of tasks are: local git repositories in one folder, never fetched at run time."""

import re
from pathlib import Path

from hpcjet.errors import TaskError
from hpcjet.tasks.git import git

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def repository(repos: Path, repo: str) -> Path:
    """The git directory of a task's repository below `repos`, bare or a clone. Raises TaskError if there is none."""
    flat = repo.replace("/", "__")
    tried = [repos / f"{flat}.git", repos / flat, repos / f"{repo}.git", repos / repo]
    for place in tried:
        for git_dir in (place, place / ".git"):
            if (git_dir / "HEAD").is_file() and (git_dir / "objects").is_dir():
                return git_dir
    names = ", ".join(str(place) for place in tried[:2])
    raise TaskError(
        f"repo={repo!r}: no git repository in {repos} (looked for {names}); "
        f"make one with `git clone --bare URL {tried[0]}` or set exp.repos"
    )


def resolve_commit(git_dir: Path, name: str) -> str:
    """The full hash of a commit, branch or tag. Raises TaskError if the repository lacks it."""
    try:
        found = git(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"], git_dir=git_dir)
    except TaskError:
        raise TaskError(
            f"base_commit={name!r} is not in {git_dir}; give a commit that it has, or fetch it: git -C {git_dir} fetch"
        ) from None
    full = found.decode().strip()
    assert _HASH.fullmatch(full), full
    return full


def is_ancestor(git_dir: Path, earlier: str, later: str) -> bool:
    return git(["merge-base", earlier, later], git_dir=git_dir).decode().strip() == earlier
