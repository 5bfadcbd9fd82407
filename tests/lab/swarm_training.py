"""A training on the lab that goes on until it is ended, and what the tests of the swarm see of it."""

import contextlib
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import Login, events, only_run, wait_for

from hpcjet.lab import Lab
from hpcjet.rundir import RunDir
from hpcjet.swarm.watch import Loss, SwarmFiles
from hpcjet.swarm.watch.csv_log import read_rows
from hpcjet.swarm.watch.told import SeatFacts, read_losses, read_seats

SMALL = [
    "exp.environment.agents=8", "exp.environment.steps=20", "exp.worlds=6", "exp.seats=3", "exp.steps=20",
    "exp.learner.minibatch=160", "exp.evaluate_episodes=1", "exp.staleness.mode=hybrid", "exp.checkpoint_every=5",
    "exp.weights.lease_s=3", "+cluster.env.RAY_worker_niceness='0'",
]  # fmt: skip
"""The nodes share this machine with other tests, beside which workers of Ray's usual priority hardly run."""
START_S, AGAIN_S = 400.0, 240.0


class Training:
    """One that goes on until it is ended."""

    def __init__(self, login: Login, folder: Path, *overrides: str) -> None:
        self.lab, self._root = login.lab, folder
        self.process = login.start("+exp=formation", "cluster=lab", *SMALL, f"run.root={folder}", *overrides)
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
        before = len(self.losses)
        began = time.time()
        break_it()

        def told() -> Loss | None:
            assert self.process.poll() is None, f"it ended: {self.log}"
            found = [each for each in self.losses[before:] if what in each.what]
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

    @property
    def seats(self) -> list[SeatFacts]:
        return read_seats(self.files.seats)

    @property
    def losses(self) -> list[Loss]:
        return read_losses(self.files.losses)

    def await_(self, what: str, true: Callable[[], bool]) -> float:
        """Seconds until it is true, while the training goes on."""
        began = time.monotonic()
        while not true():
            assert self.process.poll() is None, f"it ended: {self.log}"
            assert time.monotonic() < began + AGAIN_S, f"waited in vain for {what}: {self.seats}\n{self.log}"
            time.sleep(0.2)
        return time.monotonic() - began

    def node_of(self, seat: str) -> int:
        """The lab's number of the node that a seat is on."""
        (facts,) = [each for each in self.seats if each.seat == seat]
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
            self.process.wait(120)  # what is under way still writes in the folder
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Elastic(Training):
    """Beside the head there is one group of nodes that can be scaled."""

    def scale(self, nodes: str) -> None:
        done = self.login.hpcjet("scale", self.run.path, "group=cpu", f"nodes={nodes}")
        assert done.code == 0, done.output

    @property
    def acting(self) -> set[str]:
        """Nodes with seats. Slurm may put several nodes of a CPU each on one machine."""
        return {seat.node for seat in self.seats if seat.node}

    def goes_on(self, *, nodes: int, acting: int) -> float:
        """Seconds until the run has so many nodes, these have all seats, and an update was made since."""
        at = len(self.rows)
        return self.await_(
            f"{nodes} nodes, and seats on {acting}",
            lambda: (
                len(self.acting) == acting
                and all(seat.node and seat.fragments for seat in self.seats)
                and len(self.rows) > at
                and self.rows[-1].get("nodes") == nodes
            ),
        )

    def of(self, event: str) -> list[dict[str, Any]]:
        return [row for row in events(self.run) if row["event"] == event]


def processes(lab: Lab, node: int) -> list[Any]:
    with contextlib.suppress(Exception):
        return list(lab.processes(node))
    return []


@pytest.fixture(name="folder")
def new_folder(login: Login) -> Iterator[Path]:
    """Runs of one test."""
    path = login.home / f"swarm-{secrets.token_hex(4)}"
    yield path
    subprocess.run(["rm", "-rf", path], check=True)
