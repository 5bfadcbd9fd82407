"""A swarm over three nodes of the lab: all of them act, and what is killed in mid-training is replaced."""

import contextlib
import json
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import Login, kill_on, only_run, wait_for

from hpcjet.lab import Lab
from hpcjet.rundir import RunDir
from hpcjet.swarm.watch import Loss, SwarmFiles
from hpcjet.swarm.watch.csv_log import read_rows
from hpcjet.swarm.watch.told import read_losses, read_seats

PROJECT = Path(__file__).parents[2]
pytestmark = [pytest.mark.lab, pytest.mark.slow]

THREE = ["cluster=lab", "cluster.nodes=3", "cluster.cpus_per_node=1", "cluster.mem_gb=3", "cluster.object_store_gb=0.1"]
SMALL = [
    "exp.environment.agents=8", "exp.environment.steps=20", "exp.worlds=6", "exp.seats=3", "exp.steps=20",
    "exp.learner.minibatch=160", "exp.evaluate_episodes=1", "exp.staleness.mode=hybrid", "exp.checkpoint_every=5",
    "exp.weights.lease_s=3",
]  # fmt: skip
START_S, AGAIN_S = 400.0, 240.0


class Training:
    """One that goes on until it is ended."""

    def __init__(self, login: Login, folder: Path, *overrides: str) -> None:
        self.lab, self._root = login.lab, folder
        self.process = login.start("+exp=formation", *THREE, *SMALL, f"run.root={folder}", *overrides)
        self.login = login

    @property
    def run(self) -> RunDir:
        return only_run(self._root)

    @property
    def files(self) -> SwarmFiles:
        return SwarmFiles.of(self.run)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(read_rows(self.files.metrics))

    @property
    def log(self) -> str:
        return "\n".join(file.read_text()[-4000:] for file in sorted(self.run.path.glob("logs/*/*driver.log")))

    def await_rows(self, number: int, timeout_s: float) -> None:
        def there() -> bool:
            assert self.process.poll() is None, f"it ended: {self.log}"
            return bool(list(self._root.glob("*/*/swarm/metrics.csv"))) and len(self.rows) >= number

        wait_for(there, timeout_s=timeout_s, what=f"{number} updates")

    def survives(self, what: str, break_it: Callable[[], None]) -> Loss:
        """Break something; the loss that is told, once new samples came, and updates after it."""
        before = len(read_losses(self.files.losses))
        began = time.time()
        break_it()

        def told() -> Loss | None:
            assert self.process.poll() is None, f"it ended: {self.log}"
            found = [each for each in read_losses(self.files.losses)[before:] if what in each.what]
            return next((each for each in found if each.seconds_to_first_new_sample is not None), None)

        wait_for(lambda: told() is not None, timeout_s=AGAIN_S, what=f"new samples after the loss of {what}")
        loss = told()
        assert loss is not None and loss.time >= began - 60
        more = max(float(row["seconds"]) for row in self.rows)
        wait_for(
            lambda: self.process.poll() is not None or float(self.rows[-1]["seconds"]) > more + 1,
            timeout_s=AGAIN_S, what="updates after the loss",
        )  # fmt: skip
        assert self.process.poll() is None, self.log
        print(
            f"{loss.what}: {loss.lost_fragments} fragments lost, {loss.seconds_to_first_new_sample:.1f} s", flush=True
        )
        return loss

    def node_of(self, seat: str) -> int:
        """The lab's number of the node that a seat is on."""
        (facts,) = [each for each in read_seats(self.files.seats) if each.seat == seat]
        return int(facts.node.partition("-")[0].removeprefix("n"))

    def node_with(self, word: str) -> int:
        return next(node for node in self.lab.nodes if any(word in " ".join(p.argv) for p in processes(self.lab, node)))

    @property
    def head(self) -> int:
        return self.node_with("hpcjet.drive")

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self.login.hpcjet("cancel", self.run.path)
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def processes(lab: Lab, node: int) -> list[Any]:
    with contextlib.suppress(Exception):
        return list(lab.processes(node))
    return []


@pytest.fixture
def folder(login: Login) -> Iterator[Path]:
    path = login.home / f"swarm-{secrets.token_hex(4)}"
    yield path
    subprocess.run(["rm", "-rf", path], check=True)


def test_all_nodes_act_and_what_they_did_is_learned_from(login: Login, folder: Path) -> None:
    words = ["+exp=formation", *THREE, *SMALL, f"run.root={folder}", "exp.updates=8", "exp.staleness.mode=sync"]
    done = login.launch(*words, timeout_s=START_S + AGAIN_S)
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
    with Training(login, folder, "exp.updates=1000000", "exp.learners=2") as training:
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
    with Training(login, folder, "exp.updates=1000000") as training:
        training.await_rows(10, START_S)
        lab, head = training.lab, training.head
        node = next(number for number in (training.node_of(f"seat-000{seat}") for seat in range(3)) if number != head)
        try:
            training.survives(f"node n{node}", lambda: lab.crash(node))
            assert training.rows[-1]["nodes"] == 2 and training.rows[-1]["hosts"] == 3
        finally:
            lab.restart(node)
