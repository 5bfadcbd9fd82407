"""A training on a real Ray of two nodes, whose driver is this process: how much each process holds, again and again.

Run as a program by test_swarm_growth.py, with RAY_TMPDIR and a folder for the run; what it finds is printed as JSON.
"""

import gc
import json
import sys
import threading
import time
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from swarm_scene import two_nodes

from hpcjet.cluster.roster import roster
from hpcjet.config.compose import compose
from hpcjet.rundir import RunDir
from hpcjet.swarm.actors import get_actor
from hpcjet.swarm.driver.training import Training
from hpcjet.swarm.form import form_of

UPDATES, BEGIN, EVERY = 900, 350, 40
"""Until BEGIN caches fill, of Ray and of ours."""
LOOKS = 3
"""The least of so many counts: what is on its way just then does not count."""
WORDS = [
    "+exp=formation", "exp.environment.agents=3", "exp.environment.steps=20", "exp.worlds=2", "exp.seats=2",
    "exp.steps=5", "exp.learner.minibatch=30", "exp.learner.epochs=1", "exp.policy.hidden=[8]",
    "exp.evaluate_episodes=1", "exp.evaluate_every=200", "exp.staleness.mode=hybrid", "exp.checkpoint_every=10",
    "exp.cache.push=true", f"exp.updates={UPDATES}",
]  # fmt: skip


def count(_actor: object = None) -> int:
    """What Python has allocated in this process."""
    gc.collect()
    return sys.getallocatedblocks()


class Counts:
    """Of each process, by updates."""

    def __init__(self, training: Training) -> None:
        self._training = training
        # Not lists of numbers: this process is one of those that are counted.
        self.found: dict[str, array[int]] = {}
        self.versions = array("q")

    def go_on(self) -> None:
        due = BEGIN
        while not self._training._learning.done:
            if self._training._learning.version >= due:
                due += EVERY
                self._note()
            time.sleep(0.05)

    def _note(self) -> None:
        names = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]
        actors = {name: get_actor(name) for name in names}
        least: dict[str, int] = {}
        for _ in range(LOOKS):
            counts = dict(
                zip(actors, ray.get([each.__ray_call__.remote(count) for each in actors.values()]), strict=True)
            )
            for name, number in {**counts, "driver": count()}.items():
                least[name] = min(number, least.get(name, number))
        self.versions.append(self._training._learning.version)
        for name, number in least.items():
            self.found.setdefault(name, array("q")).append(number)


def main() -> None:
    two_nodes()
    exp = compose(WORDS).exp
    run = RunDir(Path(sys.argv[1]))
    plan = SimpleNamespace(run=run, stop_timeout_s=lambda **_: 60.0)
    inbox = SimpleNamespace(nodes=dict)
    cluster = SimpleNamespace(
        ray=ray, inbox=inbox, members=lambda: roster(ray.nodes(), {}), give_back=lambda member: None
    )  # fmt: skip
    form: Any = exp
    training = Training(plan, form, form_of(form), cluster, seed=0)  # type: ignore[arg-type]
    counts = Counts(training)
    threading.Thread(target=counts.go_on, daemon=True).start()
    try:
        training.run()
    finally:
        training.end()
    counted = {name: list(zip(counts.versions, numbers, strict=True)) for name, numbers in counts.found.items()}
    print(json.dumps(counted))


if __name__ == "__main__":
    main()
