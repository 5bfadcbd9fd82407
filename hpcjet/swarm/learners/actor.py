"""The Ray actor of a learner rank."""

import asyncio
import logging
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from hpcjet.swarm.learners.chief import Chief
from hpcjet.swarm.learners.meeting import Many, One, meet, open_store, use_interface
from hpcjet.swarm.learners.plane import RayPlane
from hpcjet.swarm.learners.rank import Rank
from hpcjet.swarm.learners.spec import LearnerSpec, RankStatus

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class LearnerActor:
    """One rank of one generation. All of torch is done by one thread, beside which the actor answers.

    Call `prepare` on all of them, then `join` with what rank 0 said, then `run`.
    """

    def __init__(self, spec: LearnerSpec, rank: int, size: int, threads: int, gpu: bool) -> None:
        self._spec, self._rank, self._size, self._threads, self._gpu = spec, rank, size, threads, gpu
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"learner-{rank}")
        self._store: Any = None
        self._talk: One | Many = One()
        self._made: Rank | None = None
        self._chief: Chief | None = None
        self._stopped = self._done = False
        self._since = time.monotonic()

    async def prepare(self) -> tuple[str, int]:
        """Import what takes long; the address and, from rank 0, the port where the others find it."""
        return await self._do(self._prepare)

    async def join(self, where: tuple[str, int]) -> None:
        """Returns when all ranks have come. Raises RanksLost if they do not in time."""
        await self._do(lambda: self._join(where))

    async def run(self) -> None:
        """Until the goal is reached or it is stopped; raises what ended it. Once."""
        await self._do(self._run)

    async def stop(self) -> None:
        """At the next safe point, with a checkpoint. For rank 0: it tells the others."""
        self._stopped = True

    async def status(self, seen: int = -1) -> RankStatus:
        """With the rows after the version `seen`, which came with an earlier answer."""
        made, chief = self._made, self._chief
        doing, since = ("start", self._since) if made is None else (made.doing.what, made.doing.since)
        return RankStatus(
            rank=self._rank, pid=os.getpid(), version=0 if made is None else made.version,
            agent_steps=0 if chief is None else chief.agent_steps, doing=doing, since_s=time.monotonic() - since,
            done=self._done, rows=[] if chief is None else chief.rows_after(seen),
            begun=0 if chief is None else chief.begun, trouble="" if chief is None else chief.trouble,
        )  # fmt: skip

    async def _do(self, what: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._thread, what)

    def _prepare(self) -> tuple[str, int]:
        import ray

        address = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        use_interface(address)
        # Fragments are read where they lie, in shared memory: nothing here writes to them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        if self._spec.backend == "torch" or self._size > 1:
            import torch

            torch.set_num_threads(self._threads)
        if self._size == 1 or self._rank > 0:
            return address, 0
        self._store = open_store(address, self._size, self._spec.patience_s)
        return address, int(self._store.port)

    def _join(self, where: tuple[str, int]) -> None:
        if self._size > 1:
            self._talk = meet(
                self._store, where, self._rank, self._size, gpu=self._gpu, patience_s=self._spec.patience_s
            )

    def _run(self) -> None:
        plane = RayPlane(self._spec)
        made = Rank(self._spec, self._talk, plane, device="cuda" if self._gpu else "cpu")
        if self._rank == 0:
            self._chief = made.chief = Chief(
                self._spec, made.learners, plane, self._size, made.doing, stopped=lambda: self._stopped
            )
        self._made = made
        made.run()
        self._done = True
