"""Does the swarm learn? Steps, seconds and curves of what docs/swarm-learning.md shows, on one thread.

    OMP_NUM_THREADS=1 python tests/bench/swarm_learning.py cartpole --curves curves.csv
    OMP_NUM_THREADS=1 python tests/bench/swarm_learning.py two-shared --stop
    OMP_NUM_THREADS=1 python tests/bench/swarm_learning.py two-each --stop
    OMP_NUM_THREADS=1 python tests/bench/swarm_learning.py formation --seeds 0
    python tests/bench/swarm_learning.py figure --curves curves.csv --out docs/swarm-learning.svg

One line of JSON for each seed. `reached` is the agent-steps after which the mean over the last 100 episodes (formation:
10) was at the goal for the first time (for two agents: that of each), `last` that mean at the end. `cpu_s` is of this
process, `wall_s` holds what other work on the machine took.
"""

import argparse
import csv
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "swarm"))

from swarm_learning_figure import Curve, figure
from swarm_learning_table import table
from swarm_learning_tasks import TASKS, Task, evaluations

POINTS = 60
"""Of each curve in the CSV."""
COLUMNS = ("task", "seed", "agent_steps", "cpu_s", "score")


@dataclass
class Progress:
    """What a training came to so far; a score is the mean over the last `window` episodes."""

    window: int
    scores: list[tuple[float, ...]] = field(default_factory=list)
    """Of each episode, and each agent for itself."""
    reached: int | None = None
    reached_cpu_s: float | None = None
    points: list[tuple[int, float, float]] = field(default_factory=list)

    def note(self, scores: Iterable[tuple[float, ...]], goal: float, steps: int, cpu_s: float) -> None:
        self.scores += scores
        if len(self.scores) < self.window:
            return
        self.points.append((steps, cpu_s, self.mean))
        if self.reached is None and self.mean >= goal:
            self.reached, self.reached_cpu_s = steps, cpu_s

    @property
    def mean(self) -> float:
        """Of the last episodes; the lowest of those of all agents."""
        return float(np.mean(self.scores[-self.window :], axis=0).min())

    def thinned(self) -> list[tuple[int, float, float]]:
        every = max(1, len(self.points) // POINTS)
        return self.points[::every]


def train(task: Task, seed: int, *, most: int, stop: bool) -> tuple[dict[str, Any], Progress]:
    """One training of at most that many agent-steps; with `stop` it ends at the goal."""
    trainer, progress = task.trainer(seed, most), Progress(task.window)
    wall, cpu = time.perf_counter(), time.process_time()
    while trainer.agent_steps < most:
        done = trainer.iterate()
        scores = [task.score(episode) for episode in done.episodes]
        progress.note(scores, task.goal, trainer.agent_steps, time.process_time() - cpu)
        if stop and progress.reached is not None:
            break
    row = {
        "task": task.name, "seed": seed, "agent_steps": trainer.agent_steps, "goal": task.goal,
        "reached": progress.reached, "reached_cpu_s": rounded(progress.reached_cpu_s),
        "last": rounded(progress.mean), "cpu_s": rounded(time.process_time() - cpu),
        "wall_s": rounded(time.perf_counter() - wall),
    }  # fmt: skip
    row |= {name: rounded(value) for name, value in evaluations(task, trainer).items()}
    trainer.vector.close()
    return row, progress


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def run(given: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    task = TASKS[given.task]
    for seed in given.seeds:
        row, progress = train(task, seed, most=given.steps or task.steps, stop=given.stop)
        print(json.dumps(row), flush=True)
        if given.curves:
            append(given.curves, [(task.name, seed, *point) for point in progress.thinned()])


def append(path: Path, rows: Sequence[tuple[Any, ...]]) -> None:
    """Add to the CSV; curves of the same task and seed that are there already are replaced."""
    mine = {(str(row[0]), str(row[1])) for row in rows}
    kept = [row for row in read(path) if (row["task"], row["seed"]) not in mine] if path.exists() else []
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([row[name] for name in COLUMNS] for row in kept)
        writer.writerows((task, seed, steps, f"{cpu:.1f}", f"{score:.4g}") for task, seed, steps, cpu, score in rows)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def draw(given: argparse.Namespace) -> None:
    curves: dict[tuple[str, str], Curve] = {}
    for row in sorted(read(given.curves), key=lambda row: int(row["seed"])):
        curve = curves.setdefault((row["task"], row["seed"]), Curve(row["task"], row["seed"]))
        curve.points.append((float(row["agent_steps"]), float(row["score"])))
    panels = [(task.title, task.unit, task.goal, [c for c in curves.values() if c.task == name])
              for name, task in TASKS.items()]  # fmt: skip
    given.out.write_text(figure([panel for panel in panels if panel[3]]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, task in TASKS.items():
        command = commands.add_parser(name, help=task.title)
        command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
        command.add_argument("--steps", type=int, help=f"most agent-steps (default {task.steps})")
        command.add_argument("--stop", action="store_true", help="end at the goal")
        command.add_argument("--curves", type=Path, help="a CSV to add the curves to")
        command.set_defaults(does=run, task=name)
    command = commands.add_parser("figure", help="draw the curves")
    command.add_argument("--curves", type=Path, required=True)
    command.add_argument("--out", type=Path, required=True)
    command.set_defaults(does=draw)
    command = commands.add_parser("table", help="the table of lines of JSON from standard input")
    command.set_defaults(does=lambda given: print(table(map(json.loads, sys.stdin)), end=""))
    given = parser.parse_args(arguments)
    does: Callable[[argparse.Namespace], None] = given.does
    does(given)


if __name__ == "__main__":
    main()
