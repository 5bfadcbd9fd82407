"""What a swarm moves between three nodes of the lab, by the kernel's counters of each node's only interface.

Whole runs are counted, the start of Ray and all of its own talk included.
"""

import json
from pathlib import Path

import pytest
from launching import Login, only_run
from swarm_training import AGAIN_S, START_S, new_folder

from hpcjet.lab import Lab
from hpcjet.rundir import RunDir
from hpcjet.swarm.watch import SwarmFiles
from hpcjet.swarm.watch.csv_log import read_rows
from hpcjet.swarm.watch.told import read_seats

__all__ = ["new_folder"]
pytestmark = [pytest.mark.lab, pytest.mark.slow]

UPDATES = 12
RUN = [
    "+exp=formation", "cluster=lab", "cluster.nodes=3", "cluster.cpus_per_node=1", "cluster.mem_gb=3",
    "cluster.object_store_gb=0.2", f"exp.updates={UPDATES}", "exp.learners=1", "exp.seats=3", "exp.worlds=12",
    "exp.steps=100", "exp.environment.agents=100", "exp.environment.steps=100", "exp.staleness.mode=sync",
    "exp.learner.epochs=1", "exp.checkpoint_every=1000", "exp.evaluate_every=0", "exp.evaluate_episodes=1",
    "exp.policy.hidden=[128,128]",
]  # fmt: skip


def received(lab: Lab) -> dict[int, int]:
    """Bytes that each node got over its cable, since it began."""
    found = {}
    for node in lab.nodes:
        lines = lab.on_node(node, ["cat", "/proc/net/dev"]).stdout.splitlines()
        (line,) = [line for line in lines if line.strip().startswith("eth0:")]
        found[node] = int(line.partition(":")[2].split()[0])
    return found


def trained(login: Login, folder: Path, *overrides: str) -> tuple[RunDir, list[int]]:
    """A run to its end, and the bytes that each node got meanwhile, most first."""
    before = received(login.lab)
    words = [login.bin / "python", "-m", "hpcjet.launch", *RUN, f"run.root={folder}", *overrides]
    # Ray's workers are nice, and a machine that has other work would let them starve.
    done = login.run(*words, timeout_s=START_S + AGAIN_S, env={"RAY_worker_niceness": "0"})
    assert done.code == 0, done.output
    after = received(login.lab)
    return only_run(folder), sorted((after[node] - before[node] for node in before), reverse=True)


def learned_from(run: RunDir) -> float:
    """Bytes of the fragments of one seat: each has given as many as the others, one of them on the learner's node."""
    seats = read_seats(SwarmFiles.of(run).seats)
    assert len({seat.node for seat in seats}) == len(seats) == 3, seats
    rows = list(read_rows(SwarmFiles.of(run).metrics))
    assert len(rows) == UPDATES
    return sum(float(row["fetched_bytes"]) for row in rows) / len(seats)


def test_the_learner_gets_what_it_learns_from_and_others_the_weights(login: Login, folder: Path) -> None:
    run, got = trained(login, folder)
    one = learned_from(run)
    print(json.dumps({"learner": got[0], "of others": 2 * one, "ratio": got[0] / (2 * one), "all": got}), flush=True)
    assert 2 * one <= got[0] <= 1.1 * 2 * one
    assert max(got[1:]) < 0.1 * one  # weights, and what it takes to start
