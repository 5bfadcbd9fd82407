"""The folder for temporary files on a node: which one is taken, its room, and why others are passed over."""

import os
import re
from pathlib import Path

from hpcjet.cluster.temp import FALLBACKS, is_remote, private_temp
from hpcjet.doctor.line import Facts, Line, fail, ok, warn
from hpcjet.doctor.order import Scene
from hpcjet.errors import BootstrapError

SUBJECT = "temp folder"
LEAST_FREE = 10 * 1024**3
LEAST_INODES = 100_000


def look(scene: Scene) -> Facts:
    named = [os.environ.get("SLURM_TMPDIR"), os.environ.get("TMPDIR")]
    bases = list(dict.fromkeys(base for base in [*named, *FALLBACKS] if base))
    try:
        folder = private_temp(os.environ)
        folder.rmdir()
        chosen = str(folder.parent)
    except BootstrapError:
        chosen = ""
    return {"chosen": chosen, "bases": [_tried(base) for base in bases]}


def assess(facts: Facts) -> list[Line]:
    before: list[str] = []
    for base in facts["bases"]:
        if base["base"] == facts["chosen"]:
            return _chosen(base, "; ".join(before))
        before.append(f"{base['base']}: {base['why'] or 'on the network'}")
    return [fail(SUBJECT, "; ".join(before), "point TMPDIR to a local folder of your own with room in it")]


def _chosen(base: Facts, before: str) -> list[Line]:
    where = f"{base['base']}, {{}} free" + (", on the network" if base["remote"] else "")
    doubts = []
    if base["noexec"]:
        doubts.append("programs that are built there cannot run (noexec)")
    if base["free"] < LEAST_FREE:
        doubts.append("little room for spilled objects and sandboxes")
    if base["inodes"] is not None and base["inodes"] < LEAST_INODES:
        doubts.append(f"room for {base['inodes']} files only")
    if base["remote"]:
        doubts.append("slow for sandboxes and Ray's session")
    if before:
        doubts.append(f"passed over: {before}")
    if not doubts:
        return [ok(SUBJECT, where, amount=base["free"])]
    do = (
        "point TMPDIR (and sandbox.scratch) to a local disk with room, of 31 bytes at most, or ask the site to clean up"
    )
    return [warn(SUBJECT, f"{where}: {'; '.join(doubts)}", do, amount=base["free"])]


def _tried(base: str) -> Facts:
    try:
        private_temp({}, fallbacks=(base,)).rmdir()
        why = ""
    except BootstrapError as error:
        why = reason_in(str(error), base)
    try:
        disk = os.statvfs(base)
    except OSError:
        return {"base": base, "why": why, "free": 0, "inodes": None, "remote": False, "noexec": False}
    return {
        "base": base,
        "why": why,
        "free": disk.f_bavail * disk.f_frsize,
        "inodes": disk.f_favail if disk.f_files else None,
        "remote": is_remote(Path(base)),
        "noexec": bool(disk.f_flag & os.ST_NOEXEC),
    }


def reason_in(message: str, base: str) -> str:
    """Why a base will not do, out of the error about it."""
    found = re.search(r"\((.*)\); point", message)
    return (found[1] if found else message).removeprefix(f"{base}: ")
