"""The folder of runs, where hpcjet is started."""

import os
from pathlib import Path

from hpcjet.doctor.folders import trouble_writing
from hpcjet.doctor.line import Facts, Line, fail, ok, warn

SUBJECT = "runs"
LEAST_FREE = 10 * 1024**3
LEAST_FILES = 100_000


def look(root: Path) -> Facts:
    found: Facts = {"root": str(root)}
    try:
        root.mkdir(parents=True, exist_ok=True)
        disk = os.statvfs(root)
    except OSError as error:
        return {**found, "trouble": error.strerror or str(error)}
    free, files = disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else None
    return {**found, "trouble": trouble_writing(root), "free": free, "files": files}


def assess(facts: Facts) -> list[Line]:
    if facts["trouble"]:
        do = "free some room or files (quota), or put runs elsewhere: run.root=/scratch/me/runs"
        return [fail(SUBJECT, f"{facts['root']} cannot be written: {facts['trouble']}", do)]
    text = f"{facts['root']}, {{}} free"
    if facts["free"] < LEAST_FREE or (facts["files"] is not None and facts["files"] < LEAST_FILES):
        return [
            warn(SUBJECT, f"{text}: little room", "put runs elsewhere: run.root=/scratch/me/runs", amount=facts["free"])
        ]
    return [ok(SUBJECT, text, amount=facts["free"])]
