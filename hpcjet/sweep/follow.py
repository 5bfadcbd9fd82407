"""Stay with a sweep: one live line for each state, until nothing goes on."""

import time
from collections.abc import Mapping, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hpcjet.errors import EXIT_CLUSTER, EXIT_INTERRUPTED, EXIT_OK, EXIT_WORKLOAD
from hpcjet.sweep.folder import SweepDir
from hpcjet.sweep.states import GOING_ON, Standing, Where, counts, counts_text, standings

QUICKEST_S, SLOWEST_S = 0.5, 10.0
BAR = 40
COLOURS = {Where.done: "green", Where.running: "cyan", Where.queued: "dim", Where.unknown: "yellow"}


def follow(sweep: SweepDir, console: Console) -> int:
    """Show it until it ends; the exit code: 0 if all points are done, 1 if some failed, 3 if the cluster lost some.

    Ctrl-C leaves; the sweep goes on.
    """
    try:
        return exit_code(await_end(sweep, console))
    except KeyboardInterrupt:
        console.print(f"\nThe sweep goes on. Come back with: hpcjet sweep {sweep.path.name} --follow", highlight=False)
        return EXIT_INTERRUPTED


def await_end(sweep: SweepDir, console: Console | None, *, only: Sequence[int] | None = None) -> list[Standing]:
    """The points once none, or none of `only`, is queued or running."""
    about, total, pause_s, last = sweep.read_about(), len(sweep.hashes()), QUICKEST_S, ""
    live = Live(console=console, refresh_per_second=4) if console and console.is_terminal else None
    if live:
        live.start()
    try:
        while True:
            began = time.monotonic()
            found = standings(sweep, about, total, now=time.time())
            tally = counts(found)
            if live:
                live.update(lines(tally, total), refresh=True)
            elif console and counts_text(tally) != last:
                console.print(f"{time.strftime('%H:%M:%S')}  {counts_text(tally)}", highlight=False, soft_wrap=True)
            awaited = found if only is None else [found[index] for index in only]
            if not any(each.where in GOING_ON for each in awaited):
                return found
            changed = counts_text(tally) != last
            last = counts_text(tally)
            # A look at many points on a busy file system must not become a load of its own.
            pause_s = QUICKEST_S if changed else min(pause_s * 1.5, SLOWEST_S)
            time.sleep(max(pause_s, 4 * (time.monotonic() - began)))
    finally:
        if live:
            live.stop()


def lines(tally: Mapping[Where, int], total: int) -> Group:
    """One line per state, with a bar."""
    found = []
    for where, number in tally.items():
        bar = "━" * max(1, round(BAR * number / total))
        colour = COLOURS.get(where, "red")
        found.append(Text.assemble(f"{where.value:>14} {number:>6}  ", (bar, colour)))
    return Group(*found)


def exit_code(found: Sequence[Standing]) -> int:
    """That of a sweep that is over."""
    states = {each.where for each in found}
    if states <= {Where.done}:
        return EXIT_OK
    if states & {Where.lost, Where.unknown, Where.missing}:
        return EXIT_CLUSTER
    return EXIT_WORKLOAD if states & {Where.failed, Where.timeout, Where.memory} else EXIT_INTERRUPTED
