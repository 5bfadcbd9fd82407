"""Node agents of several allocations, as real processes on real sockets, without Slurm and without Ray.

The driver is a script that writes down what it is told, gives back what drains, and ends when it is told to.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_scenes import Scene, group, made_in, until, write_plan

from hpcjet.atomic import atomic_write
from hpcjet.cluster.state import Phase, RunState, write_state


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = made_in(tmp_path, ray=False)
    yield made
    made.close()


def test_a_worker_that_starts_before_the_head_one_after_and_the_end(scene: Scene) -> None:
    early = scene.guest()
    time.sleep(0.5)
    head = scene.head()
    until(lambda: scene.standing(early) == "joined", "the early one")
    late = scene.guest()
    until(lambda: scene.standing(late) == "joined", "the late one")
    until(lambda: len(scene.told(head, "node")) == 3, "the driver's news")
    nodes = {node["member"]: node for node in scene.told(head, "node")}
    assert {node["group"] for node in nodes.values()} == {"head", "cpu"}
    assert nodes[early.member]["address"] and nodes[early.member]["ends"] is None
    scene.end()
    assert [agent.code() for agent in (head, early, late)] == [0, 0, 0]
    assert scene.standing(early) == scene.standing(late) == "left"
    assert not scene.plan.run.head.exists() and not scene.told(head, "node_lost")
    ups = {entry.member: entry.facts for entry in scene.events("agent_up")}
    assert {facts["group"] for facts in ups.values()} == {"head", "cpu"} and len(ups) == 3
    assert len(scene.events("left")) == 2 and not list(scene.plan.run.path.glob("events-*"))
    token = scene.plan.run.secret(f"ray-token-{head.member[:-2]}").read_text()
    assert not any(token in log.read_text(errors="replace") for log in scene.plan.run.path.rglob("*.log"))


def test_without_a_head_nodes_are_given_back_in_time(scene: Scene) -> None:
    write_plan(scene, replace(scene.plan, head_wait_s=1.0))
    guest = scene.guest()
    assert guest.code() == 0
    [entry] = scene.events("gave_up")
    assert entry.apart and entry.facts["group"] == "cpu"
    assert "waited 1 s for a head (cluster.head_wait_s); " in str(entry.facts["reason"])


@pytest.mark.parametrize(("phase", "then", "waits"), [("done", "", False), ("interrupted", "requeued", True)])
def test_a_run_that_is_over_is_not_waited_for(scene: Scene, phase: str, then: str, waits: bool) -> None:
    write_state(scene.plan.run.state, RunState(Phase(phase), exit_code=0, then=then))
    write_plan(scene, replace(scene.plan, head_wait_s=3.0))
    guest = scene.guest()
    assert guest.code() == 0
    [entry] = scene.events("gave_up")
    assert ("waited" in str(entry.facts["reason"])) == waits
    assert ("the run is over (done)" in str(entry.facts["reason"])) != waits


def test_an_allocation_that_is_nearly_over_does_not_join(scene: Scene) -> None:
    head = scene.head()
    until(scene.plan.run.head.exists, "the head")
    guest = scene.guest(SLURM_JOB_END_TIME=str(int(time.time()) + 15))
    assert guest.code() == 0
    assert "too soon to be of use" in str(scene.events("gave_up")[0].facts["reason"])
    assert scene.standing(guest) == "unknown"
    scene.end()
    assert head.code() == 0


@pytest.mark.slow
def test_near_its_end_a_node_drains_and_what_is_busy_is_ended(scene: Scene) -> None:
    (scene.folder / "busy").touch()
    write_plan(scene, replace(scene.plan, signal_delay_s=12))
    head = scene.head()
    until(scene.plan.run.head.exists, "the head")
    ends = int(time.time()) + 60
    guest = scene.guest(SLURM_JOB_END_TIME=str(ends))
    until(lambda: scene.standing(guest) == "joined", "the worker")
    until(lambda: scene.told(head, "node_drains"), "the drain")
    [drain] = scene.told(head, "node_drains")
    assert drain["member"] == guest.member and drain["reason"] == "time limit" and drain["by"] == ends - 5
    assert guest.process.poll() is None
    assert guest.code() == 0 and time.time() < ends
    until(lambda: scene.told(head, "node_lost"), "the loss")
    assert scene.told(head, "node_lost")[0]["member"] == guest.member


def test_slurms_warning_drains(scene: Scene) -> None:
    head, guest = scene.head(), scene.guest()
    until(lambda: scene.standing(guest) == "joined", "the worker")
    guest.process.send_signal(signal.SIGUSR2)
    until(lambda: scene.told(head, "node_drains"), "the drain")
    assert guest.code() == 0
    [leaving] = scene.events("leaving")
    assert leaving.facts["reason"] == "time limit" and leaving.member == guest.member


def test_a_preempted_node_says_so_and_ends_at_once(scene: Scene) -> None:
    head, guest, other = scene.head(), scene.guest(), scene.guest()
    until(lambda: scene.standing(guest) == scene.standing(other) == "joined", "the workers")
    began = time.monotonic()
    guest.process.send_signal(signal.SIGTERM)
    until(lambda: scene.told(head, "node_lost"), "the loss")
    assert guest.code() == 130 and time.monotonic() - began < 50
    assert scene.told(head, "node_lost")[0] == {
        "word": "node_lost", "member": guest.member, "host": scene.told(head, "node_lost")[0]["host"],
        "reason": "preempted",
    }  # fmt: skip
    assert scene.events("leaving")[0].facts["reason"] == "preempted"
    assert scene.standing(other) == "joined" and head.process.poll() is None
    scene.end()
    assert head.code() == other.code() == 0
    assert scene.standing(guest) == "lost"


def test_a_killed_node_is_lost_and_the_run_goes_on(scene: Scene) -> None:
    assert not scene.plan.continues
    head, guest = scene.head(), scene.guest()
    until(lambda: scene.standing(guest) == "joined", "the worker")
    os.killpg(guest.process.pid, signal.SIGKILL)
    until(lambda: scene.told(head, "node_lost"), "the loss")
    assert "was killed" in scene.told(head, "node_lost")[0]["reason"]
    scene.end()
    assert head.code() == 0


def test_the_head_is_lost_and_back_elsewhere_with_another_secret(scene: Scene) -> None:
    first = scene.head()
    guest = scene.guest()
    until(lambda: scene.standing(guest) == "joined", "the worker")
    before = json.loads(scene.plan.run.head.read_text())
    os.killpg(first.process.pid, signal.SIGKILL)
    first.process.wait()
    time.sleep(1.5)
    assert guest.process.poll() is None, "it waits for the next head"
    second = scene.head()
    until(lambda: scene.told(second, "node") and scene.standing(guest) == "joined", "the worker at the next head")
    after = json.loads(scene.plan.run.head.read_text())
    assert before["secret"] != after["secret"] and before["allocation"] != after["allocation"]
    assert not scene.plan.run.secret(before["secret"]).exists(), "who knows it knows nothing"
    scene.end(code=1)
    assert second.code() == 1 and guest.code() == 0


def test_a_head_that_was_told_to_stop_leaves_its_workers_waiting(scene: Scene) -> None:
    """As in a requeue; here the state says that nothing follows, so they are given back."""
    head, guest = scene.head(), scene.guest()
    until(lambda: scene.standing(guest) == "joined", "the worker")
    head.process.send_signal(signal.SIGTERM)
    assert head.code() == 130
    assert guest.code() == 0
    assert "the run is over (interrupted)" in str(scene.events("gave_up")[0].facts["reason"])


def elsewhere(scene: Scene, folder: str, *, secret: str) -> Path:
    """A copy of the run directory whose pointer leads to the head, with a secret of its own; its plan."""
    plan = replace(scene.plan, run_dir=str(scene.folder / folder))
    (plan.run.path / "rendezvous").mkdir(parents=True)
    atomic_write(plan.run.plan, plan.to_json())
    pointer = json.loads(scene.plan.run.head.read_text())
    plan.run.write_secret(pointer["secret"], secret)
    atomic_write(plan.run.head, json.dumps(pointer))
    return plan.run.plan


def test_a_wrong_secret_is_refused_and_noted_once(scene: Scene) -> None:
    head = scene.head()
    until(scene.plan.run.head.exists, "the head")
    guest = scene.agent("--worker", "cpu", plan=elsewhere(scene, "forged", secret="guessed"))
    assert guest.code() == 3
    assert "it does not know the secret of this run" in guest.output.read_text()
    until(lambda: scene.events("refused"), "the event")
    [refused] = scene.events("refused")
    assert refused.facts["peer"] and "does not know the secret" in str(refused.facts["reason"])
    assert "guessed" not in scene.plan.run.events.read_text()
    scene.end()
    assert head.code() == 0


def test_the_secret_of_an_earlier_start_is_told_apart(scene: Scene) -> None:
    first = scene.head()
    until(scene.plan.run.head.exists, "the head")
    old = scene.plan.run.secret(json.loads(scene.plan.run.head.read_text())["secret"]).read_text()
    os.killpg(first.process.pid, signal.SIGKILL)
    first.process.wait()
    scene.plan.run.head.unlink()
    second = scene.head()
    until(scene.plan.run.head.exists, "the next head")
    guest = scene.agent("--worker", "cpu", plan=elsewhere(scene, "forged", secret=old))
    assert guest.code() == 3
    until(lambda: scene.events("refused"), "the event")
    assert "it belongs to an earlier start of this run" in str(scene.events("refused")[0].facts["reason"])
    scene.end()
    assert second.code() == 0


def test_a_group_that_the_run_has_not_is_refused(scene: Scene) -> None:
    head = scene.head()
    until(scene.plan.run.head.exists, "the head")
    plan = replace(scene.plan, groups=(*scene.plan.groups, group("gpu", 1)))
    atomic_write(scene.folder / "other.json", plan.to_json())
    guest = scene.agent("--worker", "gpu", plan=scene.folder / "other.json")
    assert guest.code() == 3
    until(lambda: [entry for entry in scene.events("refused") if not entry.apart], "the event")
    [refused] = [entry for entry in scene.events("refused") if not entry.apart]
    assert refused.facts["reason"] == "there is no group 'gpu' of worker allocations in this run: cpu"
    assert refused.member == guest.member
    scene.end()
    assert head.code() == 0


def test_an_unknown_group_is_said_at_once(scene: Scene) -> None:
    guest = scene.guest("gpu")
    assert guest.code() == 2
    assert "the run's groups are head, cpu" in guest.output.read_text()


def test_max_hours_stops_the_run_and_nothing_follows(scene: Scene) -> None:
    write_plan(scene, replace(scene.plan, max_hours=9 / 3600, signal_delay_s=3, requeue=True, max_restarts=9))
    began = time.monotonic()
    head = scene.head()
    assert head.code() == 130 and time.monotonic() - began > 5
    state = json.loads(scene.plan.run.state.read_text())
    assert state["then"] == "" and "run.max_hours=0.0025 are used up" in state["reason"]
