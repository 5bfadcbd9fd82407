"""A training with a central pool on a real Ray of two nodes, of which the one with pool, learner and most seats dies.

Run as a program by test_swarm_central.py, with RAY_TMPDIR and a folder for the run; what it finds is printed as JSON.
"""

import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from swarm_scene import two_nodes

from hpcjet.cluster.roster import roster
from hpcjet.config.compose import compose
from hpcjet.rundir import RunDir
from hpcjet.swarm.driver.training import Training
from hpcjet.swarm.form import form_of
from hpcjet.swarm.watch import SwarmFiles
from hpcjet.swarm.watch.told import read_losses

UPDATES, KILL_AT = 60, 12
WORDS = [
    "+exp=formation", "exp.environment.agents=3", "exp.environment.steps=20", "exp.worlds=3", "exp.seats=3",
    "exp.steps=20", "exp.learner.minibatch=60", "exp.learner.epochs=1", "exp.policy.hidden=[8]", "exp.learners=1",
    "exp.evaluate_episodes=1", "exp.evaluate_every=0", "exp.staleness.mode=hybrid", "exp.checkpoint_every=5",
    "exp.pool.mode=central", f"exp.updates={UPDATES}", "exp.weights.lease_s=2",
]  # fmt: skip


def main() -> None:
    cluster, away = two_nodes(cpus_away=3)
    exp: Any = compose(WORDS).exp
    run = RunDir(Path(sys.argv[1]))
    plan: Any = SimpleNamespace(run=run, stop_timeout_s=lambda **_: 60.0, worker_groups=())
    agents: Any = SimpleNamespace(
        ray=ray, inbox=SimpleNamespace(nodes=dict), members=lambda: roster(ray.nodes(), {}),
        give_back=lambda member: None,
    )  # fmt: skip
    training = Training(plan, exp, form_of(exp), agents, seed=0)
    pools: list[str] = []

    def kill() -> None:
        while training._learning.version < KILL_AT:
            time.sleep(0.05)
        pools.append(str(training._plane.pool_at))
        cluster.remove_node(away, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        training.run()
    finally:
        killer.join(300)
        pools.append(str(training._plane.pool_at))
        seats = {seat.name: seat.attempt for seat in training._seats.all.values()}
        training.end()
    losses = read_losses(SwarmFiles.of(run).losses)
    found = {
        "updates": training._learning.version, "attempts": seats,
        "pool": [{away.node_id: "away", ray.get_runtime_context().get_node_id(): "here"}[at] for at in pools],
        "lost": [each.what.partition(" ")[0] for each in losses],
        "seconds": [each.seconds_to_first_new_sample for each in losses],
    }  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
