"""The operating system of a node."""

import platform
import re
from pathlib import Path

from hpcjet.doctor.line import Facts, Line, ok, warn
from hpcjet.doctor.order import Scene

SUBJECT = "system"
OVERLAY_SINCE = (5, 11)
"""Linux: from here on ordinary users may mount overlays."""


def look(scene: Scene) -> Facts:
    return {"kernel": platform.release(), "machine": platform.machine(), "name": _name(Path("/etc/os-release"))}


def assess(facts: Facts) -> list[Line]:
    text = f"Linux {facts['kernel']}, {facts['name']}, {facts['machine']}"
    version = tuple(int(each) for each in re.findall(r"\d+", facts["kernel"])[:2])
    if version < OVERLAY_SINCE:
        do = "nothing, if disk and time allow: sandboxes get copies of their trees; a kernel from 5.11 on has overlays"
        return [warn(SUBJECT, f"{text}: too old for overlays by ordinary users", do)]
    return [ok(SUBJECT, text)]


def _name(file: Path) -> str:
    try:
        found = re.search(r'^PRETTY_NAME="?([^"\n]+)', file.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else "unknown distribution"
