"""/dev/shm of a node, where Ray's object store lies."""

import os

from hpcjet.doctor.line import Facts, Line, ok, size, warn
from hpcjet.doctor.order import Scene

SUBJECT = "/dev/shm"
LEAST = 1024**3


def look(scene: Scene) -> Facts:
    try:
        disk = os.statvfs("/dev/shm")
    except OSError as error:
        return {"total": 0, "free": 0, "error": error.strerror}
    return {"total": disk.f_blocks * disk.f_frsize, "free": disk.f_bavail * disk.f_frsize}


def assess(facts: Facts) -> list[Line]:
    if facts["free"] >= LEAST:
        return [ok(SUBJECT, f"{size(facts['total'])}, {{}} free", amount=facts["free"])]
    do = "give the container a larger /dev/shm, or the host's (docker: --shm-size, apptainer: it has the host's)"
    if facts["total"] >= LEAST:
        do = "other jobs' files are in it: ask the site to empty it at the end of jobs, or leave the node out"
    what = f"{size(facts['total'])}, {{}} free: little for Ray's object store, which goes to the temp folder then"
    return [warn(SUBJECT, what, do, amount=facts["free"])]
