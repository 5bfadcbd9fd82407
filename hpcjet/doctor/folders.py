"""Whether a node can write to the run directory and to the home directory."""

import contextlib
import os
import secrets
from pathlib import Path

from hpcjet.doctor.line import Facts, Line, fail, ok, warn
from hpcjet.doctor.order import Scene

SUBJECT = "folders"
PROBE = 1024 * 1024
"""Bytes: a quota is met only by writing."""


def look(scene: Scene) -> Facts:
    return {"run": trouble_writing(scene.folder), "home": trouble_writing(Path.home()), "path": str(Path.home())}


def assess(facts: Facts) -> list[Line]:
    lines = []
    if facts["run"]:
        do = "free some room or files (quota), or put runs elsewhere: run.root=/path/on/the/shared/file/system"
        lines.append(fail(SUBJECT, f"the run directory cannot be written: {facts['run']}", do))
    if facts["home"]:
        do = "runs need it for nothing, but caches go there: set HPCJET_CACHE and XDG_CACHE_HOME, or free some room"
        lines.append(warn(SUBJECT, f"the home directory {facts['path']} cannot be written: {facts['home']}", do))
    return lines or [ok(SUBJECT, "run directory and home directory can be written")]


def trouble_writing(folder: Path) -> str:
    """Why a megabyte cannot be written to a folder; empty if it can."""
    file = folder / f".hpcjet-doctor-{secrets.token_hex(4)}"
    try:
        with file.open("wb") as probe:
            probe.write(b"\0" * PROBE)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return error.strerror or str(error)
    finally:
        with contextlib.suppress(OSError):
            file.unlink()
    return ""
