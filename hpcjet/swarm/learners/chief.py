"""What rank 0 does besides: sample, split, tell the index, publish, make checkpoints, and note how it goes."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hpcjet.errors import StoreError
from hpcjet.swarm.checkpoints import Checkpoint, Form, newest_checkpoint, write_checkpoint
from hpcjet.swarm.hosts.spec import HostState
from hpcjet.swarm.learners.rank import STOP, Doing, Told
from hpcjet.swarm.learners.spec import LearnerSpec
from hpcjet.swarm.learners.split import Order, lags, order_of, valid_share
from hpcjet.swarm.learners.used import Used
from hpcjet.swarm.learning.schedule import rate_at
from hpcjet.swarm.policy.interface import Learner
from hpcjet.swarm.pool.entry import Key
from hpcjet.swarm.pool.sample import Sample
from hpcjet.swarm.row import Row, lags_text

LAST_SHARE = 0.5
"""Of the patience of the other ranks: so long the last checkpoint is tried."""
AGAIN_S = 2.0

log = logging.getLogger(__name__)


class IndexAnew(Exception):
    """The index was started again: what was sampled before is nobody's any more."""


class Plane(Protocol):
    """Index, parameter server and hosts, as rank 0 sees them. Raises RankError if one is away for too long."""

    def recover(self, version: int, state: Mapping[str, Any] | None, used: Mapping[Key, int]) -> None:
        """The learner is at this version; an index that knows nothing yet gets `state`, and what is used how often."""

    def sample(self, policy: str, n: int) -> Sample | None:
        """None: not yet; it waits a little for it. Raises IndexAnew."""

    def done(self, number: int, missing: Sequence[Key]) -> None:
        """Nothing happens where the index was started again."""

    def update_priorities(self, priorities: Mapping[Key, float]) -> None: ...

    def advance(self, version: int) -> None:
        """Raises IndexAnew."""

    def publish(self, version: int, weights: Mapping[str, Any]) -> None: ...

    def index_state(self) -> Mapping[str, Any] | None:
        """None: it cannot be had now."""

    def snapshots(self, seats: Sequence[str], version: int, timeout_s: float) -> dict[str, HostState]:
        """Of those seats that answer."""


class Chief:
    """Beside the learners of rank 0."""

    def __init__(
        self, spec: LearnerSpec, learners: Mapping[str, Learner], plane: Plane, size: int, doing: Doing,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.spec, self.learners, self.plane, self.size, self.doing = spec, learners, plane, size, doing
        self.agent_steps = self.begun = 0
        """`begun`: the version that this generation began with."""
        self.rows: list[Row] = []
        """That nobody has seen yet, those of the generation before included: a checkpoint holds them."""
        self._rows_lock = threading.Lock()
        self._stopped = stopped
        self._samples: dict[str, Sample] = {}
        """What was sampled for the next update so far."""
        self.trouble = ""
        """Why the newest checkpoint could not be written."""
        self._told: Sequence[Told] = ()
        self._saved = -1
        self._index: Mapping[str, Any] | None = None
        self._used = Used(sum(spec.fragments.values()), spec.held)
        self._began = self._last = time.monotonic()
        self._seconds = 0.0
        """Of the generations before."""

    @property
    def version(self) -> int:
        return next(iter(self.learners.values())).policy.version

    @property
    def reached(self) -> bool:
        """Whether there is nothing more to learn."""
        spec = self.spec
        return 0 < spec.updates <= self.version or 0 < spec.agent_steps <= self.agent_steps

    @property
    def _progress(self) -> float:
        """The share of the training that is done."""
        goals = ((self.version, self.spec.updates), (self.agent_steps, self.spec.agent_steps))
        return max((done / goal for done, goal in goals if goal), default=0.0)

    def states(self) -> dict[str, Mapping[str, Any]]:
        """Of the learners."""
        return {name: each.state_dict() for name, each in self.learners.items()}

    def begin(self) -> Mapping[str, Any] | None:
        """See `rank.Leads`. Raises ConfigError for a checkpoint of another form."""
        found = newest_checkpoint(self.spec.checkpoints, form_of(self.spec))
        if found is None:
            return None
        log.info("go on from version %d of %s", found.version, self.spec.checkpoints)
        self.agent_steps, self._seconds, self._saved = found.agent_steps, found.seconds, found.version
        self._index, self.begun = found.index, found.version
        with self._rows_lock:
            self.rows = [dict(row) for row in found.rows]
        return found.learners

    def began(self) -> None:
        self._recover(self._index)
        self._index = None
        self.plane.publish(self.version, self._weights())
        self._began = self._last = time.monotonic()

    def next(self) -> Order | str | None:
        """Whatever of the next batch can be had now is kept for the next call."""
        if self._stopped() or self.reached:
            self._save_last()
            return STOP
        try:
            for policy, n in self.spec.fragments.items():
                if policy not in self._samples:
                    found = self.plane.sample(policy, n)
                    if found is None:
                        return None
                    self._samples[policy] = found
        except IndexAnew:
            self._samples = {}
            self._recover()
            return None
        rate = rate_at(self._progress, self.spec.learner.rate_end)
        return order_of(self._samples, self.size, scale_rate=self.spec.learner.scale_rate, rate=rate)

    def fetched(self, told: Sequence[Told]) -> None:
        for policy, sample in self._samples.items():
            missing = [key for each in told for key in each.missing.get(policy, ())]
            self._used.add(each.key for each in sample.chosen if each.valid and each.key not in missing)
            self.plane.done(sample.number, missing)
        self._told = told
        if not any(each.fragments for each in told):
            log.warning("version %d: all %d fragments were gone", self.version, self._chosen)
            self._samples = {}

    def prioritise(self, left: Sequence[Mapping[Key, float]]) -> None:
        self.plane.update_priorities({key: priority for each in left for key, priority in each.items()})

    def learned(self, metrics: Mapping[str, Mapping[str, float]], seconds: float) -> None:
        self.agent_steps += sum(each.agent_steps for each in self._told)
        self.doing("publish")
        try:
            self.plane.advance(self.version)
        except IndexAnew:
            self._recover()
        self.plane.publish(self.version, self._weights())
        self._note(metrics, seconds)
        self._samples = {}
        if self.version % self.spec.checkpoint_every == 0:
            self._save()

    def rows_after(self, version: int) -> list[Row]:
        """Those after the last one that was seen; the others are forgotten. For another thread."""
        with self._rows_lock:
            self.rows = [row for row in self.rows if float(row["version"]) > version]
            return list(self.rows)

    def _recover(self, state: Mapping[str, Any] | None = None) -> None:
        self.plane.recover(self.version, state, self._used.times)

    @property
    def _chosen(self) -> int:
        return sum(len(sample.chosen) for sample in self._samples.values())

    def _weights(self) -> dict[str, Any]:
        return {name: learner.policy.weights() for name, learner in self.learners.items()}

    def _note(self, metrics: Mapping[str, Mapping[str, float]], seconds: float) -> None:
        now = time.monotonic()
        took, self._last = max(now - self._last, 1e-9), now
        behind = lags(self._samples)
        learned = sum(each.agent_steps for each in self._told)
        row: Row = {
            "version": self.version, "seconds": self._seconds + now - self._began, "agent_steps": self.agent_steps,
            "agent_steps_per_s": learned / took, "lags": lags_text(behind),
            "lag_mean": sum(behind) / max(len(behind), 1), "lag_max": max(behind, default=0),
            "samples": sum(each["samples"] for each in metrics.values()), "valid_share": valid_share(self._samples),
            "fetched_bytes": sum(each.nbytes for each in self._told), "learner_share": seconds / took,
        }  # fmt: skip
        row |= {f"{name}.{key}": each for name, own in metrics.items() for key, each in own.items()}
        with self._rows_lock:
            self.rows.append(row)

    def _save_last(self) -> None:
        """What was learned is worth some waiting for room; raises StoreError if there is none even then."""
        deadline = time.monotonic() + self.spec.patience_s * LAST_SHARE
        while self._saved != self.version:
            self._save()
            if self.trouble and (self._stopped() or time.monotonic() > deadline):
                raise StoreError(f"{self.trouble}; make room, then resume the run: it goes on from the newest there is")
            if self.trouble:
                time.sleep(AGAIN_S)

    def _save(self) -> None:
        """A disk that is full, or cannot be written to, does not end the training: what was there before stays."""
        self.doing("checkpoint")
        spec, version = self.spec, self.version
        hosts = self.plane.snapshots(spec.seats, version, spec.snapshot_s) if spec.seats else {}
        for seat in sorted(set(spec.seats) - hosts.keys()):
            log.warning("checkpoint %d: no state of %s; a resume gives it new episodes", version, seat)
        made = Checkpoint(
            version=version, agent_steps=self.agent_steps, seconds=self._seconds + time.monotonic() - self._began,
            form=form_of(spec), learners=self.states(), index=self.plane.index_state(),
            hosts=hosts, rows=self.rows_after(-1),
        )  # fmt: skip
        try:
            write_checkpoint(spec.checkpoints, made, keep=spec.keep)
            self._saved, self.trouble = version, ""
        except OSError as error:
            if not self.trouble:
                log.warning("checkpoint %d cannot be written: %s", version, error)
            self.trouble = f"checkpoint {version} cannot be written ({error}); those in {spec.checkpoints} stay"


def form_of(spec: LearnerSpec) -> Form:
    """What a checkpoint of this training looks like."""
    return Form(backend=spec.backend, policies=dict(spec.policies), policy=spec.policy)
