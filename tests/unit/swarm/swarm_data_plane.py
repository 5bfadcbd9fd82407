"""The data plane on a real Ray of two nodes on this machine, which loses its primary, its index and a node.

Run as a program by test_data_plane.py, with RAY_TMPDIR; what it finds is printed as JSON.
"""

import json
import os
from functools import partial
from typing import Any

import numpy as np
import ray
import swarm_scene
from swarm_scene import answers, two_nodes

from hpcjet.config.swarm.staleness import StalenessConfig, StalenessMode
from hpcjet.config.swarm.weights import CacheConfig, WeightsConfig
from hpcjet.swarm.actors import get_actor
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.pool import Compression, PoolConfig, entry_of
from hpcjet.swarm.pool.actors import IndexIsNew, fetch, start_index, start_pool
from hpcjet.swarm.weights.actors import Publisher, start_cache, start_servers

GIVE_UP_S = 300
wait_for = partial(swarm_scene.wait_for, give_up_s=GIVE_UP_S)
found: dict[str, Any] = {}


def fragment(version: int, mark: float) -> Fragment:
    shape = (50, 20, 10)
    return Fragment(
        observation=np.full((51, 20, 10, 8), mark, np.float32), present=np.ones((51, 20, 10), bool),
        action=np.zeros((*shape, 2), np.float32), reward=np.ones(shape, np.float32),
        terminated=np.zeros(shape, bool), truncated=np.zeros(shape, bool), version=version,
    )  # fmt: skip


def insert(pool: Any, index: Any, source: str, version: int, step: int) -> str:
    leave = ray.get(index.begin.remote(source, 0, source, 1, step, GIVE_UP_S))
    assert leave is not None, f"{source} may not begin"
    made = fragment(version, step)
    entry = entry_of(made, source=source, attempt=0, node=source, policy="p", group="g", first_world=0, first_step=step)
    return str(ray.get(pool.insert.remote(entry, made)).value)


def learn(index: Any, n: int) -> list[float]:
    sample = ray.get(index.sample.remote("p", n, GIVE_UP_S))
    assert sample is not None, "nothing can be sampled"
    batch = fetch(sample, Compression.none)
    ray.get(index.done.remote(sample.number, batch.missing))
    found["missing"] = found.get("missing", 0) + len(batch.missing)
    return [float(each.observation[3, 2, 1, 0]) for each in batch.fragments]


def main() -> None:
    cluster, away = two_nodes()
    head = ray.get_runtime_context().get_node_id()
    other = away.node_id
    # Longer than a publication may take: the standby takes over before the lease is over, since the process ended.
    servers = start_servers(WeightsConfig(lease_s=240.0), head=head, primary=other, standby=head)
    caches = [start_cache(node, f"cache-{at}", servers, CacheConfig()) for at, node in enumerate((head, other))]
    config, bound = PoolConfig(insert_timeout_s=GIVE_UP_S), StalenessConfig(StalenessMode.hybrid, eta=2, fragments=2)
    index = start_index(head, config, bound, seed=0)
    pools = [start_pool(node, f"pool-{name}", name, config) for name, node in (("here", head), ("away", other))]

    early = [cache.weights.remote(f"x{n}", -1, None, 0, GIVE_UP_S) for cache in caches for n in range(5)]
    publisher = Publisher(servers, caches)
    weights = {"p": {"w": np.arange(200_000, dtype=np.float32)}}
    found["first epoch"] = publisher.publish(0, weights)
    ray.get(index.recover.remote(0))
    got = ray.get(early)
    found["versions"] = sorted({each.version for each in got})
    found["pulls"] = [ray.get(cache.status.remote())["pulls"] for cache in caches]
    arrays = [ray.get(each.weights[0])["p"]["w"] for each in got[:2]]
    found["shared"] = arrays[0].ctypes.data == arrays[1].ctypes.data and not arrays[0].flags.writeable
    found["right"] = bool((arrays[0] == weights["p"]["w"]).all())

    found["inserts"] = [insert(pools[0], index, "here", 0, 5), insert(pools[1], index, "away", 0, 3)]
    found["learned"] = learn(index, 2)
    wait_for("room in the pools", lambda: not any(ray.get(pool.status.remote())["nbytes"] for pool in pools))

    primary, standby = (get_actor(name) for name in servers)
    wait_for("a standby that follows", lambda: ray.get(standby.status.remote())["version"] == 0)
    lived = process_of(primary)
    ray.kill(primary, no_restart=False)  # returns before it is dead
    wait_for("the primary's death", lambda: process_of(primary) != lived)
    ray.get(index.advance.remote(1))
    found["later epoch"] = publisher.publish(1, weights)
    late = ray.get([cache.weights.remote("x0", 0, None, 1, GIVE_UP_S) for cache in caches])
    found["after the primary's death"] = [each.version for each in late]

    found["before"] = [insert(pools[0], index, "here", 1, 7)]
    ray.kill(index, no_restart=False)
    wait_for("a new index", lambda: answers(lambda: not ray.get(index.status.remote())["ready"]))
    try:
        ray.get(index.sample.remote("p", 1, 0.0))
    except IndexIsNew:
        ray.get(index.recover.remote(1))
    found["after"] = [insert(pools[0], index, "here", 1, 8), insert(pools[1], index, "away", 1, 9)]
    found["entries"] = ray.get(index.status.remote())["entries"]

    cluster.remove_node(away, allow_graceful=False)
    found["lost"] = ray.get(index.node_lost.remote("away"))
    found["learned in the end"] = learn(index, 2)
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(found))


def process_of(actor: Any) -> int:
    """0 while there is none."""
    return int(answers(lambda: ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))))


main()
