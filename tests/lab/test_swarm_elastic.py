"""A swarm over a head and worker allocations that come and go while it trains."""

from pathlib import Path

import pytest
from launching import Login
from swarm_training import START_S, Elastic, new_folder

__all__ = ["new_folder"]
pytestmark = [pytest.mark.lab, pytest.mark.slow]

JOBS = [
    "cluster.form=jobs", "cluster.cpus_per_node=1", "cluster.mem_gb=3", "cluster.object_store_gb=0.1",
    "+cluster.groups={head: {nodes: 1}, cpu: {nodes: 0, min: 0, max: 3, idle_s: 3600}}",
]  # fmt: skip
ONE = ["exp.seats=1", "exp.worlds=2", "exp.updates=1000000"]


def test_nodes_come_drain_and_are_preempted_while_it_trains(login: Login, folder: Path) -> None:
    """The only CPU of the head is the learner's, so that seats leave it as soon as there are others."""
    with Elastic(login, folder, *JOBS, *ONE) as training:
        training.await_rows(3, START_S)
        head = training.acting
        assert len(head) == 1 and [seat.worlds for seat in training.seats] == [2]
        training.scale("+2")
        print(f"two nodes came: {training.goes_on(nodes=3, acting=2):.0f} s", flush=True)
        assert not training.acting & head and [seat.worlds for seat in training.seats] == [2, 2], "it grew"

        training.scale("-1")
        took = training.await_("the end of the node that drains", lambda: bool(training.of("left")))
        print(f"one was given back: {took:.0f} s, then {training.goes_on(nodes=2, acting=1):.0f} s", flush=True)
        assert not training.losses, "who is told in time loses nothing"

        left = {row["job"] for row in training.of("left")}
        (job,) = {row["job"] for row in training.of("agent_up") if row.get("group") == "cpu"} - left
        assert login.run("scancel", str(job)).code == 0
        training.await_("new samples after its loss", lambda: bool(training.losses))
        (loss,) = training.losses
        assert loss.what.startswith("node ") and loss.seconds_to_first_new_sample is not None
        print(f"the other was preempted: {loss.seconds_to_first_new_sample:.0f} s", flush=True)
        print(f"one came in its place: {training.goes_on(nodes=2, acting=2):.0f} s", flush=True)

        versions = [row["version"] for row in training.rows]
        assert versions == list(range(1, len(versions) + 1)), "no update was made twice"
        assert login.hpcjet("cancel", training.run.path).code == 0
        assert training.process.wait(120) == 130
