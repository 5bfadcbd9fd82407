"""Slurm's controller: its version and the settings that a run depends on."""

import re

from hpcjet.doctor.asked import ask
from hpcjet.doctor.line import Facts, Line, fail, ok, warn

SUBJECT = "Slurm"
OLDEST = (20, 11)
"""From here on srun has --overlap, which steps within a job need."""
KEYS = (
    "SLURM_VERSION",
    "JobRequeue",
    "PreemptMode",
    "PreemptType",
    "MaxArraySize",
    "TmpFS",
    "KillWait",
    "MpiDefault",
    "ProctrackType",
    "AccountingStorageType",
    "AccountingStorageEnforce",
    "JobAcctGatherType",
)


def look() -> Facts:
    answer, complaint = ask("scontrol", "show", "config")
    settings = read_settings(answer)
    return {"complaint": complaint, "settings": {key: settings[key] for key in KEYS if key in settings}}


def read_settings(answer: str) -> dict[str, str]:
    """Of the lines `Key = value`."""
    return dict(re.findall(r"^(\w+)\s*= *(.*?) *$", answer, re.MULTILINE))


def assess(facts: Facts) -> list[Line]:
    if facts["complaint"]:
        do = "ask the site whether slurmctld is down; queued and running jobs are not lost"
        return [fail(SUBJECT, f"the controller does not answer: {facts['complaint']}", do)]
    settings = facts["settings"]
    return [_version(settings.get("SLURM_VERSION", "")), _stop(settings), *_requeue(settings), _arrays(settings)]


def _version(text: str) -> Line:
    version = tuple(int(each) for each in re.findall(r"\d+", text)[:2])
    if not version:
        return warn(SUBJECT, "it does not tell its version", f"hpcjet needs {OLDEST[0]}.{OLDEST[1]} or newer")
    if version < OLDEST:
        return fail(SUBJECT, f"version {text} is too old", f"hpcjet needs {OLDEST[0]}.{OLDEST[1]} or newer")
    return ok(SUBJECT, f"version {text}")


def _stop(settings: dict[str, str]) -> Line:
    track = settings.get("ProctrackType", "")
    if track and not track.endswith("cgroup"):
        what = f"follows processes by {track.rpartition('/')[2]}: some may outlive their job"
        return warn("job end", what, "nothing: hpcjet ends what it starts; what your own programs start may stay")
    return ok("job end", f"SIGTERM, then SIGKILL after {settings.get('KillWait', 'a while')}; by control group")


def _requeue(settings: dict[str, str]) -> list[Line]:
    mode, kind = settings.get("PreemptMode", "OFF"), settings.get("PreemptType", "preempt/none")
    if kind.endswith("none") or mode == "OFF":
        preempted = ok("preemption", "off")
    elif "CANCEL" in mode:
        do = "hpcjet resume RUN does what is missing; or use a partition or QOS that is not preempted"
        preempted = warn("preemption", f"{mode}: a preempted job is cancelled, not queued again", do)
    elif "SUSPEND" in mode or "GANG" in mode:
        do = "use a partition or QOS that is not preempted: time limits of agents and engines go on meanwhile"
        preempted = warn("preemption", f"{mode}: a preempted job stands still, and its clocks do not", do)
    else:
        preempted = ok("preemption", f"{mode}: a preempted run stops at a safe point and is queued again")
    default = settings.get("JobRequeue", "1")
    text = "on" if default == "1" else "off unless asked for; hpcjet asks for it in each job"
    return [preempted, ok("requeue", text)]


def _arrays(settings: dict[str, str]) -> Line:
    largest = settings.get("MaxArraySize", "")
    if largest.isdigit() and int(largest) < 2:
        return warn("job arrays", "off (MaxArraySize)", "launch one run after the other, or ask the site")
    return ok("job arrays", f"up to {int(largest) - 1} elements" if largest.isdigit() else "size not told")
