"""Points that run in one allocation, or on this machine: a bounded number at a time, each in a process of its own."""

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence

from hpcjet.cluster.signals import Interrupted
from hpcjet.errors import EXIT_CLUSTER, EXIT_INTERRUPTED

_log = logging.getLogger(__name__)


class Crew:
    """Forks: what is imported already need not be imported again, which is most of the cost of a short point."""

    def __init__(self, work: Callable[[int, int], int], *, at_once: int, stops_with_one: bool) -> None:
        """`work` takes a point and its place among those at a time, and returns the exit code.

        `stops_with_one`: after a point that was stopped none is begun, since the allocation is about to end.
        """
        self._work, self._at_once, self._stops_with_one = work, at_once, stops_with_one
        self._running: dict[int, tuple[int, int]] = {}
        self.codes: dict[int, int] = {}
        """Point -> exit code; 128 + N after signal N. Points that were not begun are missing."""

    @property
    def was_stopped(self) -> bool:
        """Whether a point was told to stop by others than us, as Slurm does before the time limit."""
        return self._stops_with_one and EXIT_INTERRUPTED in self.codes.values()

    def run(self, points: Sequence[int]) -> None:
        """Run them all. On Interrupted those at work are told, and waited for; then it goes on up."""
        free, todo = list(range(self._at_once)), list(points)
        try:
            while todo or self._running:
                while todo and free:
                    self._begin(todo.pop(0), free.pop(0))
                free.append(self._await_one())
                if self.was_stopped:
                    todo.clear()
        except Interrupted as interrupted:
            self._pass_on(interrupted)
            while self._running:
                self._await_one()
            raise

    def _begin(self, point: int, place: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self._running[pid] = (point, place)
            return
        code = EXIT_CLUSTER
        try:
            for number in (signal.SIGTERM, signal.SIGALRM):
                signal.signal(number, signal.SIG_DFL)
            # The warning before the time limit may come before the node agent listens, or after its last word.
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            code = self._work(point, place)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else EXIT_CLUSTER
        except BaseException:
            # Above us is the parent's stack, which is not ours to run.
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _await_one(self) -> int:
        """Wait for the end of one; the place that it leaves."""
        pid, status = os.waitpid(-1, 0)
        while pid not in self._running:
            pid, status = os.waitpid(-1, 0)
        point, place = self._running.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        self.codes[point] = code if code >= 0 else 128 - code
        return place

    def _pass_on(self, interrupted: Interrupted) -> None:
        _log.warning("it got %s; %d points are told to stop", interrupted.name, len(self._running))
        for pid in self._running:
            os.kill(pid, signal.Signals[interrupted.name])
