"""Limits of a process on a node: open files and processes."""

import resource

from hpcjet.doctor.line import Facts, Line, ok, warn
from hpcjet.doctor.order import Scene

SUBJECT = "limits"
FILES = 65_535
"""What Ray wants: each worker process and each connection costs a few."""
PROCESSES = 4_096


def look(scene: Scene) -> Facts:
    files, processes = resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_NPROC)
    return {"files": _known(files[0]), "files_hard": _known(files[1]), "processes": _known(processes[0])}


def assess(facts: Facts) -> list[Line]:
    files, hard, processes = facts["files"], facts["files_hard"], facts["processes"]
    lines = []
    if files is not None and files < FILES:
        most = FILES if hard is None else min(hard, FILES)
        do = f"cluster.setup=['ulimit -n {most}'] raises it" if most > files else "ask the site for more"
        if most < FILES:
            do += f"; the site allows {most}, " + ("enough for small runs" if most >= 4096 else "too few for Ray")
        lines.append(warn(SUBJECT, f"{files} open files, and Ray wants {FILES} on large nodes", do))
    if processes is not None and processes < PROCESSES:
        do = "cluster.setup=['ulimit -u 65535'], or ask the site: threads count too"
        lines.append(warn(SUBJECT, f"{processes} processes and threads for this user", do))
    return lines or [ok(SUBJECT, f"{_told(files)} open files, {_told(processes)} processes")]


def _known(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def _told(limit: int | None) -> str:
    return "any number of" if limit is None else str(limit)
