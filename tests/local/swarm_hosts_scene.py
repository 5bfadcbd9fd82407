"""World hosts on a real Ray of two nodes on this machine, of which one is killed and others hang or fail; in the end
cache, pool and index are killed, too.

Run as a program by test_swarm_hosts.py, with RAY_TMPDIR; what it finds is printed as JSON.
"""

import json
import os
import signal
import time
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
import ray
import swarm_scene
from swarm_fake_plane import Plane
from swarm_scene import answers, two_nodes

from hpcjet.config.swarm.environment import EnvironmentConfig, GymnasiumConfig
from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.config.swarm.staleness import StalenessConfig, StalenessMode
from hpcjet.config.swarm.weights import CacheConfig, WeightsConfig
from hpcjet.swarm.actors import get_actor
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.hosts import HostSpec
from hpcjet.swarm.hosts.actor import host_snapshots, start_host
from hpcjet.swarm.hosts.loop import Loop
from hpcjet.swarm.pool import Compression, PoolConfig
from hpcjet.swarm.pool.actors import INDEX, fetch, start_index, start_pool
from hpcjet.swarm.weights.actors import Publisher, start_cache, start_servers

GIVE_UP_S = 240
wait_for = partial(swarm_scene.wait_for, give_up_s=GIVE_UP_S)
SEATS = {"seat-0000": 0, "seat-0001": 2}
STEPS = 7
NODES = ("here", "away")
found: dict[str, Any] = {}


def sleeps() -> Any:
    """An environment whose reset never comes back, in C."""
    import gymnasium

    class Sleeps(gymnasium.Env):  # type: ignore[type-arg]
        observation_space = gymnasium.spaces.Box(-1, 1, (1,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, **kwargs: Any) -> Any:
            time.sleep(1000)

    return Sleeps()


def breaks() -> Any:
    raise RuntimeError("no licence")


def spec(seat: str, first_world: int, node: int, env: EnvironmentConfig | None = None) -> HostSpec:
    return HostSpec(
        seat=seat, env=env or FormationConfig(agents=5, steps=9), worlds=2, first_world=first_world, seed=5,
        steps=STEPS, node=NODES[node], cache=f"cache-{node}", pool=f"pool-{node}", policy=PolicyConfig(hidden=[16]),
        keep_snapshots=True,
    )  # fmt: skip


def digest(fragment: Fragment) -> str:
    parts = [part for part in vars(fragment).values() if isinstance(part, np.ndarray)]
    parts += [array for part in vars(fragment).values() if isinstance(part, list) for array in part]
    return sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


class Local:
    """What the seats are to make: in this process, with the same weights."""

    def __init__(self) -> None:
        self.plane = Plane(StalenessMode["async"])
        self.loops = {seat: self._loop(seat, first, 0) for seat, first in SEATS.items()}
        self.policies = self.loops["seat-0000"].seat.policies

    def again(self, seat: str) -> None:
        self.loops[seat] = self._loop(seat, SEATS[seat], 2)

    def publish(self, version: int) -> dict[str, Any]:
        """Weights that differ from version to version."""
        self.plane.publish(version, self.policies)
        assert self.plane.published is not None
        weights = {
            name: {part: np.asarray(array * (1 + 0.1 * version), array.dtype) for part, array in policy.items()}
            for name, policy in self.plane.published[1].items()
        }
        self.plane.published = version, weights
        return weights

    def makes(self) -> dict[str, str]:
        for loop in self.loops.values():
            loop.once()
            assert loop._inserted(0)
        return {entry.source: digest(fragment) for entry, fragment in self.plane.inserted[-2:]}

    def _loop(self, seat: str, first: int, attempt: int) -> Loop:
        loop = Loop(spec(seat, first, 0), attempt, self.plane.of(spec(seat, first, 0), attempt))
        loop.seat.begin()
        return loop


def error_of(run: Any) -> str:
    try:
        ray.get(run, timeout=GIVE_UP_S)
    except ray.exceptions.RayTaskError as error:
        return f"{type(error.cause).__name__}: {error.cause}"
    except ray.exceptions.RayActorError:
        return "died"
    return "stopped"


def counted(host: Any, fragments: int) -> Any:
    status = ray.get(host.status.remote())
    found.setdefault("told", []).extend(str((each.world, each.number, each.steps)) for each in status.episodes)
    return status if status.fragments >= fragments else None


def main() -> None:
    cluster, away = two_nodes()
    nodes = (ray.get_runtime_context().get_node_id(), away.node_id)
    servers = start_servers(WeightsConfig(lease_s=2.0), head=nodes[0], primary=nodes[0], standby=nodes[1])
    caches = [start_cache(node, f"cache-{at}", servers, CacheConfig()) for at, node in enumerate(nodes)]
    config = PoolConfig(insert_timeout_s=GIVE_UP_S)
    index = start_index(nodes[0], config, StalenessConfig(StalenessMode.sync, fragments=2), seed=0, seats=list(SEATS))
    for at, node in enumerate(nodes):
        start_pool(node, f"pool-{at}", NODES[at], config)
    hosts = [
        start_host(nodes[at], spec(seat, first, at), 0) for at, (seat, first) in enumerate(SEATS.items())
    ]  # fmt: skip
    runs = [host.run.remote() for host in hosts]
    bad = [
        start_host(nodes[1], spec(name, 8, 1, GymnasiumConfig(f"swarm_hosts_scene:{name}", limit_s=0.5)), 0)
        for name in ("sleeps", "breaks")
    ]
    ended = [host.run.remote() for host in bad]

    publisher, local, equal = Publisher(servers, caches), Local(), []

    def learn(version: int) -> dict[str, str]:
        sample = ray.get(index.sample.remote("agent", 2, GIVE_UP_S))
        batch = fetch(sample, Compression.none)
        ray.get(index.done.remote(sample.number, batch.missing))
        assert {fragment.version for fragment in batch.fragments} == {version}
        found.setdefault("entries", []).extend(
            [[chosen.entry.source, chosen.entry.attempt, chosen.entry.first_step] for chosen in batch.chosen]
        )
        return {c.entry.source: digest(f) for c, f in zip(batch.chosen, batch.fragments, strict=True)}

    for version in range(3):
        weights = local.publish(version)
        ray.get(index.advance.remote(version) if version else index.recover.remote(0))
        publisher.publish(version, weights)
        made = local.makes()
        wait_for("a fragment of each seat", lambda: ray.get(index.status.remote())["entries"] == 2)
        if version == 2:
            states = host_snapshots([*SEATS, "nobody"], 2, 10)
            found["snapshots"] = {seat: [state.version, state.first_step] for seat, state in states.items()}
            found["same state"] = [same(states[seat], loop.snapshots.of(2)) for seat, loop in local.loops.items()]
            status = wait_for("a count of fragments", lambda: counted(hosts[1], 3))
            found["status"] = [status.version, status.fragments, status.agent_steps, status.state, status.faults]
            os.kill(status.pid, signal.SIGKILL)
            found["killed"] = error_of(runs[1])
        equal.append(learn(version) == made)

    ray.get(index.source_lost.remote("seat-0001", 0))
    host = start_host(nodes[0], spec("seat-0001", SEATS["seat-0001"], 0), 2)  # elsewhere
    run = host.run.remote()
    # Before it asks nobody waits for it, and the other seat would take its place.
    wait_for("a host that asks for leave", lambda: ray.get(index.state_dict.remote())["attempts"]["seat-0001"] == 2)
    local.again("seat-0001")
    weights = local.publish(3)
    local.plane.index.budget.version = 3
    ray.get(index.advance.remote(3))
    publisher.publish(3, weights)
    made = local.makes()
    equal.append(learn(3) == made)
    for name in ("cache-0", "pool-0", INDEX):
        ray.kill(get_actor(name), no_restart=False)
    weights = local.publish(4)
    wait_for("a new index", lambda: answers(lambda: not ray.get(index.status.remote())["ready"]))
    ray.get(index.recover.remote(4))
    publisher.publish(4, weights)
    made = local.makes()
    equal.append(learn(4) == made)
    found["equal"] = equal
    found["ended"] = [error_of(each) for each in ended]
    wait_for("the end of the process that hangs", lambda: error_of(bad[0].status.remote()) == "died")
    for each in (hosts[0], host):
        each.stop.remote()
    found["stopped"] = [error_of(each) for each in (runs[0], run)]
    found["losses"] = {name: n for name, n in ray.get(index.status.remote())["losses"].items() if n}
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(found))


def same(one: Any, other: Any) -> bool:
    arrays = [[np.asarray(part).tobytes() for part in state.worlds.values()] for state in (one, other)]
    return bool(arrays[0] == arrays[1] and one.rng == other.rng)


if __name__ == "__main__":
    main()
