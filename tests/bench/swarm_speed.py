"""Agent-steps a second, learning included: this trainer beside a PPO in one file of plain torch, on the same world.

    python tests/bench/swarm_speed.py --peers DIR [--agents 100 1000] [--threads 1 2] [--rounds 5] [--compile]
    python tests/bench/swarm_speed.py --flat           # ours alone, its own formation, from 100 to 10,000 agents

DIR holds formation.py (the world), plain.py (the one-file PPO) and settings.py (the constants of both). 4,000 agents
are in flight, all in worlds of as many as asked for. Rounds alternate between the systems, in one process, and what is
printed are medians, and ratios within a round: other work on the machine hits both. Figures by CPU time at one thread
are the ones to trust on a machine that is not quiet.

`limit` is what the parts alone would allow, if nothing else had to be done: the world's steps, the forward pass and the
epochs of the plain PPO, with `--compile` compiled (torch.compile; that takes a minute first).
"""

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.swarm.formation import FormationConfig, FormationVector
from hpcjet.swarm.formation.vector import ACTIONS
from hpcjet.swarm.trainer import Trainer, TrainerConfig
from hpcjet.swarm.vector import GroupSpec, GroupTurn, Turn, VectorSpec

IN_FLIGHT = 4000
GROUP = "agent"
Work = Callable[[], object]


class PeerWorlds:
    """The peers' world as a WorldVector."""

    def __init__(self, core: Any, observation_size: int) -> None:
        self.core = core
        self.shape = (core.num_worlds, core.num_agents)
        self.spec = VectorSpec(core.num_worlds, {GROUP: GroupSpec(core.num_agents, observation_size, ACTIONS)})
        self.present, self.no, self.all = np.ones(self.shape, bool), np.zeros(self.shape, bool), np.arange(core.size)

    def reset(self) -> Turn:
        return self._turn(self.core.reset(), np.zeros(self.shape, np.float32))

    def step(self, actions: Mapping[str, Any]) -> Turn:
        observation, reward, ended = self.core.step(actions[GROUP].reshape(-1, 2))
        turn = self._turn(self.core.reset() if ended else observation, reward)
        if ended:
            group = turn.groups[GROUP]
            group.truncated, group.final_rows, group.final_observation = self.present, self.all, observation
        return turn

    def close(self) -> None:
        pass

    def _turn(self, observation: Any, reward: Any) -> Turn:
        seen = observation.reshape(*self.shape, -1)
        return Turn({GROUP: GroupTurn(seen, self.present, reward.reshape(self.shape), self.no, self.no)})


def ours(vector: Any, options: argparse.Namespace) -> Trainer:
    """The settings of the peers: no value normaliser."""
    config = TrainerConfig(
        steps=options.steps, policy=PolicyConfig(value_norm=False),
        learner=LearnerConfig(minibatch=options.minibatch, epochs=options.epochs, adam_epsilon=1e-8),
    )  # fmt: skip
    return Trainer(vector, config)


def plain(core: Any, options: argparse.Namespace) -> Work:
    peers, settings = importlib.import_module("plain"), importlib.import_module("settings")
    model = peers.ActorCritic("separate")
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.LEARNING_RATE, fused=True)
    rollout = peers.Rollout(core, model)

    def iterate() -> None:
        batch = rollout.batch(rollout.fill())
        for _ in range(options.epochs):
            peers.train_epoch(model, optimiser, batch, options.minibatch)

    return iterate


def parts(core: Any, options: argparse.Namespace) -> dict[str, Work]:
    """What `limit` is made of, each work for all steps of an iteration."""
    peers, settings = importlib.import_module("plain"), importlib.import_module("settings")
    model = peers.ActorCritic("separate")
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.LEARNING_RATE, fused=True)
    size, seen = core.size * options.steps, torch.randn(core.size, peers.OBS_SIZE)
    columns = [torch.randn(size, peers.OBS_SIZE), torch.randn(size, 2), *(torch.randn(size) for _ in range(3))]
    loss = torch.compile(peers.ppo_loss, dynamic=False) if options.compile else peers.ppo_loss
    actions = core.rng.uniform(-1, 1, (core.size, 2)).astype("float32")

    def world() -> None:
        core.reset()
        for _ in range(options.steps):
            core.step(actions)

    def forward() -> None:
        with torch.no_grad():
            for _ in range(options.steps):
                model.act(seen)

    return {
        "world": world, "forward": forward,
        "epoch": lambda: peers.train_epoch(model, optimiser, columns, options.minibatch, loss),
    }  # fmt: skip


def timed(work: Work) -> tuple[float, float]:
    """CPU and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def compare(agents: int, threads: int, options: argparse.Namespace) -> None:
    world = importlib.import_module("formation")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    worlds = max(1, IN_FLIGHT // agents)
    size = worlds * agents * options.steps

    def core() -> Any:
        return world.FormationCore(worlds, agents)

    trainer = ours(PeerWorlds(core(), world.OBS_SIZE), options)
    works: dict[str, Work] = {"plain": plain(core(), options), "ours": trainer.iterate}
    pieces = parts(core(), options)
    works |= pieces
    for work in works.values():
        work()
    rounds = [{name: timed(work) for name, work in works.items()} for _ in range(options.rounds)]
    for which, clock in enumerate(("CPU", "wall")):
        if which == 0 and threads > 1:
            continue
        for each in rounds:
            alone = sum(each[name][which] * (options.epochs if name == "epoch" else 1) for name in pieces)
            each["limit"] = (alone, alone)
        figures = {name: statistics.median(size / each[name][which] for each in rounds) for name in rounds[0]}
        ratios = {
            name: statistics.median(each[name][which] / each["ours"][which] for each in rounds)
            for name in ("plain", "limit")
        }
        print(
            f"{worlds:>3} x {agents:<6} threads {threads} {clock:<5}"
            + "".join(f"{name} {figure:>9,.0f}  " for name, figure in figures.items())
            + "".join(f"ours/{name} {ratio:.2f}  " for name, ratio in ratios.items()),
            flush=True,
        )


def flat(options: argparse.Namespace) -> None:
    """CPU nanoseconds for an agent-step, everything included, by number of agents in a world."""
    torch.set_num_threads(1)
    sizes = (100, 300, 1000, 3000, 10_000)
    trainers = {}
    for agents in sizes:
        worlds = max(1, 10_000 // agents)
        vector = FormationVector(FormationConfig(agents=agents), worlds, seed=0)
        trainers[agents] = ours(vector, options), worlds * agents * options.steps
        trainers[agents][0].iterate()
    rounds = [
        {agents: timed(trainer.iterate)[0] / steps * 1e9 for agents, (trainer, steps) in trainers.items()}
        for _ in range(options.rounds)
    ]
    for agents in sizes:
        print(f"{agents:>6} agents: {statistics.median(each[agents] for each in rounds):,.0f} ns")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="where formation.py, plain.py and settings.py are")
    parser.add_argument("--agents", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatch", type=int, default=8000)
    parser.add_argument("--steps", type=int, default=100, help="of all worlds in an iteration; fewer for a quick look")
    parser.add_argument("--compile", action="store_true", help="the limit's epochs with torch.compile")
    parser.add_argument("--flat", action="store_true", help="cost of an agent-step from 100 to 10,000 agents")
    options = parser.parse_args()
    if options.flat:
        flat(options)
    if options.peers is not None:
        sys.path.insert(0, str(options.peers.resolve()))
        vars(importlib.import_module("settings"))["ROLLOUT"] = options.steps
        for threads in options.threads:
            for agents in options.agents:
                compare(agents, threads, options)


if __name__ == "__main__":
    main()
