"""What a driver, executors and learners call to have the index and the node pools, and what was chosen."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hpcjet.config.swarm.compression import Compression
from hpcjet.config.swarm.pool import PoolConfig
from hpcjet.config.swarm.staleness import StalenessConfig
from hpcjet.swarm.actors import get_actor, lost_errors, start_actor
from hpcjet.swarm.pool.fetching import Batch, join
from hpcjet.swarm.pool.index_actor import INDEX, IndexActor, IndexIsNew
from hpcjet.swarm.pool.leave import Leave, Refusal
from hpcjet.swarm.pool.pool_actor import PoolActor
from hpcjet.swarm.pool.sample import Sample

__all__ = ["INDEX", "IndexIsNew", "Leave", "Refusal", "fetch", "start_index", "start_pool"]

MOST_CALLS = 100_000
"""That are open in the index at a time: each seat that waits to begin holds one."""


def start_index(
    head: str, config: PoolConfig, staleness: StalenessConfig, *, seed: int, seats: Sequence[str] = ()
) -> Any:
    """On this node (Ray's id); everybody finds it by its name. `staleness` is a resolved one.

    `seats` are the sources that are kept in step, also in an index that Ray started again; `expect` changes them.
    """
    return start_actor(IndexActor, INDEX, head, config, staleness, seed, list(seats), calls=MOST_CALLS)


def start_pool(node: str, name: str, node_name: str, config: PoolConfig) -> Any:
    """A pool on this node (Ray's id), found by its name; `node_name` is what quotas and losses count by.

    Federated: one on each node. Central: one, on the learner's node. Executors insert into the one they are given.
    """
    import ray

    made = start_actor(PoolActor, name, node, name, node_name, config)
    ray.get(made.start.remote())
    return made


def fetch(sample: Sample, kind: Compression, *, timeout_s: float = 60.0) -> Batch:
    """What was chosen: one request to each pool, all at once. What a pool that does not answer had is missing.

    Tell the index by `done`.
    """
    import ray

    calls = {}
    for pool, numbers in sample.by_pool().items():
        with suppress(*lost_errors()):
            calls[pool] = get_actor(pool.partition("/")[0]).fetch.remote(pool, numbers, kind)
    ready, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=timeout_s) if calls else ([], [])
    answers = {}
    for pool, call in calls.items():
        if call in ready:
            with suppress(*lost_errors()):
                answers[pool] = ray.get(call)
    return join(sample, answers)
