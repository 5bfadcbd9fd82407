"""What never becomes part of a patch, as the base commit says it: an agent's edits of .gitignore change nothing."""

import re
from collections.abc import Mapping
from pathlib import Path

from hpcjet.atomic import atomic_write
from hpcjet.tasks.git import git

NAME = "info/exclude-all"
"""In a pristine git directory: the exclude file with the .gitignore files of the base commit worked in."""


def write_excludes(git_dir: Path) -> None:
    """Make the file NAME in a pristine git directory, unless it is there. Other processes may do the same."""
    target = git_dir / NAME
    if target.exists():
        return
    own = git_dir / "info/exclude"
    text = (own.read_bytes() if own.exists() else b"") + b"\n" + one_exclude_file(_ignore_files(git_dir))
    atomic_write(target, text, mode=0o644)


def one_exclude_file(files: Mapping[bytes, bytes]) -> bytes:
    """One list of patterns from the .gitignore texts of several folders, "" for the top; the last match decides."""
    lines: list[bytes] = []
    for folder in sorted(files, key=lambda name: (name.count(b"/") + bool(name), name)):
        for line in files[folder].removeprefix(b"\xef\xbb\xbf").splitlines():
            if line and not line.startswith(b"#"):
                lines.append(_below(folder, line) if folder else line)
    return b"".join(line + b"\n" for line in lines)


def _below(folder: bytes, line: bytes) -> bytes:
    """A pattern of a .gitignore in `folder` as it reads at the top."""
    sign, pattern = (b"!", line[1:]) if line.startswith(b"!") else (b"", line)
    anchored = b"/" in pattern.rstrip().rstrip(b"/")
    place = b"/" + re.sub(rb"([\\*?\[])", rb"\\\1", folder) + b"/"
    return sign + place + (pattern.removeprefix(b"/") if anchored else b"**/" + pattern)


def _ignore_files(git_dir: Path) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for entry in git(["ls-tree", "-r", "-z", "HEAD"], git_dir=git_dir).split(b"\0"):
        about, _, path = entry.partition(b"\t")
        folder, _, name = path.rpartition(b"/")
        if name == b".gitignore" and about.startswith(b"100"):
            found[folder] = git(["cat-file", "blob", about.split()[2].decode()], git_dir=git_dir)
    return found
