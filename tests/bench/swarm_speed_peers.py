"""What swarm_speed.py compares with: the one-file PPO of the peers, what its parts alone allow, and other systems."""

import argparse
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from swarm_speed_worlds import number_of_worlds

Work = Callable[[], object]
PATIENCE_S = 120.0
"""So long a system in a process of its own may take for its start and its end."""


@dataclass(frozen=True)
class Spent:
    """For so many agent-steps."""

    steps: int
    wall: float
    cpu: float


class Plain:
    """The one-file PPO in this process, on torch's threads."""

    def __init__(self, agents: int, options: argparse.Namespace) -> None:
        peers, settings, formation = (importlib.import_module(name) for name in ("plain", "settings", "formation"))
        core = formation.FormationCore(number_of_worlds(agents), agents)
        model = peers.ActorCritic("separate")
        optimiser = torch.optim.Adam(model.parameters(), lr=settings.LEARNING_RATE, fused=True)
        rollout = peers.Rollout(core, model)

        def iterate() -> None:
            batch = rollout.batch(rollout.fill())
            for _ in range(options.epochs):
                peers.train_epoch(model, optimiser, batch, options.minibatch)

        self._iterate, self._steps = iterate, core.size * options.steps

    def __call__(self) -> Spent:
        wall, cpu = timed(self._iterate)
        return Spent(self._steps, wall, cpu)


class Limit:
    """What the parts alone allow if nothing else had to be done, each process with its share and no word between them:
    the world's steps, the forward pass, and the epochs of the one-file PPO, compiled if `options.compile`."""

    def __init__(self, agents: int, size: int, options: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self._steps = number_of_worlds(agents) * agents * options.steps
        self._ends, self._processes = [], []
        for _ in range(size):
            mine, theirs = context.Pipe()
            self._processes.append(context.Process(target=_parts, args=(theirs, agents, size, options), daemon=True))
            self._processes[-1].start()
            self._ends.append(mine)
        for end in self._ends:
            end.recv()

    def __call__(self) -> Spent:
        for end in self._ends:
            end.send(None)
        told = [end.recv() for end in self._ends]
        return Spent(self._steps, max(wall for wall, _ in told), sum(cpu for _, cpu in told))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


class Script:
    """A run of another system's script in a process of its own, with an interpreter that has what it needs."""

    def __init__(
        self, python: Path, script: str, agents: int, options: argparse.Namespace, *more: str, path: str = ""
    ) -> None:
        self._words = [
            str(python), script, "--agents", str(agents), "--worlds", str(number_of_worlds(agents)),
            "--minibatch", str(options.minibatch), "--warmup", str(options.warmup), "--window", str(options.window),
            *more,
        ]  # fmt: skip
        self._folder, self._path = options.peers, path
        self._most = options.warmup + options.window + PATIENCE_S

    def __call__(self) -> Spent:
        env = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
        pipe, env = subprocess.PIPE, {**env, "PYTHONPATH": self._path, "PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(
            self._words, cwd=self._folder, env=env, stdout=pipe, stderr=pipe, text=True, process_group=0
        ) as process:
            try:
                out, err = process.communicate(timeout=self._most)
            except BaseException as error:
                # With all that it started: what waits for a part that failed does not end by itself.
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
        found = [line for line in out.splitlines() if line.startswith("RESULT ")]
        if not found:
            raise SystemExit(
                f"{' '.join(self._words)} gave no result within {self._most:g} s:\n{out[-2000:]}\n{err[-4000:]}"
            )
        told = json.loads(found[-1].removeprefix("RESULT "))
        return Spent(round(told["agent_steps_per_s"] * told["window_s"]), told["window_s"], told["cpu_s"])


def timed(work: Work) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def _parts(end: Any, agents: int, size: int, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    sys.path.insert(0, str(options.peers))
    peers, settings, formation = (importlib.import_module(name) for name in ("plain", "settings", "formation"))
    core = formation.FormationCore(number_of_worlds(agents) // size, agents)
    model = peers.ActorCritic("separate")
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.LEARNING_RATE, fused=True)
    number, seen = core.size * options.steps, torch.randn(core.size, peers.OBS_SIZE)
    columns = [torch.randn(number, peers.OBS_SIZE), torch.randn(number, 2), *(torch.randn(number) for _ in range(3))]
    loss = torch.compile(peers.ppo_loss, dynamic=False) if options.compile else peers.ppo_loss
    actions = core.rng.uniform(-1, 1, (core.size, 2)).astype("float32")

    def all_parts() -> None:
        core.reset()
        for _ in range(options.steps):
            core.step(actions)
        with torch.no_grad():
            for _ in range(options.steps):
                model.act(seen)
        for _ in range(options.epochs):
            peers.train_epoch(model, optimiser, columns, options.minibatch // size, loss)

    all_parts()
    end.send(None)
    while True:
        end.recv()
        end.send(timed(all_parts))
