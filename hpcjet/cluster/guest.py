"""The node agent's part on a node of a worker allocation: it finds the run's head, serves it, and looks for the next.

A head that is gone without a word may come again, on another node, with another secret: the nodes wait for it a bounded
time, and are given back then.
"""

import logging
import os
import signal
import time

from hpcjet.cluster.events import Event, Events
from hpcjet.cluster.lifeline import STRANGER, HeadLostError
from hpcjet.cluster.members import CANCELLED, PREEMPTED, TIME_LIMIT
from hpcjet.cluster.memory import folder_in_memory
from hpcjet.cluster.ports import free_blocks
from hpcjet.cluster.ray_process import RayProcess
from hpcjet.cluster.search import GivenBack, Search
from hpcjet.cluster.signals import Interrupted
from hpcjet.cluster.site import Site
from hpcjet.cluster.stay import HeadEnded, ImpostorError, RefusedError, Stay
from hpcjet.cluster.times import BEFORE_THE_END_S
from hpcjet.errors import EXIT_OK, HpcjetError
from hpcjet.plan import NodeGroup
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.slurm.requeue import Cause, cause_of_sigterm

MOST_REFUSALS = 5
"""So often in a row a head may refuse this node, or hang up before it lets it in."""
PAUSE_S = 0.2
"""Before the next try then; twice as long each time."""
UNKNOWN_END_S = 60.0
"""How long a node that Slurm warned goes on where nobody knows its end."""
SIDECAR_S = 0.3
"""An engine's time to end when the node is taken away: the grace may be a second."""

_log = logging.getLogger(__name__)


class Guest:
    """One node's part; `run` does it all."""

    def __init__(self, site: Site, group: NodeGroup, *, started: float) -> None:
        self._site, self._plan, self._group = site, site.plan, group
        self._search = Search(site, group, started=started)
        self._blocks = free_blocks(site.place.name)
        self._warned = False
        self._until: float | None = None
        """When this node ends by itself at the latest, in Unix seconds."""
        self._refusals = 0

    def run(self) -> int:
        """Serve one head after the other, until the end. Returns 0 if the node was given back in order.

        Raises HpcjetError for what failed here, Interrupted after the last words to the head.
        """
        try:
            while True:
                self._serve_next()
        except HeadEnded:
            _log.info("the head has no more work for this node")
        except GivenBack as why:
            _log.info("given back: %s", why)
            self._note(Event.gave_up, str(why))
        except RefusedError as error:
            self._note(Event.refused, error.reason)
            raise
        return EXIT_OK

    def patience_s(self, number: int) -> float:
        """Seconds that work may go on after a signal: Slurm's warning of the end leaves time, all else is meant now."""
        if number != signal.SIGUSR2:
            return 0.0
        self._warned, self._until = True, self._end_of_work()
        # `_serve` ends in order first.
        return max(0.0, self._until - time.time()) + BEFORE_THE_END_S / 2

    def _serve_next(self) -> None:
        """Find a head and serve it until it is gone."""
        site, line, hello = self._search.find()
        ray = RayProcess(site) if self._plan.ray else None
        stay = Stay(site, line, hello, ray=ray, next_ports=lambda: next(self._blocks), on_drain=self._drain)
        failed = ""
        try:
            self._serve(stay)
        except RefusedError as error:
            self._refused(error)
        except ImpostorError as error:
            _log.warning("%s", error)
        except HeadLostError as error:
            _log.warning("%s", error)
            if stay.drains:
                raise HeadEnded from None
            if not stay.is_welcome:
                self._refused(RefusedError(STRANGER, again=True))
        except Interrupted as interrupted:
            self._last_words(stay, interrupted)
            raise
        except HpcjetError as error:
            failed = str(error)
            raise
        finally:
            stay.leave(failed)
        self._tidy()
        _log.info("this node looks for the next head")

    def _serve(self, stay: Stay) -> None:
        has_told = False
        while True:
            stay.look(0.1)
            if stay.is_welcome:
                self._refusals = 0
            if self._warned and stay.is_welcome and not has_told:
                has_told = True
                stay.say_leaving(TIME_LIMIT, self._end_of_work())
            if self._until is not None and time.time() > self._until:
                raise HeadEnded

    def _refused(self, error: RefusedError) -> None:
        """Raises it again where another try is no use."""
        self._refusals += 1
        if not error.again or self._refusals >= MOST_REFUSALS:
            raise error
        _log.warning("%s", error)
        time.sleep(PAUSE_S * 2**self._refusals)

    def _drain(self, by: float) -> None:
        """The head ends us by then; if it does not, we do."""
        by += BEFORE_THE_END_S / 2
        self._until = by if self._until is None else min(by, self._until)

    def _end_of_work(self) -> float:
        ends = self._search.ends
        return time.time() + UNKNOWN_END_S if ends is None else ends - BEFORE_THE_END_S / 2

    def _last_words(self, stay: Stay, interrupted: Interrupted) -> None:
        """The head must know before the grace is over, which may be a second; then this node is tidied, and only then
        is there time to ask Slurm why.
        """
        if interrupted.name == "SIGUSR2":
            return
        stay.say_leaving(PREEMPTED, time.time())
        stay.stop(sidecar_s=SIDECAR_S)
        for left in (folder_in_memory(self._site.temp), self._site.temp):
            remove_tree(left)
        job = os.environ.get("SLURM_JOB_ID")
        if job and cause_of_sigterm(job) is Cause.cancelled:
            stay.say_leaving(CANCELLED, time.time())

    def _tidy(self) -> None:
        """What this node's Ray left: the next one begins anew."""
        for left in self._site.temp.glob("session_*"):
            left.unlink() if left.is_symlink() else remove_tree(left)

    def _note(self, event: Event, reason: str) -> None:
        """In a file of this allocation's own, by its first node alone."""
        place = self._site.place
        if place.rank:
            return
        file = self._plan.run.worker_events(place.allocation)
        events = Events(file, allocation=place.allocation, restart=place.restart)
        events.note(event, host=place.host, group=self._group.name, job=place.allocation, reason=reason)
