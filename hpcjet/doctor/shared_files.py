"""Whether a file that one node writes is seen by another, and how soon."""

import os
import time
from pathlib import Path

from hpcjet.atomic import atomic_write
from hpcjet.doctor.line import Facts, Line, fail, ok, warn

SUBJECT = "shared files"
SEEN_WITHIN_S = 20.0
SLOW_S = 3.0


def write(folder: Path, name: str, content: str) -> None:
    atomic_write(folder / name, content)


def await_file(folder: Path, name: str, content: str) -> float | None:
    """Seconds until the file is there with this content; None if it never is. It is found by listing, as in a run."""
    begin = time.monotonic()
    while (waited := time.monotonic() - begin) < SEEN_WITHIN_S:
        if name in {entry.name for entry in os.scandir(folder)} and (folder / name).read_text() == content:
            return waited
        time.sleep(0.01)
    return None


def assess(host: str, head: str, facts: Facts) -> Line:
    """Facts: `there`, seconds until the head saw what the node wrote, and `back`; None: never."""
    ways = {f"{head} does not see what {host} writes": facts["there"]}
    ways[f"{host} does not see what {head} writes"] = facts["back"]
    if unseen := [what for what, seconds in ways.items() if seconds is None]:
        do = "put runs on a file system that all nodes share: run.root=/path/on/it"
        return fail(SUBJECT, f"{' and '.join(unseen)} (within {SEEN_WITHIN_S:.0f} s)", do)
    slowest = max(facts["there"], facts["back"])
    text = f"{head} and {host} see what the other writes within {max(slowest, 0.01):.2f} s"
    if slowest > SLOW_S:
        do = "runs start that much later; another file system may be quicker: run.root=/scratch/..."
        return warn(SUBJECT, text, do)
    return ok(SUBJECT, text)
