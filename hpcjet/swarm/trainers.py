"""A training in several processes of one machine: ranks, each with a share of the worlds, that learn together.

Processes and not threads: an update is many short calls of torch, and Python makes them one at a time.
"""

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from hpcjet.config.check import bad
from hpcjet.errors import EXIT_WORKLOAD, HpcjetError
from hpcjet.swarm.learners.meeting import interface_of, meet, open_store
from hpcjet.swarm.learning.ranks import ALONE, Ranks
from hpcjet.swarm.trainer import Iteration, Trainer, TrainerConfig
from hpcjet.swarm.vector import WorldVector

HOST = "127.0.0.1"
PATIENCE_S = 300.0
"""So long ranks wait for one another."""
END_S = 10.0

MakeWorlds = Callable[[int, int], WorldVector]
"""The worlds of a rank, of so many ranks; importable by name, as the processes are spawned."""


class TrainersError(HpcjetError):
    """A rank failed or died, and the others cannot go on without it."""

    exit_code = EXIT_WORKLOAD


@dataclass
class RankIteration:
    """What one rank did in an iteration."""

    done: Iteration
    cpu_seconds: float
    """Of all threads of its process."""


class Trainers:
    """`size` processes, each with one thread of torch; `close` them, or use a with statement. Not safe for threads.

    The bits depend on seed, worlds and number of ranks alone. After an error all of them have ended.
    """

    def __init__(self, make: MakeWorlds, config: TrainerConfig, size: int) -> None:
        """Raises TrainersError if a rank cannot begin."""
        if size < 1:
            raise bad("size", size, "it must be 1 or more", "set it to the number of processes")
        context = multiprocessing.get_context("spawn")
        self._ends: list[Connection] = []
        self._processes = []
        for rank in range(size):
            mine, theirs = context.Pipe()
            given = theirs, make, config, rank, size
            self._processes.append(context.Process(target=_serve, args=given, name=f"trainer-{rank}", daemon=True))
            self._processes[-1].start()
            theirs.close()
            self._ends.append(mine)
        port = self._answers()[0]
        self._all("join", [port] * size)

    def iterate(self) -> list[RankIteration]:
        """Of each rank; what was learned is the same in all of them. Raises TrainersError."""
        return self._all("iterate", [None] * len(self._ends))

    def state_dicts(self) -> list[dict[str, Any]]:
        """Of each rank, see `Trainer.state_dict`."""
        return self._all("state_dict", [None] * len(self._ends))

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from there, see `Trainer.load_state_dict`. Raises ConfigError for those of another number of ranks."""
        if len(states) != len(self._ends):
            raise bad("states", f"of {len(states)} ranks", f"there are {len(self._ends)}", "make as many as there were")
        self._all("load_state_dict", list(states))

    def close(self) -> None:
        for end in self._ends:
            end.close()  # who waits for a word ends then
        deadline = time.monotonic() + END_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self._ends, self._processes = [], []

    def __enter__(self) -> "Trainers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _all(self, what: str, given: Sequence[Any]) -> list[Any]:
        for end, argument in zip(self._ends, given, strict=True):
            try:
                end.send((what, argument))
            except OSError:
                continue  # that there is no answer tells
        return self._answers()

    def _answers(self) -> list[Any]:
        """Of each rank. The first one that fails ends all: the others wait for it, and tell no more than that."""
        found: dict[int, Any] = {}
        while len(found) < len(self._ends):
            ready = wait([end for rank, end in enumerate(self._ends) if rank not in found])
            for rank, end in enumerate(self._ends):
                if end not in ready:
                    continue
                try:
                    good, found[rank] = end.recv()
                except (EOFError, OSError):
                    good, found[rank] = False, "its process died"
                if not good:
                    self._kill()
                    raise TrainersError(f"rank {rank}: {found[rank]}")
        return [found[rank] for rank in range(len(self._ends))]

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        self.close()


def _serve(end: Connection, make: MakeWorlds, config: TrainerConfig, rank: int, size: int) -> None:
    """A rank, until nobody listens or it fails: its end tells the others, who wait for it."""
    import torch

    torch.set_num_threads(1)
    made = _Rank(make, config, rank, size)
    try:
        end.send((True, made.prepare()))
        while True:
            what, argument = end.recv()
            end.send((True, getattr(made, what)(argument)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except Exception:
        end.send((False, traceback.format_exc()))


class _Rank:
    """What a process does when it is told to."""

    def __init__(self, make: MakeWorlds, config: TrainerConfig, rank: int, size: int) -> None:
        self._make, self._config, self._rank, self._size = make, config, rank, size
        self._store: Any = None
        self._trainer: Trainer | None = None

    @property
    def trainer(self) -> Trainer:
        assert self._trainer is not None, "joined"
        return self._trainer

    def prepare(self) -> int:
        """Where the others find rank 0."""
        if self._size == 1 or self._rank:
            return 0
        self._store = open_store(HOST, self._size, PATIENCE_S)
        return int(self._store.port)

    def join(self, port: int) -> None:
        self._trainer = Trainer(self._make(self._rank, self._size), self._config, self._meet(port))

    def iterate(self, _: None) -> RankIteration:
        before = time.process_time()
        done = self.trainer.iterate()
        return RankIteration(done, time.process_time() - before)

    def state_dict(self, _: None) -> dict[str, Any]:
        return self.trainer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.trainer.load_state_dict(state)

    def _meet(self, port: int) -> Ranks:
        if self._size == 1:
            return ALONE
        os.environ["GLOO_SOCKET_IFNAME"] = interface_of(HOST) or "lo"
        return meet(self._store, (HOST, port), self._rank, self._size, gpu=False, patience_s=PATIENCE_S).ranks
