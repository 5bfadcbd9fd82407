"""Agent-steps a second, learning included: this trainer beside other systems, on the same world, in one run.

    python tests/bench/swarm_speed.py --peers DIR [--agents 100 1000] [--processes 1 2] [--rounds 5] [--compile]
        [--puffer PYTHON --puffer-path DIR] [--sample-factory PYTHON] [--epochs 4] [--overlap]
    python tests/bench/swarm_speed.py --flat           # ours alone, its own formation, from 100 to 10,000 agents

DIR holds formation.py (the world), plain.py (the one-file PPO), settings.py (the constants of all) and, for the options
that name an interpreter with such a system, run_pufferlib.py and run_samplefactory.py. 4,000 agents are in flight, all
in worlds of as many as asked for; minibatch, epochs and updates are the same for all. Sample Factory 2.1.1 wants
gymnasium below 1.0: with a later one its rollout workers never start, and nothing says so.

With `--processes 2` ours has two ranks of a thread each, the one-file PPO two threads, the others what they take of two
cores. `limit` is what the parts of the one-file PPO alone would allow, in as many processes that need no word of each
other; `--compile` compiles its loss. Systems take turns, and what is printed are medians, and medians of the ratios
within a round: other work on the machine hits all of them. Beside them stand agent-steps a CPU second, of all processes
of a system, which hang less on other work, but do not show who waits for whom.
"""

import argparse
import importlib
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path

import torch
from swarm_speed_peers import Limit, Plain, Script, Spent, timed
from swarm_speed_worlds import settings_of, worlds_of

from hpcjet.swarm.formation import FormationConfig, FormationVector
from hpcjet.swarm.trainer import Trainer
from hpcjet.swarm.trainers import Trainers

System = Callable[[], Spent]
OVERLAP = "overlap"
FLAT_AGENTS, FLAT_STEPS = 10_000, 10
"""In flight, and steps of an iteration: more of both only take longer."""


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
    make, form = partial(worlds_of, agents), settings_of(options)
    found: dict[str, System] = {"ours": Ours(stack.enter_context(Trainers(make, form, processes)))}
    if options.overlap:
        found[OVERLAP] = Ours(stack.enter_context(Trainers(make, replace(form, overlap=True), processes)))
    if "limit" not in options.without:
        found["limit"] = limit = Limit(agents, processes, options)
        stack.callback(limit.close)
    if "plain" not in options.without:
        found["plain"] = Plain(agents, options)
    for system in found.values():
        system()  # the first time is another
    found = {name: partial(several, system, options.iterations) for name, system in found.items()}
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


def several(system: System, times: int) -> Spent:
    parts = [system() for _ in range(times)]
    return Spent(*(sum(part) for part in zip(*map(astuple, parts), strict=True)))


def compare(agents: int, processes: int, options: argparse.Namespace) -> None:
    torch.set_num_threads(processes)
    torch.manual_seed(0)
    print(f"{agents} agents in a world, {processes} processes, {options.epochs} epochs, {options.rounds} rounds")
    rounds = []
    with ExitStack() as stack:
        rivals = systems(agents, processes, options, stack)
        for _ in range(options.rounds):
            rounds.append({name: system() for name, system in rivals.items()})
            rates = (f"{name} {rate(spent, 'wall'):,.0f}" for name, spent in rounds[-1].items())
            print(f"    {time.strftime('%H:%M:%S')} {', '.join(rates)}", flush=True)
    for name in rivals:
        by_wall = [rate(each[name], "wall") for each in rounds]
        by_cpu = statistics.median(rate(each[name], "cpu") for each in rounds)
        print(
            f"  {name:<15} {statistics.median(by_wall):>9,.0f} a second ({min(by_wall):,.0f} to {max(by_wall):,.0f}), "
            f"{by_cpu:>9,.0f} a CPU second; {'; '.join(ratios(name, rounds))}",
            flush=True,
        )


def ratios(name: str, rounds: Sequence[Mapping[str, Spent]]) -> Iterator[str]:
    """How many times as fast ours are, by the clock and by CPU time."""
    for own in ("ours", OVERLAP):
        if own in rounds[0] and own != name:
            wall, cpu = (
                statistics.median(rate(each[own], kind) / rate(each[name], kind) for each in rounds)
                for kind in ("wall", "cpu")
            )
            yield f"{own} is {wall:.2f} and {cpu:.2f} times that"


def rate(spent: Spent, kind: str) -> float:
    return spent.steps / float(getattr(spent, kind))


def flat(options: argparse.Namespace) -> None:
    """CPU nanoseconds for an agent-step, everything included, by number of agents in a world."""
    torch.set_num_threads(1)
    sizes = (100, 300, 1000, 3000, 10_000)
    options.steps = min(options.steps, FLAT_STEPS)
    trainers: dict[int, Trainer] = {}
    costs: dict[int, list[float]] = {agents: [] for agents in sizes}
    for number in range(options.rounds + 1):
        for agents in sizes:
            if not number:
                vector = FormationVector(FormationConfig(agents=agents), max(1, FLAT_AGENTS // agents), seed=0)
                trainers[agents] = Trainer(vector, settings_of(options))
            before, (_, cpu) = trainers[agents].agent_steps, timed(trainers[agents].iterate)
            costs[agents].append(cpu / (trainers[agents].agent_steps - before) * 1e9)
        told = ", ".join(f"{agents}: {each[-1]:,.0f} ns" for agents, each in costs.items())
        print(f"    {'first, not counted' if not number else f'round {number}'}: {told}", flush=True)
    counted = {agents: each[1:] for agents, each in costs.items()}
    for agents, each in counted.items():
        times = statistics.median(each[at] / counted[sizes[0]][at] for at in range(options.rounds))
        print(
            f"{agents:>6} agents: {statistics.median(each):,.0f} ns ({min(each):,.0f} to {max(each):,.0f}), "
            f"{times:.2f} times that of {sizes[0]} in the same round", flush=True,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=lambda text: Path(text).resolve(), help="where the files of the peers are")
    parser.add_argument("--agents", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatch", type=int, default=8000)
    parser.add_argument("--steps", type=int, default=100, help="of all worlds in an iteration; fewer for a quick look")
    parser.add_argument("--iterations", type=int, default=1, help="of a system in its turn, but of those with a window")
    parser.add_argument("--overlap", action="store_true", help="ours also with acting while ranks wait for each other")
    parser.add_argument("--without", nargs="+", choices=["plain", "limit"], default=[], help="leave these out")
    parser.add_argument("--compile", action="store_true", help="the limit's epochs with torch.compile")
    parser.add_argument("--puffer", type=Path, help="a Python that has PufferLib")
    parser.add_argument("--puffer-path", type=Path, help="where clean_pufferl.py and c_gae.pyx of PufferLib are")
    parser.add_argument("--sample-factory", type=Path, help="a Python that has Sample Factory")
    parser.add_argument("--warmup", type=float, default=6, help="seconds, of the systems in processes of their own")
    parser.add_argument("--window", type=float, default=15, help="seconds that are counted of them, at least")
    parser.add_argument("--flat", action="store_true", help="cost of an agent-step from 100 to 10,000 agents")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends too
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
