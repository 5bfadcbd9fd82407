"""A Debian source package as a git history: the upstream release, then one commit for each patch of the series."""

import datetime
import email.utils
import re
import shutil
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path

from hpcjet.errors import TaskError
from hpcjet.tasks.git import AUTHOR, git
from hpcjet.tasks.layer import new_repository

EPOCH_S = int(AUTHOR["GIT_AUTHOR_DATE"].split()[0])


@dataclass(frozen=True)
class SeriesCommit:
    """A patch of the series as a commit."""

    name: str
    """Its file in debian/patches."""
    commit: str
    parent: str
    header: str
    """The text in front of its first diff."""
    files: tuple[str, ...]
    """The paths that it changes."""
    fuzzy: bool = False
    """git refused it, and patch(1) found the places."""


def make_history(unpacked: Path, git_dir: Path) -> list[SeriesCommit]:
    """Make a bare repository of an unpacked source package, whose debian/ folder is taken out of the tree.

    Author and dates are fixed, so equal packages give equal hashes. Raises TaskError if a patch does not apply.
    """
    patches = unpacked.parent / f"{unpacked.name}.patches"
    shutil.move(unpacked / "debian/patches", patches)
    shutil.rmtree(unpacked / "debian")
    shutil.rmtree(unpacked / ".pc", ignore_errors=True)
    new_repository(git_dir)
    history = _History(unpacked, git_dir)
    history.add_everything()
    parent = history.commit("upstream", parent=None)
    commits = []
    for name, strip in read_series(patches / "series"):
        fuzzy = history.apply(patches / name, strip)
        commit = history.commit(name, parent=parent)
        header = patch_header((patches / name).read_bytes())
        commits.append(SeriesCommit(name, commit, parent, header, history.files(parent, commit), fuzzy))
        parent = commit
    git(["config", "core.bare", "true"], git_dir=git_dir)
    # no search for deltas: it would be most of the time, and the files hardly repeat
    git(["-c", "core.compression=1", "repack", "-a", "-d", "-q", "--window=0"], git_dir=git_dir)
    return commits


class _History:
    def __init__(self, tree: Path, git_dir: Path) -> None:
        self._tree = tree
        self._git_dir = git_dir
        self._count = 0

    def add_everything(self) -> None:
        """All files, also those that a .gitignore of the release names."""
        git(
            ["--work-tree", self._tree, "-c", "core.compression=1", "add", "--all", "--force", "."],
            git_dir=self._git_dir,
            cwd=self._tree,
        )

    def apply(self, patch: Path, strip: int) -> bool:
        """Apply one patch; true if that needed patch(1)."""
        place = {"GIT_DIR": str(self._git_dir), "GIT_WORK_TREE": str(self._tree)}
        try:
            git(["apply", "--index", f"-p{strip}", "--whitespace=nowarn", patch], cwd=self._tree, env=place)
            return False
        except TaskError as refusal:
            self._apply_fuzzy(patch, strip, str(refusal))
        self.add_everything()
        return True

    def _apply_fuzzy(self, patch: Path, strip: int, refusal: str) -> None:
        command = ["patch", f"-p{strip}", "--batch", "--forward", "--no-backup-if-mismatch", "--reject-file=-"]
        done = subprocess.run(
            [*command, "--input", str(patch)],
            cwd=self._tree,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            said = done.stdout.decode("utf-8", "replace").strip()
            raise TaskError(f"the patch {patch.name} does not apply: {refusal}; patch(1): {said[-1000:]}")

    def commit(self, message: str, *, parent: str | None) -> str:
        tree = git(["write-tree"], git_dir=self._git_dir).decode().strip()
        date = f"{EPOCH_S + self._count} +0000"
        self._count += 1
        env = {**AUTHOR, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        parents = ["-p", parent] if parent else []
        made = git(["commit-tree", tree, *parents, "-m", message], git_dir=self._git_dir, env=env)
        (self._git_dir / "refs/heads/main").write_bytes(made)
        return made.decode().strip()

    def files(self, parent: str, commit: str) -> tuple[str, ...]:
        return changed_files(self._git_dir, parent, commit)


def changed_files(git_dir: Path, earlier: str, later: str) -> tuple[str, ...]:
    """The paths that differ between two commits, as bytes outside UTF-8 by surrogate escapes."""
    listed = git(["diff-tree", "-r", "-z", "--name-only", "--no-renames", earlier, later], git_dir=git_dir)
    return tuple(path.decode("utf-8", "surrogateescape") for path in listed.split(b"\0") if path)


def read_series(series: Path) -> list[tuple[str, int]]:
    """The patches of a quilt series with the number of folders to strip."""
    if not series.is_file():
        raise TaskError("the source package has no debian/patches/series, so no task can be made of it")
    result = []
    for line in series.read_text("utf-8").splitlines():
        words = line.split("#")[0].split()
        if words:
            levels = [int(word[2:]) for word in words[1:] if re.fullmatch(r"-p\d+", word)]
            result.append((words[0], levels[0] if levels else 1))
    return result


_DIFF_START = re.compile(rb"^(diff -|Index: |--- \S|\+\+\+ \S)", re.MULTILINE)
_FIELD = re.compile(
    r"(From|Author|Date|Origin|Bug(-\w+)?|Forwarded|Applied-Upstream|Last-Update|Last-Updated|Reviewed-by|Acked-by|"
    r"Signed-off-by|Co-authored-by|Cc|MIME-Version|Content-[\w-]+|X-[\w-]+|Fixes|Backported?(-by)?|Commit|Merge):",
    re.IGNORECASE,
)
_TITLE = re.compile(r"(Subject|Description):\s*", re.IGNORECASE)
_STAT = re.compile(
    r"\s.*\|\s+(\d+|Bin)\b.*|\s*\d+ files? changed.*|\s(create|delete) mode .*|\s(rename|copy) .*|---\s*"
)
_NOISE = re.compile(
    r"\(?\s*cherry[- ]picked from commit [0-9a-f]+\)?|From [0-9a-f]{40} .*|commit [0-9a-f]{40}|"
    r"(Co-authored|Signed-off|Reviewed|Reported)-by: .*|-{3,}",
    re.IGNORECASE,
)


def patch_header(patch: bytes) -> str:
    """The text in front of the first diff of a patch."""
    match = _DIFF_START.search(patch)
    return patch[: match.start() if match else len(patch)].decode("utf-8", "replace")


def statement(header: str) -> str:
    """The readable part of a patch header: its title and text, without mail and DEP-3 fields and without a diffstat."""
    kept: list[str] = []
    mode = "text"  # what continuation lines belong to
    for line in header.splitlines():
        line = line.removeprefix("# DP:") if line.startswith("# DP:") else line
        if _STAT.fullmatch(line) or _NOISE.fullmatch(line.strip()):
            continue
        if line[:1] in (" ", "\t") and mode == "dropped":
            continue
        if line[:1] in (" ", "\t") and mode == "subject":
            kept[-1] = f"{kept[-1]} {line.strip()}"
            continue
        if _FIELD.match(line):
            mode = "dropped"
        elif match := _TITLE.match(line):
            mode = match[1].lower()
            kept.append(line[match.end() :])
        else:
            mode = mode if mode == "description" and line.strip() else "text"
            kept.append("" if line.strip() == "." else line[1:] if mode == "description" else line)
    return _tidy(kept)


def _tidy(lines: list[str]) -> str:
    if not any(line.strip() for line in lines):
        return ""
    title, rest = lines[0], lines[1:]
    text = f"{_without_tags(title)}\n{textwrap.dedent(chr(10).join(rest))}".strip()
    first, _, body = text.partition("\n")
    # a mail repeats its subject as the first line of its text
    paragraph, _, after = body.lstrip().partition("\n")
    if paragraph and _without_tags(paragraph) in first:
        body = f"\n{after}"
    return re.sub(r"\n{3,}", "\n\n", f"{_without_tags(first)}\n{body}").strip()


def _without_tags(title: str) -> str:
    """A title without [PATCH 1/2] and [3.11]."""
    return re.sub(r"^(\s*\[[^\]]*\])+\s*", "", title).strip()


def header_date(header: str) -> str:
    """The date of a patch as ISO 8601 in UTC; empty if it tells none."""
    match = re.search(r"^Date:\s*(.+)$", header, re.MULTILINE)
    parsed = email.utils.parsedate_tz(match[1]) if match else None
    if parsed is None:
        return ""
    when = datetime.datetime.fromtimestamp(email.utils.mktime_tz(parsed), tz=datetime.timezone.utc)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
