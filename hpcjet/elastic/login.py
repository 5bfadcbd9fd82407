"""For a head that has no sbatch: whoever follows the run on a login node asks Slurm for what the policy wants."""

import contextlib
import fcntl
import logging
import os
import time
from typing import Any

from hpcjet.elastic.jobs import Jobs
from hpcjet.elastic.keeper import Keeper, keeper_of
from hpcjet.elastic.memory import read_memory
from hpcjet.plan import Plan

PACE_S = 5.0
_log = logging.getLogger(__name__)


class Silent:
    """A login node has no pipe to the head: what happens there is in the log of whoever follows, and in Slurm."""

    def say(self, word: str, **facts: Any) -> None:
        pass


class LoginKeeper:
    """One run's, on a login node; `keep` is called again and again. Of several at once only one acts."""

    def __init__(self, plan: Plan, jobs: Jobs | None = None) -> None:
        self._plan, self._jobs = plan, jobs
        self._keeper: Keeper | None = None
        self._lock: int | None = None
        self._due = 0.0

    def keep(self) -> bool:
        """Do what is due; whether it acted. No failure to do so ends what the caller does."""
        if time.monotonic() < self._due or not self.is_needed() or not self._is_the_one():
            return False
        self._due = time.monotonic() + PACE_S
        self._keeper = self._keeper or keeper_of(self._plan, Silent(), drains=False, jobs=self._jobs)
        try:
            self._keeper.tick(time.time())
        except OSError as error:
            _log.warning("no nodes are asked for now: %s", error)
        return True

    def is_needed(self) -> bool:
        """Whether the run's head has said that it cannot ask Slurm for nodes."""
        return bool(self._plan.worker_groups) and not read_memory(self._plan.run.elastic).submits

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _is_the_one(self) -> bool:
        if self._lock is None:
            with contextlib.suppress(OSError):
                descriptor = os.open(self._plan.run.elastic_login.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._lock = descriptor
                except OSError:
                    os.close(descriptor)
        return self._lock is not None
