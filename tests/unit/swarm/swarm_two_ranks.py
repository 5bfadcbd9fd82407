"""Two ranks over gloo: `swarm_two_ranks.py RANK FOLDER`. Run by test_ranks.py; what each ends with is in FOLDER."""

import os
import pickle
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from swarm_fragments import SMALL, formation, fragment_of, learner_for, settings

from hpcjet.config.swarm.learner import Algorithm, LearnerConfig, Standardise
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.learning.ranks import ALONE, Distributed, Ranks

SEEING = replace(SMALL, observation_norm=True)
CASES = {
    "ppo": (settings(Algorithm.ppo, minibatch=10_000, microbatch=50), 2),
    "ppo, by node": (settings(Algorithm.ppo, minibatch=10_000, standardise=Standardise.node), 1),
    "vtrace": (settings(Algorithm.vtrace, minibatch=10_000), 2),
    "vtrace, by node": (settings(Algorithm.vtrace, minibatch=10_000, standardise=Standardise.node), 1),
    "a rank with nothing": (settings(Algorithm.ppo, minibatch=10_000), 3),
    "vtrace, a rank with nothing": (settings(Algorithm.vtrace, minibatch=10_000), 3),
    "inputs normalised": (settings(Algorithm.ppo, minibatch=10_000), 2),
    "vtrace, inputs normalised, a rank with nothing": (settings(Algorithm.vtrace, minibatch=10_000), 3),
    "inputs normalised, resumed": (settings(Algorithm.ppo, minibatch=10_000), 1),
    "vtrace, inputs normalised, resumed": (settings(Algorithm.vtrace, minibatch=10_000), 2),
    "weighted": (settings(Algorithm.ppo, minibatch=10_000), 1),
    "vtrace, weighted": (settings(Algorithm.vtrace, minibatch=10_000), 1),
    "many steps": (settings(Algorithm.ppo, minibatch=50), 2),
    "vtrace, many steps": (settings(Algorithm.vtrace, minibatch=50), 2),
}
"""Settings, and how many of the three fragments the first rank has."""
REPEATED = ("many steps", "vtrace, many steps")
NODES = (1, 0, 1)
WEIGHTS = (1.0, 0.3, 0.7)
UPDATES = 3


def fragments(config: LearnerConfig, policy: PolicyConfig) -> list[Fragment]:
    """Of unequal length where it may be."""
    learner = learner_for(formation(with_state=True), config, policy=policy)
    lengths = (12, 12, 12) if config.algorithm is Algorithm.vtrace else (12, 4, 7)
    return [fragment_of(formation(seed=seed, with_state=True), learner, steps) for seed, steps in enumerate(lengths)]


def learned(name: str, ranks: Ranks, first: int, last: int) -> dict[str, np.ndarray]:
    """Weights and metrics after some updates from fragments first to last; of several ranks, a resume between them."""
    config, policy = CASES[name][0], SEEING if "inputs" in name else SMALL
    learner = learner_for(formation(with_state=True), config, ranks, policy)
    mine, weights = fragments(config, policy)[first:last], WEIGHTS[first:last] if "weighted" in name else ()
    for number in range(UPDATES):
        if number and "resumed" in name and ranks.size > 1:
            held = pickle.loads(pickle.dumps(learner.state_dict()))
            learner = learner_for(formation(with_state=True), config, ranks, policy)
            learner.load_state_dict(held)
        metrics = learner.update(mine, nodes=NODES[first:last], weights=weights)
    return {**learner.policy.weights(), **{f"metric {name}": np.array(value) for name, value in metrics.items()}}


def alone(name: str) -> dict[str, np.ndarray]:
    return learned(name, ALONE, 0, 3)


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=300)
    )
    for name, (_, first) in CASES.items():
        mine = (0, first) if rank == 0 else (first, 3)
        one = learned(name, Distributed(), *mine)
        if name in REPEATED:
            again = learned(name, Distributed(), *mine)
            assert all((one[key] == again[key]).all() for key in one), f"{name}: not bit-equal when repeated"
        np.savez(folder / f"{name}-{rank}.npz", **one)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
    # torch's threads can outlive the group, and then the end of the interpreter ends the process with SIGABRT.
    os._exit(0)
