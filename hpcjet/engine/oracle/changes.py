"""What a patch touches: enough of it to look at the right lines before editing them."""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import PurePosixPath

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_COMMENTS = {
    "# {}": ".py .pyi .pyx .pxd .sh .bash .pl .pm .rb .r .jl .toml .cfg .ini .yml .yaml .cmake .mk .am .ac .nix",
    "/* {} */": ".c .h .cc .cpp .cxx .hpp .hh .java .js .jsx .mjs .ts .tsx .go .rs .css .scss .swift .kt .cs .scala",
    ".. {}": ".rst",
    "<!-- {} -->": ".md .html .xml",
}
_COMMENT_OF = {suffix: form for form, suffixes in _COMMENTS.items() for suffix in suffixes.split()}


@dataclass
class Change:
    """One file of a patch, by its old name; `places` are (first line, number of lines) before the change."""

    path: str
    new: bool = False
    places: list[tuple[int, int]] = field(default_factory=list)


def read_changes(patch: bytes) -> list[Change]:
    """The text files of a patch that have plain names, in order; binary files and quoted names are left out."""
    changes: list[Change] = []
    old = b""
    rest_old = rest_new = 0
    for line in patch.split(b"\n"):
        if rest_old > 0 or rest_new > 0:
            # Inside a hunk a removed line may look like a header.
            rest_old -= not line.startswith((b"+", b"\\"))
            rest_new -= not line.startswith((b"-", b"\\"))
        elif line.startswith(b"--- "):
            old = _name(line[4:], b"a/")
        elif line.startswith(b"+++ "):
            new = _name(line[4:], b"b/")
            changes.append(Change(_text(old or new), new=not old))
        elif changes and (match := _HUNK.match(line)):
            rest_old, rest_new = (int(match[n]) if match[n] is not None else 1 for n in (2, 4))
            changes[-1].places.append((int(match[1]), rest_old))
    return [change for change in changes if change.path]


def look_command(change: Change) -> str:
    """Shows the lines that will change, a few around them too."""
    path = shlex.quote(change.path)
    if change.new:
        return f"ls -la {shlex.quote(str(PurePosixPath(change.path).parent))}"
    ranges = ";".join(f"{max(1, first - 3)},{first + count + 3}p" for first, count in change.places[:4])
    return f"sed -n '{ranges or '1,40p'}' {path}"


def harmless_command(changes: list[Change]) -> str:
    """Appends a comment to the file that the patch changes first: looks like work, fixes nothing, breaks nothing."""
    remark = "Reviewed: handles the reported case."
    for change in changes:
        comment = _COMMENT_OF.get(PurePosixPath(change.path).suffix)
        if comment and not change.new:
            return rf"printf '\n%s\n' {shlex.quote(comment.format(remark))} >> {shlex.quote(change.path)}"
    return f"echo {shlex.quote(remark)} > oracle-remark.txt"


def _name(field_: bytes, prefix: bytes) -> bytes:
    """Empty for /dev/null and for names that git quotes."""
    name = field_.rstrip(b"\r").split(b"\t")[0]
    return b"" if name == b"/dev/null" or name.startswith(b'"') else name.removeprefix(prefix)


def _text(name: bytes) -> str:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        return ""
