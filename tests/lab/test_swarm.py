"""A swarm over three nodes of the lab: all of them act, and what is killed in mid-training is replaced."""

import json
from pathlib import Path

import pytest
from launching import Login, kill_on, only_run
from swarm_training import AGAIN_S, SMALL, START_S, Training, new_folder, processes

from hpcjet.swarm.watch import SwarmFiles
from hpcjet.swarm.watch.csv_log import read_rows
from hpcjet.swarm.watch.told import read_seats

__all__ = ["new_folder"]
pytestmark = [pytest.mark.lab, pytest.mark.slow]

THREE = ["cluster.nodes=3", "cluster.cpus_per_node=1", "cluster.mem_gb=3", "cluster.object_store_gb=0.1"]


def test_all_nodes_act_and_what_they_did_is_learned_from(login: Login, folder: Path) -> None:
    words = [*THREE, *SMALL, f"run.root={folder}", "exp.updates=8", "exp.staleness.mode=sync"]
    done = login.launch("+exp=formation", "cluster=lab", *words, timeout_s=START_S + AGAIN_S)
    assert done.code == 0, done.output
    run = only_run(folder)
    seats = read_seats(SwarmFiles.of(run).seats)
    assert len({seat.node for seat in seats}) == 3, seats
    # In sync mode an update needs a fragment of each seat: what one node does not give is not there.
    assert all(seat.agent_steps >= 8 * 2 * 20 * 8 for seat in seats), seats
    rows = list(read_rows(SwarmFiles.of(run).metrics))
    assert [row["version"] for row in rows] == list(range(1, 9)) and rows[-1]["nodes"] == 3
    assert all(row["agent_steps"] == 6 * 20 * 8 * row["version"] for row in rows)
    assert json.loads(run.summary.read_text())


def test_a_training_survives_its_parts_one_after_the_other(login: Login, folder: Path) -> None:
    with Training(login, folder, *THREE, "exp.updates=1000000", "exp.learners=2") as training:
        training.await_rows(10, START_S)
        lab, head = training.lab, training.head
        host = training.node_of("seat-0000")
        training.survives("the host of seat-", lambda: kill_on(lab, host, "HostActor"))
        training.survives("swarm-index", lambda: kill_on(lab, head, "IndexActor"))
        server = training.node_with("ServerActor")
        training.survives("swarm-ps-", lambda: kill_on(lab, server, "ServerActor"))
        learner = next(
            node for node in lab.nodes if any("LearnerActor" in " ".join(p.argv) for p in processes(lab, node))
        )
        training.survives("learner rank", lambda: kill_on(lab, learner, "LearnerActor"))


def test_a_training_survives_a_node_without_power(login: Login, folder: Path) -> None:
    with Training(login, folder, *THREE, "exp.updates=1000000") as training:
        training.await_rows(10, START_S)
        lab, head = training.lab, training.head
        node = next(number for number in (training.node_of(f"seat-000{seat}") for seat in range(3)) if number != head)
        try:
            training.survives(f"node n{node}", lambda: lab.crash(node))
            assert training.rows[-1]["nodes"] == 2 and training.rows[-1]["hosts"] == 3
        finally:
            lab.restart(node)
