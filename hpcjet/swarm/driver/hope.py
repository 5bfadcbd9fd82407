"""Whether anything can still come of the worlds of a training."""

import time
from collections.abc import Collection

from hpcjet.errors import WorkloadError
from hpcjet.swarm.driver.seat import Seat

MOST_IN_VAIN = 3
"""So often the worlds of a seat may fail in a row, each of them, without an episode that ends in between."""
STAYS_S = 20.0
"""So long that may be so for all seats: what worlds need may be away for a moment, such as a server of theirs."""
NAMED = 3
"""Of the last faults."""


class Hope:
    """Ends a run in which every episode of every world fails, though fragments come: those of its first steps.

    As long as one seat has episodes that end, or worlds that do not fail, the run goes on.
    """

    def __init__(self) -> None:
        self._lost_since: float | None = None
        self._came = False
        """An episode that ended."""

    def look(self, seats: Collection[Seat], *, last: bool = False) -> None:
        """Raises WorkloadError once there is none; with `last` without waiting for better times, if none ever came."""
        self._came = self._came or any(seat.status and seat.status.episodes for seat in seats)
        if not seats or any(seat.in_vain < MOST_IN_VAIN for seat in seats):
            self._lost_since = None
            return
        now = time.monotonic()
        self._lost_since = now if self._lost_since is None else self._lost_since
        if (last and not self._came) or now > self._lost_since + STAYS_S:
            faults = list(dict.fromkeys(seat.fault for seat in seats if seat.fault))
            more = f" (and {len(faults) - NAMED} more)" if len(faults) > NAMED else ""
            raise WorkloadError(
                f"all worlds of all seats fail, each {MOST_IN_VAIN} times in a row or more without an "
                f"episode that ended; the last faults: {'; '.join(faults[:NAMED])}{more}"
            )
