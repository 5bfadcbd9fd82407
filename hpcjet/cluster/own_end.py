"""When the head allocation ends: told by Slurm's variables where it does, else asked of Slurm beside the boot."""

import os
import threading
import time

from hpcjet.cluster.site import ends_at
from hpcjet.slurm.requeue import time_left_s


class OwnEnd:
    """`ask` only where it matters: every question is work for Slurm's controller, and there may be many runs."""

    def __init__(self, *, ask: bool) -> None:
        self._ends = ends_at(os.environ)
        if self._ends is None and ask and "SLURM_JOB_ID" in os.environ:
            threading.Thread(target=self._ask, name="end", daemon=True).start()

    def known(self) -> float | None:
        """Unix seconds; None if nobody knows, or not yet."""
        return self._ends

    def _ask(self) -> None:
        left_s = time_left_s(os.environ)
        if left_s is not None:
            self._ends = time.time() + left_s
