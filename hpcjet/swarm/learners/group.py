"""All learner ranks of a training, as the driver has them."""

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hpcjet.errors import HpcjetError
from hpcjet.swarm.actors import ENDS_S, lost_errors, start_actor
from hpcjet.swarm.learners.actor import LearnerActor
from hpcjet.swarm.learners.spec import LearnerSpec, LearnerStatus, RankError, RankStatus
from hpcjet.swarm.learning.ranks import RanksLost

ANSWER_S = 10.0
"""So long a rank may take to say how it does; it is asked again."""
BLAME_S = 5.0
"""Between the first rank that complains of the others and the news which of them died."""
AGAIN_S = 0.05

log = logging.getLogger(__name__)


class LearnerGroup:
    """One generation after the other. Not safe for threads."""

    def __init__(self, spec: LearnerSpec, told: int = -1) -> None:
        """`told`: the version of the last row that an earlier start of the run left."""
        self.spec = spec
        self._ranks: list[Any] = []
        self._runs: list[Any] = []
        self._nodes: list[str] = []
        self._lost: list[int] = []
        self._seen, self._had = -1, told
        """The version of the last row of this generation, and of the last one before it."""
        self._last = LearnerStatus(0, 0, False, "", False, [])

    def start(
        self, nodes: Sequence[str], generation: int, *, threads: Sequence[int] = (), gpus: bool = False,
        timeout_s: float = 180.0,
    ) -> None:  # fmt: skip
        """Ranks on these nodes (Ray's ids), which go on from the newest checkpoint. What there was before is ended.

        `threads` of each rank, 1 by default; with `gpus` each gets one GPU. Raises RankError, naming those that are
        late or cannot be there.
        """
        self.kill()
        self._nodes, self._lost, size = list(nodes), [], len(nodes)
        self._seen, self._had = -1, max(self._seen, self._had)
        self._last = replace(self._last, done=False, error="", fatal=False, rows=[])
        threads = list(threads) or [1] * size
        try:
            for rank, node in enumerate(nodes):
                name, args = actor_name(rank, generation), (self.spec, rank, size, threads[rank], gpus)
                self._ranks.append(start_actor(LearnerActor, name, node, *args, restarts=0, gpus=int(gpus)))
            places = self._all([each.prepare.remote() for each in self._ranks], "started", timeout_s)
            self._all([each.join.remote(places[0]) for each in self._ranks], "met the others", timeout_s)
        except BaseException:
            self.kill()
            raise
        self._runs = [each.run.remote() for each in self._ranks]

    def status(self) -> LearnerStatus:
        """What is new. When a rank died the others are ended too: they would wait for it."""
        import ray

        if not self._runs:
            return self._take()
        ended, _ = ray.wait(self._runs, num_returns=len(self._runs), timeout=0)
        self._ask()
        if ended:
            self._see(ended)
        return self._take()

    def stop(self, timeout_s: float = 120.0) -> LearnerStatus:
        """Ask for an end at the next safe point, with a checkpoint, and wait for it; after a while end them without."""
        deadline = time.monotonic() + timeout_s
        rows = []
        if self._runs:
            with suppress(*lost_errors()):
                self._ranks[0].stop.remote()
        while self._runs and time.monotonic() < deadline:
            rows += self.status().rows
            time.sleep(AGAIN_S)
        if self._runs:
            self.kill()
            self._last = replace(self._last, error=f"the learners did not stop in {timeout_s:g} s, and were ended")
        return replace(self._take(), rows=rows)

    def lost_ranks(self) -> list[int]:
        """Those of this generation that died."""
        return list(self._lost)

    def kill(self) -> None:
        """End all ranks, as they are. Raises RankError if one does not end.

        A process that hangs, or whose node cannot be reached, ends as soon as it goes on.
        """
        import ray

        for each in self._ranks:
            with suppress(*lost_errors()):
                ray.kill(each, no_restart=True)
        deadline = time.monotonic() + ENDS_S
        # Rank 0 must not publish when another one does.
        for rank, each in enumerate(self._ranks):
            while not _is_gone(each):
                if time.monotonic() > deadline:
                    raise RankError(f"{self._who(rank)} did not end in {ENDS_S:g} s; see whether its node answers")
                time.sleep(AGAIN_S)
        self._ranks, self._runs = [], []

    def _take(self) -> LearnerStatus:
        found = self._last
        self._last = replace(found, rows=[])
        return found

    def _ask(self) -> None:
        """How each does, as far as they answer."""
        found = self._answers(ANSWER_S)
        if 0 in found:
            first = found[0]
            # Those that came with the checkpoint may have been told before the generation that made it ended.
            if first.rows:
                self._had = min(self._had, first.begun)
            new = [row for row in first.rows if int(row["version"]) > self._had]
            self._seen = max([self._seen, *(int(row["version"]) for row in first.rows)])
            self._last = replace(
                self._last, version=first.version, agent_steps=first.agent_steps, done=first.done,
                rows=[*self._last.rows, *new], begun=first.begun, trouble=first.trouble,
            )  # fmt: skip
        doing = [f"{found[rank].doing} {found[rank].since_s:.0f} s" if rank in found else "no answer"
                 for rank in range(len(self._ranks))]  # fmt: skip
        self._last = replace(self._last, doing=tuple(doing))

    def _answers(self, timeout_s: float) -> dict[int, RankStatus]:
        import ray

        # A row is forgotten once it was seen: an answer may get lost.
        calls = [each.status.remote(self._seen) for each in self._ranks]
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=timeout_s)
        found = {}
        for rank, call in enumerate(calls):
            if call in ready:
                with suppress(*lost_errors()):
                    found[rank] = ray.get(call)
        return found

    def _see(self, ended: Sequence[Any]) -> None:
        """Some of the ranks have ended: why, and the others with them."""
        import ray

        errors = self._errors(ended)
        if errors and not self._lost:
            # A rank hears of the death of another before Ray tells of it.
            later = time.monotonic() + BLAME_S
            while not self._lost and len(ended) < len(self._runs) and time.monotonic() < later:
                ended, _ = ray.wait(self._runs, num_returns=len(self._runs), timeout=AGAIN_S)
                errors = self._errors(ended)
        if not errors and not self._lost:
            if len(ended) == len(self._runs):
                self._ask()
                self.kill()
            return
        fatal = [error for error in errors.values() if not isinstance(error, (RankError, RanksLost, *lost_errors()))]
        self._last = replace(self._last, error=self._why(errors), fatal=bool(fatal) and not self._lost)
        self.kill()

    def _errors(self, ended: Sequence[Any]) -> dict[int, BaseException]:
        """What ended those that did not just die, by rank; who died is noted."""
        import ray

        found: dict[int, BaseException] = {}
        for rank, run in enumerate(self._runs):
            if run not in ended:
                continue
            try:
                ray.get(run)
            except ray.exceptions.RayTaskError as error:
                found[rank] = error.cause if isinstance(error.cause, BaseException) else error
            except lost_errors():
                if rank not in self._lost:
                    self._lost.append(rank)
        return found

    def _why(self, errors: dict[int, BaseException]) -> str:
        if self._lost:
            return "; ".join(f"{self._who(rank)} died" for rank in self._lost)
        # The others only say that they lost the one that failed.
        rank, error = min(errors.items(), key=lambda each: (isinstance(each[1], RanksLost), each[0]))
        text = f"{self._who(rank)}: {type(error).__name__}: {error}"
        if not isinstance(error, RanksLost):
            return text
        doing = ", ".join(f"rank {number}: {what}" for number, what in enumerate(self._last.doing))
        return f"{text}; they were at: {doing}"

    def _all(self, calls: Sequence[Any], what: str, timeout_s: float) -> list[Any]:
        """The answers of all ranks. Raises RankError as soon as one fails, or names those from which none came."""
        import ray

        found: dict[int, Any] = {}
        late, deadline = list(calls), time.monotonic() + timeout_s
        while late and time.monotonic() < deadline:
            ready, late = ray.wait(late, timeout=max(0.0, deadline - time.monotonic()))
            for call in ready:
                rank = calls.index(call)
                found[rank] = self._answer(call, rank, what)
        if late:
            names = ", ".join(self._who(rank) for rank, call in enumerate(calls) if call in late)
            raise RankError(f"within {timeout_s:g} s these have not {what}: {names}; see the logs of their nodes")
        return [found[rank] for rank in range(len(calls))]

    def _answer(self, call: Any, rank: int, what: str) -> Any:
        import ray

        try:
            return ray.get(call)
        except HpcjetError as error:
            raise RankError(f"{self._who(rank)} has not {what}: {error}") from error
        except ray.exceptions.RayError as error:  # also: its node is not there
            first = str(error).strip().partition("\n")[0]
            raise RankError(f"{self._who(rank)} has not {what}: {type(error).__name__}: {first}") from error

    def _who(self, rank: int) -> str:
        return f"learner rank {rank} (node {self._nodes[rank][:8]})"


def actor_name(rank: int, generation: int) -> str:
    """Each generation has names of its own: those before may still be about to go."""
    return f"swarm-learner-{rank}-{generation}"


def _is_gone(actor: Any) -> bool:
    import ray

    try:
        ray.get(actor.status.remote(), timeout=1.0)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError, ray.exceptions.RayTaskError):
        return False
    except ray.exceptions.RayError:
        return True
    return False
