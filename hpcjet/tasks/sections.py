"""A patch taken apart: one section for each file."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from hpcjet.tasks.task import Task

TEST_FOLDERS = ("test", "tests", "testing")
_GIT_START = re.compile(rb"^diff --git ", re.MULTILINE)
_PLAIN_START = re.compile(rb"^--- [^\n]*\n\+\+\+ [^\n]*\n@@ ", re.MULTILINE)
_BODY_START = re.compile(rb"^(?:@@ |GIT binary patch|Binary files )", re.MULTILINE)
_PREFIXED = re.compile(rb"^(?:---|\+\+\+) ([^\n]*)$", re.MULTILINE)
_PLAIN = re.compile(rb"^(?:rename|copy) (?:from|to) ([^\n]*)$", re.MULTILINE)
_QUOTED_PAIR = re.compile(rb'("(?:[^"\\]|\\.)*"|[^ ]*) ("(?:[^"\\]|\\.)*"|[^ ]*)')
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


@dataclass(frozen=True)
class Section:
    """The part of a patch about one file: its names before and after (bytes outside UTF-8 as surrogate escapes)."""

    paths: tuple[str, ...]
    text: bytes


def sections(patch: bytes) -> tuple[Section, ...]:
    """Split a patch at its file headers. Text before the first one, such as a mail header, is left out.

    A line inside a hunk starts with a blank, +, - or a backslash, so no content can look like git's file header.
    """
    starts = [match.start() for match in (_GIT_START if _GIT_START.search(patch) else _PLAIN_START).finditer(patch)]
    parts = [patch[start:end] for start, end in pairwise([*starts, len(patch)])]
    return tuple(Section(_paths(part), part) for part in parts)


def paths_of(parts: Iterable[Section]) -> tuple[str, ...]:
    """All names in the order of the patch, each once."""
    return tuple(dict.fromkeys(path for part in parts for path in part.paths))


@dataclass(frozen=True)
class ProtectedPaths:
    """Which files belong to the tests of a task and are not the agent's to change.

    They are the files of the test patch, every conftest.py, and the test folders that the test patch reaches into (for
    Lib/test/test_os.py that is Lib/test); never a file of the reference patch.
    """

    files: frozenset[str]
    folders: frozenset[str]
    sources: frozenset[str]

    def __contains__(self, path: str) -> bool:
        if path in self.files:
            return True
        if path in self.sources:
            return False
        return (
            path.rpartition("/")[2] == "conftest.py"
            or path in self.folders
            or any(path.startswith(folder + "/") for folder in self.folders)
        )


def protected_paths(task: Task) -> ProtectedPaths:
    files = paths_of(sections(task.test_patch_bytes))
    sources = paths_of(sections(task.patch_bytes))
    return ProtectedPaths(frozenset(files), frozenset(filter(None, map(_test_folder, files))), frozenset(sources))


def split_off_tests(patch: bytes, tests: ProtectedPaths) -> tuple[tuple[Section, ...], tuple[str, ...]]:
    """The sections that change no test, and the names of the test files that the others change."""
    kept: list[Section] = []
    edited: list[str] = []
    for part in sections(patch):
        touched = [path for path in part.paths if path in tests]
        edited += touched
        if not touched:
            kept.append(part)
    return tuple(kept), tuple(dict.fromkeys(edited))


def _test_folder(path: str) -> str:
    """The outermost folder of tests that a file lies in, or nothing."""
    folders = path.split("/")[:-1]
    for depth, name in enumerate(folders, 1):
        if name in TEST_FOLDERS or name.endswith(("_test", "_tests")):
            return "/".join(folders[:depth])
    return ""


def _paths(part: bytes) -> tuple[str, ...]:
    body = _BODY_START.search(part)
    header = part[: body.start()] if body else part
    names = [_name(match[1]) for match in _PLAIN.finditer(header)]
    if not names:
        prefixed = [_name(match[1]) for match in _PREFIXED.finditer(header)] or _names_of_first_line(header)
        names = [name.partition(b"/")[2] for name in prefixed if name != b"/dev/null"]
    return tuple(dict.fromkeys(name.decode("utf-8", "surrogateescape") for name in names if name))


def _names_of_first_line(header: bytes) -> list[bytes]:
    """From `diff --git a/X b/X`: with neither content nor rename both names are the same, blanks or not."""
    both = header.partition(b"\n")[0].rstrip(b"\r").removeprefix(b"diff --git ")
    half = len(both) // 2
    if both[half : half + 1] == b" " and both[:half].partition(b"/")[2] == both[half + 1 :].partition(b"/")[2]:
        return [_name(both[:half])]
    pair = _QUOTED_PAIR.fullmatch(both)
    return [_name(name) for name in pair.groups()] if pair else []


def _name(raw: bytes) -> bytes:
    """A name as it is on disk: git quotes unusual ones, and puts a tab after one with blanks."""
    raw = raw.rstrip(b"\r").partition(b"\t")[0]
    if not (len(raw) >= 2 and raw.startswith(b'"') and raw.endswith(b'"')):
        return raw
    return _ESCAPE.sub(lambda match: _unescaped(match[1]), raw[1:-1])


def _unescaped(code: bytes) -> bytes:
    return bytes([int(code, 8) & 255]) if code.isdigit() else _LETTERS.get(code, code)
