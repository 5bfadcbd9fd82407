"""Node agents of several allocations as real processes on this machine: a run directory, a head, and its guests."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcjet.atomic import atomic_write
from hpcjet.cluster.events import Entry, read_events
from hpcjet.cluster.state import Phase, RunState, write_state
from hpcjet.config.compose import compose
from hpcjet.plan import NodeGroup, Plan, make_plan
from hpcjet.rundir import RunDir

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

    def close(self) -> None:
        for process in self.agents:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

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

    def code(self, timeout_s: float = 200) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on:\n{self.output.read_text()}") from None


def until(condition: Callable[[], object], what: str, timeout_s: float = 200) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def group(name: str, nodes: int, **more: Any) -> NodeGroup:
    return NodeGroup(name=name, nodes=nodes, cpus=1, gpus=0, memory_gb=1.0, max_nodes=9, **more)


def made_in(folder: Path, *, ray: bool, driver: str = DRIVER) -> Scene:
    """A run with a head of one node and a group of worker allocations."""
    run = RunDir(folder / "run")
    (run.path / "rendezvous").mkdir(parents=True)
    plan = make_plan(
        compose(["+exp=noop", "cluster=local", "cluster.object_store_gb=0.1"]), run_dir=run, python=sys.executable
    )
    plan = replace(
        plan,
        form="jobs",
        groups=(group("head", 1), group("cpu", 1)),
        ray=ray,
        head_wait_s=30.0,
        driver=(sys.executable, "-c", driver, str(folder)),
        env={**plan.env, "PYTHONPATH": str(ROOT)},
    )
    scene = Scene(folder, plan)
    write_plan(scene, plan)
    write_state(run.state, RunState(Phase.submitted))
    return scene


def write_plan(scene: Scene, plan: Plan) -> None:
    scene.plan = plan
    atomic_write(plan.run.plan, plan.to_json())
