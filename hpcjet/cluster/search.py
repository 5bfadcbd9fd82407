"""How a node of a worker allocation finds the run's head: by the pointer in the run directory, for a bounded time."""

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace

from hpcjet.cluster.lifeline import Line, connect
from hpcjet.cluster.rendezvous import Pointer, read_pointer
from hpcjet.cluster.site import TOKEN_FILE, Site, ends_at
from hpcjet.cluster.state import RunState, read_state
from hpcjet.cluster.stay import Hello
from hpcjet.cluster.times import is_useful
from hpcjet.plan import NodeGroup
from hpcjet.slurm.requeue import time_left_s

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
"""Between looks for the head: many nodes may look, for a long time, in a folder on a network file system."""
LOOK_AT_STATE_S = 2.0

_log = logging.getLogger(__name__)


class GivenBack(Exception):
    """There is nothing to do for this node, or not any more: the reason."""


class Search:
    """One node's. `ends` is when its allocation does, in Unix seconds; None: nobody knows."""

    def __init__(self, site: Site, group: NodeGroup, *, started: float) -> None:
        self._site, self._plan, self._group, self._started = site, site.plan, group, started
        self.ends = _ends(site)

    def find(self) -> tuple[Site, Line, Hello]:
        """Wait for a head that answers. Raises GivenBack when there is none in time, or nothing left to do."""
        wait_s = self._plan.head_wait_s
        deadline, pause_s = time.monotonic() + wait_s, FIRST_PAUSE_S
        failure = f"{self._plan.run.head} did not appear"
        for _ in self._looks():
            if pointer := read_pointer(self._plan.run):
                try:
                    return self._connected(pointer)
                except OSError as error:
                    failure = f"the head of {pointer.place_name} does not answer: {error}"
            if time.monotonic() > deadline:
                raise GivenBack(f"waited {wait_s:.0f} s for a head (cluster.head_wait_s); {failure}")
            time.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
            pause_s = min(pause_s * 1.3, LONGEST_PAUSE_S)
        raise AssertionError("unreachable: the looks do not end")

    def _looks(self) -> Iterator[None]:
        """Turns of waiting, as long as there is reason to wait."""
        again = 0.0
        while True:
            self._site.check_parent()
            if not is_useful(self._plan, self._group, self.ends, now=time.time()):
                left_s = (self.ends or 0.0) - time.time()
                raise GivenBack(f"the allocation ends in {left_s:.0f} s, too soon to be of use")
            if time.monotonic() > again:
                again = time.monotonic() + LOOK_AT_STATE_S
                self._check_run()
            yield

    def _check_run(self) -> None:
        """Raises GivenBack if the run is over: nobody would come any more."""
        state: RunState | None = None
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # being replaced, or of another version
            state = read_state(self._plan.run.state)
        if state and state.final and not state.then:
            raise GivenBack(f"the run is over ({state.phase.value})")

    def _connected(self, pointer: Pointer) -> tuple[Site, Line, Hello]:
        """Raises OSError if it does not answer, or if its secret is gone with it."""
        token = self._plan.run.secret(pointer.secret)
        site = replace(self._site, env={**self._site.env, TOKEN_FILE: str(token)})
        hello = Hello(site, group=self._group.name, started=self._started, ends=self.ends)
        line = connect(
            pointer.addresses,
            pointer.port,
            secret=site.secret,
            rank=hello.rank,
            member=hello.member,
            facts=hello.facts,
            timeout_s=3,
        )
        _log.info("the head of %s answers", pointer.place_name)
        return site, line, hello


def _ends(site: Site) -> float | None:
    if (told := ends_at(os.environ)) is not None or site.plan.cluster == "local":
        return told
    left_s = time_left_s(os.environ)
    return None if left_s is None else time.time() + left_s
