"""Agent-steps a CPU second, learning included: one process, and launches on one and on several nodes of the lab.

    sudo .venv/bin/python tests/bench/swarm_speed_nodes.py [--nodes 3 1] [--rounds 2] [--updates 12] [words of a launch]

All learn the same: +exp=formation with 4,000 agents in flight in worlds of 100, 4 epochs, minibatch 8,000. The one
process is a `Trainer` with one thread, without Ray, once with the machine to itself and once beside another of its
kind: a launch keeps all CPUs busy, and some do less in a second then. A launch has a seat on each node, of one CPU,
and as many learners as it takes by itself. CPU seconds are those of user and system that the kernel has in /proc for
each process of the lab's user, from the first updates on to the last but one: the start and the end of Ray and of
torch are apart. They are told for the processes that act and learn, and for all of the run, those of Ray too. Other
work on the machine changes them less than seconds on the clock, yet it does. Brings up the lab if it is down; nothing
else may run on it.
"""

import argparse
import multiprocessing
import secrets
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from swarm_speed_worlds import IN_FLIGHT

from hpcjet.lab import Lab
from hpcjet.swarm.watch import SwarmFiles
from hpcjet.swarm.watch.csv_log import read_rows

sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))

from launching import Login, only_run

AGENTS, STEPS, MINIBATCH, EPOCHS = 100, 100, 8000, 4
FIRST = 2
"""Updates that are not counted."""
LAUNCH_S = 900.0
KINDS = {"HostActor": "act", "LearnerActor": "learn"}
WORK = (*KINDS.values(),)
ONE, BESIDE = "one process", "one process beside another"

Cpu = dict[tuple[int, float], tuple[str, float]]
"""Process, by its number and when it began, to its kind and CPU seconds."""


def single(updates: int, *, beside: bool = False) -> dict[str, float]:
    """In a process of its own: what was asked of torch before hangs on to a process."""
    with started(updates) as mine:
        if not beside:
            return dict(mine.recv())
        with started(100 * updates):  # until it is ended
            return dict(mine.recv())


@contextmanager
def started(updates: int) -> Iterator[Any]:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_train, args=(theirs, updates))
    process.start()
    theirs.close()  # if it fails there is an end
    try:
        yield mine
    finally:
        process.terminate()
        process.join()


def _train(end: Any, updates: int) -> None:
    import torch

    from hpcjet.config.swarm.learner import LearnerConfig
    from hpcjet.swarm.formation import FormationConfig, FormationVector
    from hpcjet.swarm.trainer import Trainer, TrainerConfig

    torch.set_num_threads(1)
    vector = FormationVector(FormationConfig(agents=AGENTS, steps=STEPS), IN_FLIGHT // AGENTS, seed=0)
    trainer = Trainer(vector, TrainerConfig(steps=STEPS, learner=LearnerConfig(minibatch=MINIBATCH, epochs=EPOCHS)))
    for _ in range(FIRST):
        trainer.iterate()
    began, steps = time.process_time(), 0
    for _ in range(updates):
        steps += trainer.iterate().agent_steps
    rate = steps / (time.process_time() - began)
    end.send({"act and learn": rate, "all": rate})


class Launch:
    """One on so many nodes, until it has made its updates."""

    def __init__(self, login: Login, nodes: int, updates: int, words: list[str]) -> None:
        self._login, self._user, self._root = login, login.lab.user.name, login.home / f"speed-{secrets.token_hex(4)}"
        self._last = FIRST + updates
        self._process = login.start(
            "+exp=formation", "cluster=lab", f"cluster.nodes={nodes}", "cluster.cpus_per_node=1", "cluster.mem_gb=4",
            "cluster.object_store_gb=1", f"run.root={self._root}", f"exp.worlds={IN_FLIGHT // AGENTS}",
            f"exp.seats={nodes}", f"exp.steps={STEPS}", f"exp.environment.agents={AGENTS}",
            f"exp.environment.steps={STEPS}", f"exp.learner.minibatch={MINIBATCH}", f"exp.learner.epochs={EPOCHS}",
            f"exp.updates={self._last + 1}", "exp.checkpoint_every=1000", *words,
        )  # fmt: skip

    def figures(self) -> dict[str, float]:
        before, steps, began = self._at(FIRST)
        after, end, ended = self._at(self._last)
        spent: defaultdict[str, float] = defaultdict(float)
        for which, (kind, cpu) in after.items():
            spent[kind] += cpu - before.get(which, ("", 0.0))[1]
        gone = [kind for which, (kind, _) in before.items() if which not in after and kind in WORK]
        if gone:
            raise SystemExit(f"processes that {', '.join(gone)} ended in between; their CPU seconds are lost")
        output, _ = self._process.communicate(timeout=LAUNCH_S)
        if self._process.returncode:
            raise SystemExit(f"the launch ended with {self._process.returncode}:\n{output[-4000:]}")
        subprocess.run(["rm", "-rf", self._root], check=True)
        made, work = end - steps, sum(spent[kind] for kind in WORK)
        shares = {f"{kind} us": spent[kind] / made * 1e6 for kind in (*WORK, "rest")}
        return {
            "act and learn": made / work,
            "all": made / sum(spent.values()),
            "a second": made / (ended - began),
            **shares,
        }

    def _at(self, version: int) -> tuple[Cpu, float, float]:
        """CPU seconds, agent-steps and time once so many updates are told."""
        deadline = time.monotonic() + LAUNCH_S
        while True:
            with suppress(OSError, ValueError):
                rows = list(read_rows(SwarmFiles.of(only_run(self._root)).metrics))
                if rows and float(rows[-1]["version"]) >= version:
                    return self._cpu(), float(rows[-1]["agent_steps"]), time.monotonic()
            if self._process.poll() is not None:
                raise SystemExit(f"the launch ended by itself:\n{self._process.communicate()[0][-4000:]}")
            if time.monotonic() > deadline:
                raise SystemExit(f"{version} updates: not in {LAUNCH_S:g} s; see {self._root}")
            time.sleep(0.1)

    def _cpu(self) -> Cpu:
        found: Cpu = {}
        for each in psutil.process_iter():
            with suppress(psutil.Error):
                if each.username() == self._user:
                    words, times = " ".join(each.cmdline()), each.cpu_times()
                    kind = next((kind for word, kind in KINDS.items() if word in words), "rest")
                    found[each.pid, each.create_time()] = kind, times.user + times.system
        return found

    def end(self) -> None:
        """What is left of it, if anything went wrong."""
        if self._process.poll() is None:
            with suppress(Exception):
                self._login.hpcjet("cancel", only_run(self._root).path)
                self._process.communicate(timeout=60)
        if self._process.poll() is None:
            self._process.kill()


def launched(login: Login, nodes: int, updates: int, words: list[str]) -> dict[str, float]:
    launch = Launch(login, nodes, updates, words)
    try:
        return launch.figures()
    finally:
        launch.end()


def measure(login: Login, options: argparse.Namespace) -> None:
    rounds: list[dict[str, dict[str, float]]] = []
    ways = {
        f"{nodes} nodes": partial(launched, login, nodes, options.updates, options.words) for nodes in options.nodes
    }
    ways |= {ONE: partial(single, options.updates), BESIDE: partial(single, options.updates, beside=True)}
    for _ in range(options.rounds):
        rounds.append({})
        for name, way in ways.items():
            rounds[-1][name] = figures = way()
            told = ", ".join(f"{key} {value:,.2f}" for key, value in figures.items())
            print(f"    {time.strftime('%H:%M:%S')} {name}: {told}", flush=True)
    for name in rounds[0]:
        for which in ("act and learn", "all"):
            rates = [each[name][which] for each in rounds]
            alone, beside = (
                statistics.median(each[name][which] / each[one][which] for each in rounds) for one in (ONE, BESIDE)
            )
            print(
                f"{name}, processes that {which}: {statistics.median(rates):,.0f} agent-steps a CPU second "
                f"({min(rates):,.0f} to {max(rates):,.0f}), {alone:.2f} times {ONE}, {beside:.2f} times {BESIDE}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 1])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--updates", type=int, default=12, help="that are counted")
    parser.add_argument("words", nargs="*", help="overrides of the launches, such as exp.learners=3")
    options = parser.parse_args()
    lab = Lab()
    was_up = lab.status().is_up
    if not was_up:
        lab.up(4)
    try:
        measure(Login(lab), options)
    finally:
        if not was_up:
            lab.down()


if __name__ == "__main__":
    main()
