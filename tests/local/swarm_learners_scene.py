"""Two learner ranks on a real Ray of two nodes on this machine: one is killed, later the index.

Run as a program by test_swarm_learners.py, with RAY_TMPDIR and a folder for checkpoints; what it finds is printed as
JSON.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import swarm_scene
import torch
from swarm_fragments import SMALL, formation, fragment_of, learner_for, settings
from swarm_scene import two_nodes

from hpcjet.config.swarm.learner import Algorithm
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.config.swarm.staleness import StalenessConfig, StalenessMode
from hpcjet.config.swarm.weights import CacheConfig, WeightsConfig
from hpcjet.swarm.actors import get_actor, lost_errors
from hpcjet.swarm.checkpoints import load_policies, newest_checkpoint, versions
from hpcjet.swarm.learners.group import LearnerGroup
from hpcjet.swarm.learners.spec import LearnerSpec, LearnerStatus, RankError
from hpcjet.swarm.pool import PoolConfig, entry_of
from hpcjet.swarm.pool.actors import INDEX, start_index, start_pool
from hpcjet.swarm.weights.actors import load, start_cache, start_servers
from hpcjet.swarm.weights.cache import NoWeights

GIVE_UP_S = 240
wait_for = partial(swarm_scene.wait_for, give_up_s=GIVE_UP_S)
UPDATES = 14
found: dict[str, Any] = {}


def act(source: str, cache: str, pool: str, seed: int, ended: threading.Event) -> None:
    """What a world host does, until the end."""
    learner = learner_for(formation(), settings(Algorithm.ppo))
    policy, step, version = learner.policy, 0, -1
    while not ended.is_set():
        try:
            leave = ray.get(get_actor(INDEX).begin.remote(source, 0, source, 1, step, 1.0))
            if leave is None:
                continue
            delivery = ray.get(get_actor(cache).weights.remote(source, version, None, leave.at_least, 5.0))
            load({"p": policy}, delivery)
            version = delivery.version
            made = fragment_of(formation(seed), learner)
            entry = entry_of(
                made, source=source, attempt=0, node=source, policy="p", group="agents", first_world=0, first_step=step
            )
            ray.get(get_actor(pool).insert.remote(entry, made), timeout=30)
            step += 1
        except (NoWeights, *lost_errors()):  # type: ignore[misc]
            time.sleep(0.1)


def until(group: LearnerGroup, what: str, ready: Callable[[LearnerStatus], bool]) -> tuple[LearnerStatus, list[Any]]:
    rows: list[Any] = []

    def ask() -> LearnerStatus | None:
        status = group.status()
        rows.extend(status.rows)
        assert ready(status) or not status.error, status.error
        return status if ready(status) else None

    return wait_for(what, ask), rows


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    cluster, away = two_nodes()
    head, other = ray.get_runtime_context().get_node_id(), away.node_id
    servers = start_servers(WeightsConfig(lease_s=2.0), head=head, primary=other, standby=head)
    places = {"here": head, "away": other}
    bound = StalenessConfig(StalenessMode.hybrid, eta=1, fragments=3)
    index = start_index(head, PoolConfig(), bound, seed=0, seats=list(places))
    for name, node in places.items():
        start_cache(node, f"cache-{name}", servers, CacheConfig())
        start_pool(node, f"pool-{name}", name, PoolConfig())
    like = learner_for(formation(), settings(Algorithm.ppo)).policy
    spec = LearnerSpec(
        policies={"p": like.spec}, fragments={"p": 3}, checkpoints=folder, policy=SMALL,
        learner=settings(Algorithm.ppo), servers=servers, checkpoint_every=2, updates=UPDATES, patience_s=200,
    )  # fmt: skip
    ended = threading.Event()
    actors = [
        threading.Thread(target=act, args=(name, f"cache-{name}", f"pool-{name}", seed, ended), daemon=True)
        for seed, name in enumerate(places)
    ]
    for each in actors:
        each.start()

    group = LearnerGroup(spec)
    group.start([head, other], 0)
    _, rows = until(group, "the first versions", lambda status: status.version >= 5)
    victim = ray.get(group._ranks[1].status.remote()).pid
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    last, more = until(group, "news of the death", lambda status: bool(status.error))
    found["told after s"] = time.monotonic() - killed
    found["lost"], found["fatal"] = group.lost_ranks(), last.fatal
    found["error"] = last.error.replace(other[:8], "OTHER")
    first = [row["version"] for row in rows + more]
    found["first"] = first == list(range(1, len(first) + 1))
    saved = versions(folder)
    found["checkpoints"] = saved == [each for each in range(2, 20, 2) if saved[0] <= each <= saved[-1]]
    found["not far back"] = saved[-1] >= first[-1] - 1

    group.start([head, other], 1)
    _, rows = until(group, "the next versions", lambda status: status.version >= saved[-1] + 2)
    ray.kill(index, no_restart=False)
    last, more = until(group, "the end", lambda status: status.done)
    second = [row["version"] for row in rows + more]
    found["second"] = second == list(range(saved[-1] + 1, UPDATES + 1))
    found["row"] = {key: rows[0][key] for key in ("lag_max", "samples", "valid_share", "fetched_bytes")}
    found["end"] = [last.version, last.error, versions(folder)]
    newest = newest_checkpoint(folder)
    assert newest is not None
    found["agent-steps"] = [newest.agent_steps, last.agent_steps]
    found["policies"] = {name: policy.version for name, policy in load_policies(folder).items()}

    try:
        group.start([head, "a" * 56], 2, timeout_s=60)
    except RankError as error:
        found["no such node"] = str(error)[:60]
    other_form = LearnerGroup(replace(spec, policy=PolicyConfig(hidden=[9])))
    other_form.start([head], 0)
    last, _ = until(other_form, "the refusal", lambda status: bool(status.error))
    found["refused"] = [last.fatal, last.error.partition("checkpoint")[2].replace(str(folder), "FOLDER")]
    ended.set()
    for each in actors:
        each.join(GIVE_UP_S)
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(found))


main(Path(sys.argv[1]))
