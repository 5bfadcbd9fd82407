"""A job that looked at no node: refused, still in the queue, or ended before."""

from hpcjet.cluster.state import RunState
from hpcjet.doctor.line import Line, fail

SUBJECT = "job"
BUSY = ("", "None", "Priority", "Resources", "BeginTime", "Prolog")
DOWN = ("NodeDown", "PartitionDown", "PartitionInactive", "Reservation", "ReqNodeNotAvail")


def refused(reason: str) -> Line:
    """Slurm did not take it."""
    what = reason.partition(" (script:")[0]
    do = "name what the site wants: cluster.account, partition, qos, mem_gb, cpus_per_node, gpus_per_node"
    return fail(SUBJECT, f"not submitted: {what}", do)


def still_queued(reason: str, wait_s: float) -> Line:
    """It waited too long and was cancelled."""
    what = f"still in the queue after {wait_s:.0f} s ({reason or 'no reason told'}); cancelled"
    return fail(SUBJECT, what, cure(reason))


def cure(reason: str) -> str:
    """What helps against Slurm's reason for a job to wait."""
    word = reason.partition(",")[0]
    if word in BUSY:
        return "the cluster is busy: --wait 3600 waits longer; another partition may be quicker"
    if "Limit" in word or word.startswith(("Assoc", "QOS", "Max")):
        return "the request is over a limit of the site: ask for less, or set another cluster.account, partition or qos"
    if word in DOWN:
        return "these nodes are down or reserved: choose others (sinfo), cluster.partition=NAME or cluster.exclude=NAME"
    return "the site's documentation explains this reason; another cluster.partition may do"


def ended(state: RunState | None, code: int, said: str, *, run: str) -> Line:
    """It ended before a node told anything."""
    reason = (state.reason if state else "") or said.strip() or "see above"
    first = reason.partition("\n")[0].removesuffix(":")
    return fail(SUBJECT, f"it ended with exit code {code} before a node told anything: {first}", f"hpcjet logs {run}")
