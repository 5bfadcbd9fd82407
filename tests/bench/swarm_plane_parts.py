"""What makes, takes and measures fragments in the bench of the data plane, by the calls that the product makes."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hpcjet.swarm.actors import get_actor
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.pool import Entry, Key, entry_of
from hpcjet.swarm.pool.actors import INDEX
from hpcjet.swarm.weights.actors import load

TICK = os.sysconf("SC_CLK_TCK")
WAIT_S = 60.0


def fragment(steps: int, rows: int, size: int, version: int = 0, seed: int = 0) -> Fragment:
    """One world of so many rows, observations of `size` random numbers."""
    rng = np.random.default_rng(seed)
    shape = (steps, 1, rows)
    return Fragment(
        observation=rng.standard_normal((steps + 1, 1, rows, size), np.float32),
        present=np.ones((steps + 1, 1, rows), bool), action=np.zeros((*shape, 2), np.float32),
        reward=np.ones(shape, np.float32), terminated=np.zeros(shape, bool), truncated=np.zeros(shape, bool),
        version=version,
    )  # fmt: skip


def on(node: str, kind: Any, *args: Any, **options: Any) -> Any:
    """An actor on this node."""
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(kind).options(num_cpus=0, scheduling_strategy=where, **options).remote(*args)


class Policy:
    """Takes weights as a policy does."""

    def load_weights(self, weights: dict[str, Any], version: int) -> None:
        self.sum = float(sum(array.sum() for array in weights.values()))


class Host:
    """Seats of a node, without worlds."""

    def __init__(self, node: str, seats: list[str], pool: str, cache: str) -> None:
        self._node, self._seats, self._pool, self._cache = node, seats, pool, cache
        self._version = dict.fromkeys(seats, -1)
        self._policies = {"p": Policy()}
        self._steps = dict.fromkeys(seats, 0)
        self.inserted = 0

    def produce(self, n: int, shape: tuple[int, int, int]) -> list[float]:
        """n fragments of each seat, as fast as it goes; CPU seconds of this process and all seconds."""
        index, pool = get_actor(INDEX), get_actor(self._pool)
        cpu, began = time.process_time(), time.monotonic()
        for _ in range(n):
            for seat in self._seats:
                self._one(index, pool, seat, shape)
        return [time.process_time() - cpu, time.monotonic() - began]

    def run(self, updates: int, shape: tuple[int, int, int]) -> int:
        """Fragments until the learner is at this version; the index, the cache or the pool may be away for a while."""
        version = 0
        while version < updates:
            for seat in self._seats:
                try:
                    version = self._one(get_actor(INDEX), get_actor(self._pool), seat, shape, wait_s=1.0)
                except Exception:  # whatever is away is asked again
                    time.sleep(0.1)
        return self.inserted

    def pull(self, version: int) -> int:
        """Weights of this version for each seat, read."""
        cache = get_actor(self._cache)
        calls = [cache.weights.remote(seat, self._version[seat], None, version, WAIT_S) for seat in self._seats]
        for seat, delivery in zip(self._seats, ray.get(calls), strict=True):
            load(self._policies, delivery)
            self._version[seat] = delivery.version
        return min(self._version.values())

    def _one(self, index: Any, pool: Any, seat: str, shape: tuple[int, int, int], wait_s: float = WAIT_S) -> int:
        step = self._steps[seat]
        leave = ray.get(pool.begin.remote(seat, 0, self._node, 1, step, wait_s))
        if leave is None:
            return -1
        if self._cache:
            call = get_actor(self._cache).weights.remote(seat, self._version[seat], None, leave.at_least, WAIT_S)
            delivery = ray.get(call)
            load(self._policies, delivery)
            self._version[seat] = delivery.version
        made = fragment(*shape, version=max(0, self._version[seat]))
        entry = entry_of(made, source=seat, attempt=0, node=self._node, policy="p", group="g", first_world=0,
                         first_step=step)  # fmt: skip
        ray.get(pool.insert.remote(entry, made))
        self._steps[seat] = step + shape[0]
        self.inserted += 1
        return int(leave.version)


class Caller:
    """Asks the index, metadata alone."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._number = 0

    def join(self) -> None:
        self._life = ray.get(get_actor(INDEX).join.remote(self._name, self._name))

    def begin(self, n: int, pause_s: float = 0.0) -> float:
        """With a pause after each: in a training all sleep between two calls, and each costs more."""
        index, began = get_actor(INDEX), time.monotonic()
        for number in range(n):
            assert ray.get(index.begin.remote(self._name, 0, self._name, 1, number, WAIT_S))
            time.sleep(pause_s)
        return time.monotonic() - began

    def insert(self, n: int, batch: int) -> float:
        """n entries, so many in a call."""
        index, began = get_actor(INDEX), time.monotonic()
        for _ in range(n // batch):
            items = [(Key(self._name, self._number + at), self._entry(at)) for at in range(batch)]
            self._number += batch
            verdicts = ray.get(index.insert.remote(self._life, items, WAIT_S))
            assert {verdict.value for verdict in verdicts} == {"admitted"}
        return time.monotonic() - began

    def _entry(self, at: int) -> Entry:
        return Entry(
            source=self._name, attempt=0, node=self._name, first_world=0, worlds=1, policy="p", group="g",
            first_step=self._number + at, steps=1, agent_steps=1, version=0, nbytes=1,
        )  # fmt: skip


class Process:
    """What the kernel says of a process on this machine."""

    def __init__(self, actor: Any) -> None:
        self.pid = int(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())))

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK


def timed_wait(what: str, ask: Any, give_up_s: float = 120.0) -> float:
    """Seconds until it is so."""
    began = time.monotonic()
    while not ask():
        assert time.monotonic() < began + give_up_s, f"{what}: not in {give_up_s} s"
        time.sleep(0.02)
    return time.monotonic() - began
