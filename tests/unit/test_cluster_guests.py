"""Node agents of several allocations, as real processes on real sockets, without Slurm and without Ray.

The driver is a script that writes down what it is told, gives back what drains, and ends when it is told to.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from hpcjet.cluster.events import Entry, read_events
from hpcjet.cluster.state import Phase, RunState, write_state
from hpcjet.config.compose import compose
from hpcjet.plan import NodeGroup, Plan, make_plan
from hpcjet.rundir import RunDir, atomic_write

ROOT = Path(__file__).parents[2]
DRIVER = """
import json, os, sys, threading
from pathlib import Path
from hpcjet.cluster.outbox import Outbox
folder, out = Path(sys.argv[1]), Outbox.from_env(os.environ)
said = (folder / f"told-{os.environ['HPCJET_ALLOCATION']}").open("a", buffering=1)
def listen():
    for line in sys.stdin:
        said.write(line)
        word = json.loads(line)
        if word["word"] == "node_drains" and not (folder / "busy").exists():
            out.say("idle", member=word["member"])
threading.Thread(target=listen, daemon=True).start()
while not (folder / "end").exists():
    threading.Event().wait(0.05)
sys.exit(int((folder / "end").read_text()))
"""


@dataclass
class Scene:
    """A run directory, and the agents that were started for it."""

    folder: Path
    plan: Plan
    agents: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def agent(self, *words: str, env: dict[str, str] | None = None, plan: Path | None = None) -> "Agent":
        command = [sys.executable, "-m", "hpcjet.cluster.node", str(plan or self.plan.run.plan), *words]
        output = self.folder / f"agent-{len(self.agents)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, env={**os.environ, **(env or {})}, cwd=ROOT, stdout=file, stderr=file, start_new_session=True
            )
        self.agents.append(process)
        return Agent(process, output)

    def head(self) -> "Agent":
        return self.agent()

    def guest(self, group: str = "cpu", **env: str) -> "Agent":
        return self.agent("--worker", group, env=env)

    def members(self) -> list[dict[str, Any]]:
        file = self.plan.run.members
        return json.loads(file.read_text()) if file.exists() else []

    def standing(self, agent: "Agent") -> str:
        found = [each["state"] for each in self.members() if each["member"] == agent.member]
        return found[0] if found else "unknown"

    def told(self, head: "Agent", word: str) -> list[dict[str, Any]]:
        """What the driver of a head was told with this word."""
        file = self.folder / f"told-{head.member.rpartition('-')[0]}"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in lines if line["word"] == word]

    def events(self, event: str) -> list[Entry]:
        return [entry for entry in read_events(self.plan.run.events) if entry.event == event]

    def end(self, code: int = 0) -> None:
        (self.folder / "end-made").write_text(str(code))
        (self.folder / "end-made").rename(self.folder / "end")


@dataclass
class Agent:
    process: "subprocess.Popen[bytes]"
    output: Path

    @property
    def member(self) -> str:
        return f"local-{self.process.pid}-0:0"

    def code(self, timeout_s: float = 40) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on:\n{self.output.read_text()}") from None


def until(condition: Callable[[], object], what: str, timeout_s: float = 40) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def group(name: str, nodes: int, **more: Any) -> NodeGroup:
    return NodeGroup(name=name, nodes=nodes, cpus=1, gpus=0, memory_gb=1.0, max_nodes=9, **more)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    run = RunDir(tmp_path / "run")
    (run.path / "rendezvous").mkdir(parents=True)
    plan = make_plan(compose(["+exp=noop", "cluster=local"]), run_dir=run, python=sys.executable)
    plan = replace(
        plan,
        form="jobs",
        groups=(group("head", 1), group("cpu", 1)),
        ray=False,
        head_wait_s=30.0,
        driver=(sys.executable, "-c", DRIVER, str(tmp_path)),
        env={**plan.env, "PYTHONPATH": str(ROOT)},
    )
    made = Scene(tmp_path, plan)
    write_plan(made, plan)
    write_state(run.state, RunState(Phase.submitted))
    yield made
    for process in made.agents:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def write_plan(scene: Scene, plan: Plan) -> None:
    scene.plan = plan
    atomic_write(plan.run.plan, plan.to_json())


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


def test_near_its_end_a_node_drains_and_is_given_back(scene: Scene) -> None:
    write_plan(scene, replace(scene.plan, signal_delay_s=20))
    head = scene.head()
    guest = scene.guest(SLURM_JOB_END_TIME=str(int(time.time()) + 45))
    until(lambda: scene.standing(guest) == "joined", "the worker")
    assert not scene.told(head, "node_drains")
    until(lambda: scene.told(head, "node_drains"), "the drain", timeout_s=60)
    [drain] = scene.told(head, "node_drains")
    assert drain["member"] == guest.member and drain["reason"] == "time limit"
    assert guest.code() == 0
    until(lambda: scene.standing(guest) == "left", "its end in members.json")
    assert not scene.told(head, "node_lost"), "it was idle"
    assert scene.events("drain") and scene.events("left")


def test_what_is_busy_is_ended_at_the_last_moment(scene: Scene) -> None:
    (scene.folder / "busy").touch()
    write_plan(scene, replace(scene.plan, signal_delay_s=20))
    head = scene.head()
    ends = int(time.time()) + 45
    guest = scene.guest(SLURM_JOB_END_TIME=str(ends))
    until(lambda: scene.told(head, "node_drains"), "the drain", timeout_s=60)
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
    assert guest.code() == 130 and time.monotonic() - began < 10
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
    assert guest.code(60) == 3
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
    assert guest.code(60) == 3
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
