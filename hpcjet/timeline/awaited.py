"""What a run that goes on waits for."""

from hpcjet.cluster.events import Event
from hpcjet.timeline.life import Life, Step
from hpcjet.timeline.words import number, some

QUEUED, AT_WORK = "in the queue", "at work"


def now_step(life: Life, now: float, awaited: str) -> Step:
    # The clock here may be behind the head's.
    took = max(now - life.steps[-1].at, 0.0)
    spent = awaited if awaited in (QUEUED, AT_WORK) else f"for {awaited}"
    return Step(life.steps[-1].at + took, f"now: {awaited}", spent, "bold", took, life.works)


def what_is_awaited(life: Life) -> str:
    """What comes next, if the run still goes on."""
    seen = {entry.event for entry in life.entries}
    answers = [
        (Event.requeued, QUEUED),
        (Event.released, ""),
        (Event.workload_end, "the release of the nodes"),
        (Event.workload_start, "the end of the work" if Event.stop_asked in seen else AT_WORK),
        (Event.stop_asked, "the release of the nodes"),
        (Event.ready, "the work to begin"),
        (Event.agent_up, _awaited_nodes(life)),
        (Event.allocated, "the node agents"),
        (Event.submitted, QUEUED),
    ]
    return next((answer for event, answer in answers if event in seen), "")


def _awaited_nodes(life: Life) -> str:
    there, parts = len(life.hosts(Event.agent_up)), []
    if life.num_nodes > there:
        parts.append(f"{number(life.num_nodes - there)} agents")
    if waiting := life.without_ray:
        parts.append(f"Ray on {some(waiting)}")
    return " and ".join(parts) or "the nodes to join"
