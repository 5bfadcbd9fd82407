"""How fast the formation steps by itself, on one thread: agent-steps per second, from 100 to 10,000 agents.

    OMP_NUM_THREADS=1 python tests/bench/formation_world.py [--seconds 2] [--small]

Prints JSON lines. Each figure is of whole episodes, resets included, by CPU time, which other work on the machine
changes little. `--small` adds the sizes at which the cost of numpy's calls, and not of agents, is what is measured.
"""

import argparse
import json
import time

import numpy as np

from hpcjet.swarm.formation import FormationConfig, FormationVector
from hpcjet.swarm.formation.vector import GROUP

SIZES = [(100, 100), (40, 100), (10, 1000), (4, 1000), (1, 10_000)]
SMALL = [(1, 100), (1, 1000)]


def measure(worlds: int, agents: int, seconds: float) -> dict[str, float]:
    config = FormationConfig(agents=agents)
    vector = FormationVector(config, worlds, seed=0)
    turn = vector.reset()
    best = float("inf")
    deadline = time.process_time() + seconds
    while best == float("inf") or time.process_time() < deadline:
        begin = time.process_time()
        for _ in range(config.steps):
            # A controller, so that agents stand as they do when they hold the formation.
            observation = turn.groups[GROUP].observation
            turn = vector.step({GROUP: observation[..., 2:4] - 1.6 * observation[..., 0:2]})
        best = min(best, time.process_time() - begin)
    agent_steps = worlds * agents * config.steps
    return {
        "worlds": worlds, "agents": agents, "agent_steps_per_cpu_s": round(agent_steps / best),
        "ns_per_agent_step": round(best / agent_steps * 1e9), "held": turn.episodes[0].metrics["held"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU seconds for each size, at least one episode")
    parser.add_argument("--small", action="store_true", help="sizes at which numpy's calls cost more than agents")
    options = parser.parse_args()
    np.seterr(all="raise")
    for worlds, agents in SIZES + (SMALL if options.small else []):
        print(json.dumps(measure(worlds, agents, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
