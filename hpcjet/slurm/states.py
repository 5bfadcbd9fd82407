"""Slurm's words for the state of a job, and for why it waits."""

from enum import Enum


class Stage(Enum):
    """A job's state, as far as a follower cares. `unknown` is never `ended`."""

    pending = "pending"
    running = "running"
    ended = "ended"
    unknown = "unknown"


STAGES = {
    **dict.fromkeys(
        ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "CONFIGURING",
         "EXPEDITING"),
        Stage.pending,
    ),
    **dict.fromkeys(
        ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "POWER_UP_NODE",
         "UPDATE_DB"),
        Stage.running,
    ),
    **dict.fromkeys(
        ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE",
         "OUT_OF_MEMORY", "LAUNCH_FAILED", "RECONFIG_FAIL"),
        Stage.ended,
    ),
    "REVOKED": Stage.unknown,
}  # fmt: skip
"""Every state that squeue(1) and sacct(1) of Slurm 20.11 to 25.05 name. REVOKED: another cluster of the federation
started the job, so that only that one knows its state."""

PURGED = "PURGED"
"""Our word for a job that the controller answers about and no longer knows, and of whose end there is no record."""

FINAL_ALONE = {"COMPLETED", "CANCELLED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY"}
"""Ends that accounting alone may tell. After the others Slurm may queue the job again, which the controller knows."""

HOPELESS = {
    "AccountNotAllowed": "the account may not use this partition",
    "AssocGrpMemLimit": "the account's limit of memory is smaller than the job",
    "BadConstraints": "no node satisfies the constraints",
    "DependencyNeverSatisfied": "the job that it waits for has failed",
    "InvalidAccount": "the account is not valid",
    "InvalidQOS": "the QOS is not valid",
    "JobArrayTaskFailed": "another element of the array has failed",
    "JobHeldAdmin": "an administrator holds the job",
    "JobHeldUser": "the job is held; scontrol release lets it go",
    "PartitionConfig": "the request does not fit the partition",
    "PartitionNodeLimit": "more nodes than the partition allows",
    "PartitionTimeLimit": "a longer time limit than the partition allows",
    "QOSNotAllowed": "the QOS may not be used here",
    "QOSMaxWallDurationPerJobLimit": "a longer time limit than the QOS allows",
    "AssocMaxWallDurationPerJobLimit": "a longer time limit than the account allows",
    "ReservationDeleted": "the reservation is gone",
}
"""Reasons for which a job waits until somebody changes something."""

WAITS = {
    "Resources": "waits for nodes",
    "Priority": "jobs with a higher priority come first",
    "Dependency": "waits for another job",
    "BeginTime": "starts at a set time",
    "JobArrayTaskLimit": "as many elements of the array run as may at once",
    "QOSMaxJobsPerUserLimit": "as many jobs of yours run as the QOS allows",
    "AssocMaxJobsLimit": "as many jobs of yours run as the account allows",
    "QOSGrpCpuLimit": "all CPUs of the QOS are in use",
    "AssocGrpCpuLimit": "all CPUs of the account are in use",
    "AssocGrpCPUMinutesLimit": "the account has no CPU time left",
    "AssocGrpBillingMinutes": "the account has no budget left",
    "MaxJobsPerAccount": "as many jobs of the account run as may at once",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved",
    "Reservation": "waits for its reservation",
    "Licenses": "waits for a licence",
    "None": "not looked at yet",
    "Cleaning": "is cleaned up before it is queued again",
}


def word_of(text: str) -> str:
    """`CANCELLED by 1000`, `CANCELLED+` and `NODE_FAIL,REQUEUED` in one word."""
    words = text.replace(",", " ").split()
    return words[0].rstrip("+").upper() if words else ""


def stage_of(state: str) -> Stage:
    """A state that no release named so far is unknown."""
    return STAGES.get(state, Stage.unknown)


def explain(reason: str) -> str:
    """A reason of Slurm in plain words, with Slurm's own behind it; what is not in the tables stays as it is."""
    name = reason.strip("()").split(",")[0].split("(")[0].strip()
    text = HOPELESS.get(name) or WAITS.get(name)
    return f"{text} ({reason})" if text else reason
