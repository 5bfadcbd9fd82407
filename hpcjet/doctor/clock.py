"""How far the clock of a node is from the head's: asked for many times, and the quickest answer is trusted."""

import time
from collections.abc import Callable

from hpcjet.doctor.line import Facts, Line, ok, warn

SUBJECT = "clocks"
ASKED = 30
FAR_S = 1.0


def look(ask: Callable[[], float]) -> Facts:
    """`ask` gets the other side's time. Half of the way there and back is the most that the answer can be wrong by.

    Source: Cristian, "Probabilistic clock synchronization", Distributed Computing 3, 1989.
    """
    best, offset = float("inf"), 0.0
    for _ in range(ASKED):
        wall, begin = time.time(), time.perf_counter()
        told = ask()
        took = time.perf_counter() - begin
        if took < best:
            best, offset = took, wall + took / 2 - told
    return {"offset_s": offset, "round_trip_s": best}


def assess(host: str, head: str, facts: Facts) -> Line:
    """Positive offsets: the node's clock is ahead of the head's."""
    offset, uncertain = facts["offset_s"], facts["round_trip_s"] / 2
    if abs(offset) - uncertain <= FAR_S:
        shown = "the same" if abs(offset) <= uncertain else f"{_duration(abs(offset))} apart"
        return ok(SUBJECT, f"{head} and {host}: {shown} (known to {_duration(uncertain)})")
    what = f"{host} is {_duration(abs(offset))} {'ahead of' if offset > 0 else 'behind'} {head}"
    do = f"ask the site to set the clock of one of them (chrony, NTP); until then cluster.exclude={host}"
    return warn(SUBJECT, f"{what}: times in logs, deadlines and Slurm's credentials may not fit", do)


def _duration(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
