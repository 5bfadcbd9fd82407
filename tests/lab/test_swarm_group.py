"""A swarm whose worlds and learner stand in a group of worker allocations, which die, and whose time is up."""

from pathlib import Path

import pytest
from launching import Login
from swarm_training import START_S, Elastic, new_folder

__all__ = ["new_folder"]
pytestmark = [pytest.mark.lab, pytest.mark.slow]

GROUP = [
    "cluster.form=jobs", "cluster.cpus_per_node=1", "cluster.mem_gb=3", "cluster.object_store_gb=0.1", "exp.group=cpu",
    "+cluster.groups={head: {nodes: 1}, cpu: {nodes: 2, min: 2, max: 2, time_min: 3, idle_s: 3600}}",
    "exp.seats=1", "exp.worlds=2", "exp.updates=1000000",
]  # fmt: skip


class Grouped(Elastic):
    @property
    def jobs(self) -> list[str]:
        """Of the group's nodes that are there, in the order in which they came."""
        came = dict.fromkeys(str(row["job"]) for row in self.of("agent_up") if row.get("group") == "cpu")
        return [job for job in came if not self.is_gone(job)]

    def is_gone(self, job: str) -> bool:
        return any(str(row.get("job")) == job for what in ("left", "node_lost") for row in self.of(what))

    def learns_on(self, what: str) -> float:
        at = len(self.rows)
        return self.await_(f"updates after {what}", lambda: len(self.rows) > at + 3)


def test_a_group_loses_a_node_and_gives_others_back_when_their_time_is_up(login: Login, folder: Path) -> None:
    """Those that are there at first have the same time; the one in the place of the lost one lives longer."""
    with Grouped(login, folder, *GROUP) as training:
        training.await_rows(3, START_S)
        training.await_("both nodes", lambda: len(training.jobs) >= 2)
        first, second = training.jobs[:2]
        assert login.run("scancel", first).code == 0
        took = training.await_("the end of a node", lambda: training.is_gone(first) and bool(training.losses))
        print(f"a node of the group was lost: {took + training.learns_on('its loss'):.0f} s", flush=True)

        told = lambda: [row for row in training.of("drain") if str(row.get("job")) == second]  # noqa: E731
        training.await_("the time of the other one to be up", lambda: bool(told()))
        took = training.await_("its end", lambda: training.is_gone(second))
        took += training.learns_on("its end")
        print(f"the time of the other one was up ({told()[0]['reason']}): {took:.0f} s", flush=True)
        assert login.hpcjet("cancel", training.run.path).code == 0
        assert training.process.wait(120) == 130
