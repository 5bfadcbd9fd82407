"""Agent-steps a second, learning included: this trainer beside other systems, on the same world, in one run.

    python tests/bench/swarm_speed.py --peers DIR [--agents 100 1000] [--processes 1 2] [--rounds 5] [--compile]
        [--puffer PYTHON --puffer-path DIR] [--sample-factory PYTHON] [--epochs 4]
    python tests/bench/swarm_speed.py --flat           # ours alone, its own formation, from 100 to 10,000 agents

DIR holds formation.py (the world), plain.py (the one-file PPO), settings.py (the constants of all) and, for the options
that name an interpreter with such a system, run_pufferlib.py and run_samplefactory.py. 4,000 agents are in flight, all
in worlds of as many as asked for; minibatch, epochs and updates are the same for all.

With `--processes 2` ours has two ranks of a thread each, the one-file PPO two threads, the others what they take of two
cores. `limit` is what the parts of the one-file PPO alone would allow, in as many processes that need no word of each
other; `--compile` compiles its loss. Systems take turns, and what is printed are medians, and medians of the ratios
within a round: other work on the machine hits all of them. Beside them stand agent-steps a CPU second, of all processes
of a system, which hang less on other work, but do not show who waits for whom.
"""

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from swarm_speed_peers import Limit, Plain, Script, Spent, timed
from swarm_speed_worlds import settings_of, worlds_of

from hpcjet.swarm.formation import FormationConfig, FormationVector
from hpcjet.swarm.trainer import Trainer
from hpcjet.swarm.trainers import Trainers

System = Callable[[], Spent]


class Ours:
    """So many ranks."""

    def __init__(self, trainers: Trainers) -> None:
        self._trainers = trainers

    def __call__(self) -> Spent:
        began = time.perf_counter()
        ranks = self._trainers.iterate()
        wall = time.perf_counter() - began
        return Spent(sum(each.done.agent_steps for each in ranks), wall, sum(each.cpu_seconds for each in ranks))


def systems(agents: int, processes: int, options: argparse.Namespace, stack: ExitStack) -> dict[str, System]:
    trainers = stack.enter_context(Trainers(partial(worlds_of, agents), settings_of(options), processes))
    limit = Limit(agents, processes, options)
    stack.callback(limit.close)
    found: dict[str, System] = {"ours": Ours(trainers), "plain": Plain(agents, options), "limit": limit}
    threads = ("--threads", str(processes))
    if options.puffer and options.epochs == 4:
        path = str(options.puffer_path or "")
        found["puffer"] = Script(options.puffer, "run_pufferlib.py", agents, options, *threads, path=path)
    if options.sample_factory and processes == 2:
        variant = {1: "async-1epoch", 4: "async"}[options.epochs]
        found["sample factory"] = Script(
            options.sample_factory, "run_samplefactory.py", agents, options, "--variant", variant
        )
    return found


def compare(agents: int, processes: int, options: argparse.Namespace) -> None:
    torch.set_num_threads(processes)
    torch.manual_seed(0)
    with ExitStack() as stack:
        rivals = systems(agents, processes, options, stack)
        for name in ("ours", "plain", "limit"):
            rivals[name]()
        rounds = [{name: system() for name, system in rivals.items()} for _ in range(options.rounds)]
    print(f"{agents} agents in a world, {processes} processes, {options.epochs} epochs, {options.rounds} rounds")
    for name in rivals:
        by_wall, by_cpu = (
            [each[name].steps / getattr(each[name], kind) for each in rounds] for kind in ("wall", "cpu")
        )
        ratio, ratio_cpu = (
            statistics.median(rate(each["ours"], kind) / rate(each[name], kind) for each in rounds)
            for kind in ("wall", "cpu")
        )
        print(
            f"  {name:<15} {statistics.median(by_wall):>9,.0f} a second ({min(by_wall):,.0f} to {max(by_wall):,.0f}), "
            f"{statistics.median(by_cpu):>9,.0f} a CPU second; ours is {ratio:.2f} and {ratio_cpu:.2f} times that",
            flush=True,
        )


def rate(spent: Spent, kind: str) -> float:
    return spent.steps / float(getattr(spent, kind))


def flat(options: argparse.Namespace) -> None:
    """CPU nanoseconds for an agent-step, everything included, by number of agents in a world."""
    torch.set_num_threads(1)
    sizes = (100, 300, 1000, 3000, 10_000)
    trainers = {}
    for agents in sizes:
        worlds = max(1, 10_000 // agents)
        vector = FormationVector(FormationConfig(agents=agents), worlds, seed=0)
        trainers[agents] = Trainer(vector, settings_of(options)), worlds * agents * options.steps
        trainers[agents][0].iterate()
    rounds = [
        {agents: timed(trainer.iterate)[1] / steps * 1e9 for agents, (trainer, steps) in trainers.items()}
        for _ in range(options.rounds)
    ]
    for agents in sizes:
        print(f"{agents:>6} agents: {statistics.median(each[agents] for each in rounds):,.0f} ns")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=lambda text: Path(text).resolve(), help="where the files of the peers are")
    parser.add_argument("--agents", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatch", type=int, default=8000)
    parser.add_argument("--steps", type=int, default=100, help="of all worlds in an iteration; fewer for a quick look")
    parser.add_argument("--compile", action="store_true", help="the limit's epochs with torch.compile")
    parser.add_argument("--puffer", type=Path, help="a Python that has PufferLib")
    parser.add_argument("--puffer-path", type=Path, help="where clean_pufferl.py and c_gae.pyx of PufferLib are")
    parser.add_argument("--sample-factory", type=Path, help="a Python that has Sample Factory")
    parser.add_argument("--warmup", type=float, default=6, help="seconds, of the systems in processes of their own")
    parser.add_argument("--window", type=float, default=15, help="seconds that are counted of them, at least")
    parser.add_argument("--flat", action="store_true", help="cost of an agent-step from 100 to 10,000 agents")
    options = parser.parse_args()
    if options.flat:
        flat(options)
    if options.peers is not None:
        sys.path.insert(0, str(options.peers))
        vars(importlib.import_module("settings"))["ROLLOUT"] = options.steps
        for processes in options.processes:
            for agents in options.agents:
                compare(agents, processes, options)


if __name__ == "__main__":
    main()
