"""The report as text of at most 80 columns. Pure."""

import re
import shlex
import textwrap
from collections.abc import Sequence

from hpcjet.doctor.line import Level, Line
from hpcjet.doctor.report import Section, worst

WIDTH = 80
MARKS = {Level.ok: "ok", Level.warn: "warn", Level.fail: "FAIL"}
COLOURS = {Level.ok: "\033[32m", Level.warn: "\033[33m", Level.fail: "\033[1;31m"}
PLAIN = "\033[0m"


def render(sections: Sequence[Section], *, hosts: Sequence[str], overrides: Sequence[str], colour: bool) -> str:
    """All of it; it ends with the verdict and with what to run next."""
    parts = []
    for section in sections:
        lines = [part for line in section.lines for part in render_line(line, hosts=hosts, colour=colour)]
        parts.append("\n".join([section.title, *lines]))
    return "\n\n".join([*parts, verdict(sections, overrides)]) + "\n"


def render_line(line: Line, *, hosts: Sequence[str], colour: bool) -> list[str]:
    """`mark  subject  what was found`, and below it what to do; nodes are named where not all are alike."""
    mark = f"{MARKS[line.level]:<4}"
    if colour:
        mark = f"{COLOURS[line.level]}{mark}{PLAIN}"
    some = f"{', '.join(line.nodes)}: " if line.nodes and set(line.nodes) != set(hosts) else ""
    shown = _wrapped(some + line.shown, " " * 22)
    lines = [f"  {mark}  {line.subject:<12}  {shown[0].lstrip()}", *shown[1:]]
    return lines + (_wrapped(f"do: {line.do}", " " * 8, more=" " * 12) if line.do else [])


def verdict(sections: Sequence[Section], overrides: Sequence[str]) -> str:
    """A sentence, and the next commands."""
    found = [line for section in sections for line in section.lines]
    failed = list(dict.fromkeys(line.subject for line in found if line.level is Level.fail))
    warned = sum(line.level is Level.warn for line in found)
    words = " ".join(quoted(override) for override in overrides)
    again = f"  hpcjet doctor {words}".rstrip()
    if worst(sections) is Level.fail:
        what = f"Not everything works: {', '.join(failed)}. Do what the lines above say, then look again:"
        return "\n".join([*textwrap.wrap(what, WIDTH), again])
    what = "Everything that runs need works here."
    if warned:
        what = f"It works; {warned} warning{'s' if warned > 1 else ''} above may matter to you."
    launch = "  python -m hpcjet.launch +exp={} {}"
    # Keys of the doctor's own are unknown to others.
    others = " ".join(quoted(override) for override in overrides if not override.lstrip("+~").startswith("exp."))
    runs = [launch.format(exp, others).rstrip() for exp in ("noop", "swe")]
    return "\n".join([*textwrap.wrap(f"{what} Next, a run that only starts Ray, then agents:", WIDTH), *runs])


def quoted(override: str) -> str:
    """For a shell, with no more quotes than are needed."""
    if re.fullmatch(r"[\w.,:/=+@%-]+", override):
        return override
    return f'"{override}"' if "'" in override and not re.search(r'["$`\\!]', override) else shlex.quote(override)


def _wrapped(text: str, indent: str, *, more: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent if more is None else more,
        break_on_hyphens=False,
        break_long_words=False,
    )
