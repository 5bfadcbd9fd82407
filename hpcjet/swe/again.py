"""Whether an attempt is made again. Pure."""

from dataclasses import replace

from hpcjet.swe.attempt import Job
from hpcjet.swe.record import Record
from hpcjet.tasks.verdict import Verdict

MOST_NODE_LOSSES = 10
"""How often an attempt may be lost with its node before that counts like other failures: it may be what kills them."""


def again(job: Job, record: Record, *, with_node: bool, max_tries: int) -> Job | None:
    """The next try of a job that came to this record; None if the record stands.

    A node that is taken away, or dies, is no fault of the attempt: that uses up none of `max_tries`.
    """
    if record.verdict is not Verdict.infrastructure:
        return None
    if with_node and job.losses < MOST_NODE_LOSSES:
        return replace(job, tries=job.tries + 1, losses=job.losses + 1)
    return replace(job, tries=job.tries + 1) if job.tries - job.losses < max_tries else None
