"""When the node of a worker allocation drains before its allocation ends, and until when it may still join. Pure."""

from hpcjet.plan import NodeGroup, Plan

BEFORE_THE_END_S = 5.0
"""A node is given back so long before Slurm takes it."""
BOOT_S = 20.0
"""What a node needs to be of use at all: to join, and to begin with something."""
DRAIN_S = 1800.0
"""A node whose end nobody knows drains no longer."""


def warning_s(plan: Plan, group: NodeGroup) -> float:
    """How long before its end a node of this group drains: as the run's own warning, at most a third of a short job."""
    asked = float(plan.signal_delay_s or 0)
    return asked if group.time_min is None else min(asked, max(10.0, group.time_min * 60 / 3))


def must_drain(plan: Plan, group: NodeGroup, ends: float, *, now: float) -> bool:
    """Whether a node whose allocation ends then (Unix seconds) may get no more work."""
    return ends - now <= warning_s(plan, group)


def is_useful(plan: Plan, group: NodeGroup, ends: float | None, *, now: float) -> bool:
    """Whether a node should still join."""
    return ends is None or ends - now > warning_s(plan, group) + BOOT_S


def drained_by(ends: float | None, by: float | None, *, now: float) -> float:
    """When a node that drains is ended at the latest (Unix seconds); `by` is what whoever asked for it wants."""
    wanted = [now + DRAIN_S] if by is None and ends is None else [] if by is None else [by]
    return max(now, min([*wanted, *([] if ends is None else [ends - BEFORE_THE_END_S])]))
