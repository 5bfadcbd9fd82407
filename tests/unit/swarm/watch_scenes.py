"""A run directory of a training: with a config, rows and losses made by hand, and a policy that acts."""

import math
from pathlib import Path

from hpcjet.cluster.events import Event, Events
from hpcjet.config.compose import compose
from hpcjet.plan import make_plan
from hpcjet.rundir import RunDir
from hpcjet.swarm.checkpoints import Checkpoint, Form, write_checkpoint
from hpcjet.swarm.formation import FormationConfig, FormationVector
from hpcjet.swarm.policy import PolicyConfig
from hpcjet.swarm.row import Row
from hpcjet.swarm.trainer import Trainer, TrainerConfig
from hpcjet.swarm.watch import Loss, MetricsLog, SeatFacts, SwarmFiles, note_loss, write_seats

NAME = "20261130-120000-abc234"


def make_run(tmp_path: Path, *words: str, exp: str = "+exp=formation") -> RunDir:
    """With a plan, and nothing else."""
    run = RunDir(tmp_path / "runs" / "formation" / NAME)
    run.path.mkdir(parents=True)
    plan = make_plan(compose([*filter(None, [exp]), *words]), run_dir=run, python="python3")
    run.plan.write_text(plan.to_json())
    return run


def row(version: int, *, updates: int = 100) -> Row:
    """One update of a training that gets better."""
    done = version / updates
    wave = math.sin(version * 1.7)
    return {
        "version": version,
        "seconds": 2.0 * version,
        "agent_steps": 80_000 * version,
        "agent_steps_per_s": 40_000 + 2_000 * wave,
        "episodes": 8,
        "return": -3 + 4 * done + 0.2 * wave,
        "length": 100,
        "lag_mean": 0.4 + 0.1 * wave,
        "lag_max": 2,
        "lags": "0:60 1:30 2:10",
        "samples": 80_000,
        "valid_share": 1,
        "fetched_bytes": 8e6,
        "produced_bytes": 1.2e7,
        "pool_fill": 0.2 + 0.05 * wave,
        "learner_share": 0.6,
        "hosts": 4,
        "nodes": 2,
        "lost_fragments": 3 * (version > 50),
        "metric.held": min(0.95, done * (1 + 0.1 * wave)),
        "metric.distance": 1.5 * (1 - done) + 0.1,
        "agent.policy_loss": -0.02 + 0.01 * wave,
        "agent.value_loss": math.exp(-3 * done),
        "agent.entropy": 2.8 - done,
    }


def told_run(tmp_path: Path, *words: str, updates: int = 100) -> RunDir:
    """With all that a driver tells of a training."""
    run = make_run(tmp_path, *words)
    files = SwarmFiles.of(run)
    log = MetricsLog(files.path)
    for version in range(1, updates + 1):
        more: Row = {"evaluation.held": version / updates, "evaluation.return": 1.0} if version % 20 == 0 else {}
        log.write({**row(version, updates=updates), **more})
    log.close()
    note_loss(files.losses, Loss(time=1.7e9, what="node n2", lost_fragments=3, seconds_to_first_new_sample=4.2))
    note_loss(files.losses, Loss(time=1.7e9 + 60, what="learner rank 1"))
    shares = {"act": 0.4, "step": 0.35, "wait": 0.25}
    seats = [
        SeatFacts(
            seat=f"seat-{number:04}", node=f"n{number % 2}", worlds=4, fragments=100, agent_steps=2_000_000,
            agent_steps_per_s=10_000.0, shares=shares, faults=number == 3,
            fault="world 13, agent a, step 6: the reward is nan" if number == 3 else "",
        )
        for number in range(4)
    ]  # fmt: skip
    write_seats(files.seats, seats)
    _note_events(run)
    return run


def _note_events(run: RunDir) -> None:
    """An hour of one node, five minutes of it before the work began."""
    events = Events(run.events, allocation="9", restart=0)
    events.note(Event.allocated, at=1.7e9)
    events.note(Event.agent_up, at=1.7e9, host="n0", rank=0)
    events.note(Event.ray_up, at=1.7e9 + 300, host="n0")
    events.note(Event.workload_start, at=1.7e9 + 300)
    events.note(Event.workload_end, at=1.7e9 + 3600)
    events.note(Event.released, at=1.7e9 + 3600, exit_code=0)


def trainer(*, agents: int = 6, steps: int = 12, iterations: int = 1) -> Trainer:
    """A tiny one that has learned a little."""
    vector = FormationVector(FormationConfig(agents=agents, steps=steps), 2, seed=0)
    made = Trainer(vector, TrainerConfig(steps=6, policy=PolicyConfig(hidden=[8])))
    for _ in range(iterations):
        made.iterate()
    return made


def checkpoint(run: RunDir, made: Trainer, *versions: int) -> None:
    """As learners leave them."""
    form = Form(
        "torch", {name: policy.spec for name, policy in made.policies.items()}, made.config.policy
    )  # fmt: skip
    states = {name: learner.state_dict() for name, learner in made.learners.items()}
    for version in versions:
        held = Checkpoint(version=version, agent_steps=100 * version, form=form, learners=states)
        write_checkpoint(SwarmFiles.of(run).checkpoints, held, keep=10)
