"""What the data plane of the swarm moves, how fast its index is, and what it does when parts of it die.

    python tests/bench/swarm_plane.py [moves weights index store compression scale faults] [--nodes 3] [--short]

Prints JSON lines. Several Ray nodes run on this machine, each in a network of its own, in which the kernel counts the
bytes that a node gets; root is needed. Rates are by CPU time where the words say so, since other work on the machine
changes that little. A whole training over a long time, parts of which die: swarm_soak.py.
"""

import argparse
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import ray_nodes
from swarm_plane_parts import WAIT_S, Caller, Host, Process, fragment, on, timed_wait

from hpcjet.config.swarm.compression import Compression
from hpcjet.config.swarm.pool import Mode, Order, PoolConfig, WhenFull
from hpcjet.config.swarm.staleness import StalenessConfig, StalenessMode
from hpcjet.config.swarm.weights import CacheConfig, WeightsConfig
from hpcjet.swarm.actors import ActorGone, get_actor, lost_errors
from hpcjet.swarm.pool import compress, decompress
from hpcjet.swarm.pool.actors import INDEX, IndexIsNew, fetch, start_index, start_pool
from hpcjet.swarm.pool.entry import nbytes_of
from hpcjet.swarm.weights.actors import BOOK, Publisher, start_cache, start_servers

ASYNC = StalenessConfig(StalenessMode["async"], fragments=4)
IDLE_S = 10
REPLAY: dict[str, Any] = {"max_times": 0, "when_full": WhenFull.evict, "ahead": -1}


@dataclass
class Plane:
    """The actors of a data plane."""

    index: Any
    pools: list[Any]
    hosts: list[Any]
    caches: list[Any]
    publisher: Publisher | None


@contextmanager
def plane(
    nodes: ray_nodes.Nodes, config: PoolConfig, staleness: StalenessConfig, *, per_node: int = 1, weights: bool = False,
    executors: int = 1, most: int = 99, seed: int = 0, lease_s: float = 2.0,
) -> Iterator[Plane]:  # fmt: skip
    """Index, servers and learner on node 0, pools and hosts with `per_node` seats on the others, `most` of them."""
    at = range(1, min(most + 1, len(nodes.ids)))
    seats = {n: [f"seat-{n}-{k}" for k in range(per_node)] for n in at}
    all_seats = [name for those in seats.values() for name in those]
    index = start_index(nodes.ids[0], config, staleness, seed=seed, seats=all_seats)
    pools_at = [0] if config.mode is Mode.central else list(at)
    pools = [start_pool(nodes.ids[n], f"pool-{n}", f"n{n}", config) for n in pools_at]
    servers, caches = (), []
    if weights:
        head, standby = nodes.ids[:2]
        servers = start_servers(WeightsConfig(lease_s=lease_s), head=head, primary=head, standby=standby)
        caches = [start_cache(nodes.ids[n], f"cache-{n}", servers, CacheConfig()) for n in at]
    hosts = [
        on(nodes.ids[n], Host, f"n{n}", seats[n][k::executors], f"pool-{0 if pools_at == [0] else n}",
           f"cache-{n}" if weights else "", max_concurrency=4)
        for n in at for k in range(executors)
    ]  # fmt: skip
    try:
        yield Plane(index, pools, hosts, caches, Publisher(servers, caches) if weights else None)
    finally:
        for host in hosts:
            ray.kill(host)
        end([INDEX, BOOK, *servers, *(f"pool-{n}" for n in range(len(nodes.ids))), *(f"cache-{n}" for n in at)])


def end(names: Sequence[str]) -> None:
    for name in names:
        try:
            ray.kill(get_actor(name))
        except ActorGone:
            continue
    timed_wait("the end of actors", lambda: not any(is_there(name) for name in names))


def is_there(name: str) -> bool:
    try:
        return get_actor(name) is not None
    except ActorGone:
        return False


def moves(nodes: ray_nodes.Nodes, short: bool) -> None:
    """Bytes that reach the learner's node, of which it learns from a tenth, and whether the choice is the same."""
    count, shape, draws = (20, (50, 300, 60), 40) if short else (100, (50, 100, 60), 200)
    for order in (Order.prioritised,) if short else (Order.uniform, Order.prioritised):
        counts = {}
        for mode in (Mode.federated, Mode.central):
            config = PoolConfig(mode=mode, order=order, capacity=1 << 14, node_bytes=1 << 30, **REPLAY)
            with plane(nodes, config, ASYNC, seed=len(counts)) as these:
                before = nodes.received()[0]
                ray.get(these.index.recover.remote(0))
                ray.get([host.produce.remote(count, shape) for host in these.hosts])
                made = nodes.received()[0] - before
                counts[mode] = draw(these.index, order, count, len(these.hosts), draws)
                trained = learn(these.index, count * len(these.hosts) // 10)
                got = nodes.received()[0] - before
                pools = ray.get([pool.status.remote() for pool in these.pools])
                produced = sum(status["produced_bytes"] for status in pools)
                tell("moves", mode=mode.name, order=order.name, produced_bytes=produced, trained_bytes=trained,
                     sent_by_pools=sum(status["fetched_bytes"] for status in pools), learner_received=got,
                     while_produced=made, ratio=round(got / trained, 3), draws=int(sum(counts[mode].values())),
                     chi_square_z=round(fit_z(counts[mode], order, count, len(these.hosts)), 2))  # fmt: skip
        tell("moves", order=order.name, same_distribution_z=round(two_sample_z(*counts.values()), 2))


def draw(index: Any, order: Order, count: int, hosts: int, draws: int) -> Counter[tuple[str, int]]:
    """How often each fragment is chosen, by metadata alone."""
    sample = ray.get(index.sample.remote("p", 1, WAIT_S))
    ray.get(index.done.remote(sample.number, []))
    if order is Order.prioritised:
        entries = ray.get(index.state_dict.remote())["entries"]
        keys = [key for key, *_ in entries]
        ray.get(index.update_priorities.remote(keys, [priority(entry.first_step) for _, entry, *_ in entries]))
    found: Counter[tuple[str, int]] = Counter()
    for _ in range(draws):
        sample = ray.get(index.sample.remote("p", 250, WAIT_S))
        found.update((chosen.entry.source, chosen.entry.first_step) for chosen in sample.chosen)
        ray.get(index.done.remote(sample.number, []))
    return found


def priority(step: int) -> float:
    return 0.2 + (step * 7919 % 97) / 20


def fit_z(counts: Counter[tuple[str, int]], order: Order, count: int, hosts: int) -> float:
    """How far the counts are from what they should be, in standard deviations (chi-square, Wilson and Hilferty)."""
    steps = sorted({step for _, step in counts})
    expected = {
        (f"seat-{n + 1}-0", step): priority(step) ** PoolConfig().alpha if order is Order.prioritised else 1.0
        for n in range(hosts) for step in steps
    }  # fmt: skip
    total, mass = sum(counts.values()), sum(expected.values())
    statistic = sum((counts[key] - total * m / mass) ** 2 / (total * m / mass) for key, m in expected.items())
    return standard(statistic, len(expected) - 1)


def two_sample_z(one: Counter[Any], other: Counter[Any]) -> float:
    a, b = (np.array([each[key] for key in sorted(one | other)], float) for each in (one, other))
    scale = np.sqrt(b.sum() / a.sum())
    return standard(float(((scale * a - b / scale) ** 2 / (a + b)).sum()), len(a) - 1)


def standard(chi_square: float, degrees: int) -> float:
    return float(((chi_square / degrees) ** (1 / 3) - 1 + 2 / (9 * degrees)) / np.sqrt(2 / (9 * degrees)))


def learn(index: Any, n: int, batch: int = 2) -> int:
    """Fetch n fragments; bytes that were learned from."""
    nbytes, seen = 0, set()
    while len(seen) < n:
        sample = ray.get(index.sample.remote("p", batch, WAIT_S))
        # A replay may choose again what was fetched: a learner has it, and it is not fetched twice here.
        fresh = {chosen.key for chosen in sample.chosen} - seen
        if len(fresh) == len(sample.chosen):
            got = fetch(sample, Compression.none)
            assert not got.missing
            nbytes += got.nbytes
            seen |= fresh
        ray.get(index.done.remote(sample.number, []))
    return nbytes


def weights(nodes: ray_nodes.Nodes, short: bool) -> None:
    """Bytes of weights that reach each node, for each update, by the number of executors on a node."""
    updates, size = (4, 1 << 20) if short else (20, 1 << 20)
    for executors in (1, 16) if short else (1, 4, 16):
        with plane(nodes, PoolConfig(), ASYNC, per_node=executors, weights=True, executors=min(2, executors)) as these:
            assert these.publisher is not None
            publish(these.publisher, 0, size)
            ray.get([host.pull.remote(0) for host in these.hosts])
            before = nodes.received()
            pulls = [ray.get(cache.status.remote())["pulls"] for cache in these.caches]
            for version in range(1, updates + 1):
                publish(these.publisher, version, size)
                ray.get([host.pull.remote(version) for host in these.hosts])
            nbytes = 4 * size
            got = [now - then for then, now in zip(before, nodes.received(), strict=True)]
            after = [ray.get(cache.status.remote())["pulls"] for cache in these.caches]
            tell("weights", executors_per_node=executors, updates=updates, weights_bytes=nbytes,
                 times_received=[round(each / nbytes / updates, 3) for each in got],
                 pulls_per_update=[(now - then) / updates for then, now in zip(pulls, after, strict=True)])  # fmt: skip


def publish(publisher: Publisher, version: int, size: int) -> None:
    publisher.publish(version, {"p": {"w": np.random.default_rng(version).standard_normal(size, np.float32)}})


def index(nodes: ray_nodes.Nodes, short: bool) -> None:
    """Operations of the index actor: by wall time with callers side by side, and its own CPU time for each."""
    for callers in (1, 4) if short else (1, 4, 16):
        at = start_index(nodes.ids[0], PoolConfig(capacity=1 << 20, ahead=-1), ASYNC, seed=0)
        ray.get(at.recover.remote(0))
        these = [on(nodes.ids[0], Caller, f"c{number}") for number in range(callers)]
        ray.get([each.join.remote() for each in these])
        tell("index", callers=callers, **operations(at, these, (200 if short else 2000) // callers))
        for each in these:
            ray.kill(each)
        end([INDEX])


def operations(at: Any, callers: Sequence[Any], share: int) -> dict[str, Any]:
    """`share` operations of each kind by each caller: how many a second, and the index's CPU time for one."""
    process, found = Process(at), {}
    batches = share // 16 * 16
    work: list[tuple[str, int, Callable[[], Any]]] = [
        ("begin", share * len(callers), lambda: ray.get([each.begin.remote(share) for each in callers])),
        (
            "begin, each caller 20 a second",
            share // 4 * len(callers),
            lambda: ray.get([each.begin.remote(share // 4, 0.05) for each in callers]),
        ),
        ("insert", share * len(callers), lambda: ray.get([each.insert.remote(share, 1) for each in callers])),
        (
            "insert of 16",
            batches * len(callers),
            lambda: ray.get([each.insert.remote(batches, 16) for each in callers]),
        ),
        ("sample of 16", batches, lambda: sample(at, batches // 16, 16)),
    ]
    for name, number, run in work:
        cpu, began = process.cpu_s, time.monotonic()
        run()
        seconds, spent = time.monotonic() - began, process.cpu_s - cpu
        found[name] = {"per_s": round(number / seconds), "cpu_us": round(spent / number * 1e6, 1)}
    return found


def sample(at: Any, calls: int, size: int) -> None:
    for _ in range(calls):
        got = ray.get(at.sample.remote("p", size, WAIT_S))
        ray.get(at.done.remote(got.number, []))


def store(nodes: ray_nodes.Nodes, short: bool) -> None:
    """Bytes a second into a node's pool and from there to the learner, for fragments of two sizes."""
    for shape in ((50, 20, 16), (50, 400, 60)):
        nbytes = nbytes_of(fragment(*shape))
        count = max(10, (8 if short else 100) * (1 << 20) // nbytes) // 10 * 10
        count = min(count, 200)
        config = PoolConfig(order=Order.in_order, ahead=-1)
        with plane(nodes, config, ASYNC) as these:
            ray.get(these.index.recover.remote(0))
            pool = Process(these.pools[0])
            cpu = pool.cpu_s
            spent = ray.get(these.hosts[0].produce.remote(count, shape))
            pool_cpu = pool.cpu_s - cpu
            took, mine = time.monotonic(), time.process_time()
            for _ in range(count // 10):
                got = ray.get(these.index.sample.remote("p", 10, WAIT_S))
                batch = fetch(got, Compression.none)
                assert len(batch.fragments) == 10
                ray.get(these.index.done.remote(got.number, []))
            took, mine = time.monotonic() - took, time.process_time() - mine
            gb = nbytes * count / 1e9
            tell("store", fragment_bytes=nbytes, fragments=count, insert_gb_per_s=round(gb / spent[1], 3),
                 host_cpu_s_per_gb=round(spent[0] / gb, 3), pool_cpu_us_per_fragment=round(pool_cpu / count * 1e6),
                 fetch_gb_per_s=round(gb / took, 3), learner_cpu_s_per_gb=round(mine / gb, 3))  # fmt: skip


def compression(nodes: ray_nodes.Nodes | None, short: bool) -> None:
    """Bytes and errors for fragments of the formation, from real worlds with actions by chance."""
    made = formation_fragment(20 if short else 100)
    whole = nbytes_of(made)
    for kind in Compression:
        began = time.process_time()
        small = compress(made, kind)
        packed, began = time.process_time() - began, time.process_time()
        back = decompress(small)
        unpacked = time.process_time() - began
        there = made.present[..., None]
        error = np.abs(np.where(there, back.observation - made.observation, 0))
        tell("compression", kind=kind.name, bytes_share=round(nbytes_of(small) / whole, 3),
             observation_share=round(small.observation.nbytes / made.observation.nbytes, 3),
             most_error=float(error.max()), mean_error=float(error.mean()),
             pack_gb_per_cpu_s=round(whole / 1e9 / max(packed, 1e-9), 2),
             unpack_gb_per_cpu_s=round(whole / 1e9 / max(unpacked, 1e-9), 2))  # fmt: skip


def formation_fragment(steps: int) -> Any:
    from hpcjet.config.swarm.formation import FormationConfig
    from hpcjet.swarm.formation import FormationVector
    from hpcjet.swarm.formation.vector import GROUP
    from hpcjet.swarm.fragment import Fragment

    rng, vector = np.random.default_rng(0), FormationVector(FormationConfig(agents=100), 4, seed=0)
    turn = vector.reset()
    seen, acts, rewards = [turn.groups[GROUP].observation.copy()], [], []
    for _ in range(steps):
        acts.append(rng.uniform(-1, 1, (4, 100, 2)).astype(np.float32))
        turn = vector.step({GROUP: acts[-1]})
        seen.append(turn.groups[GROUP].observation.copy())
        rewards.append(turn.groups[GROUP].reward.copy())
    no = np.zeros((steps, 4, 100), bool)
    return Fragment(
        observation=np.stack(seen), present=np.ones((steps + 1, 4, 100), bool), action=np.stack(acts),
        reward=np.stack(rewards), terminated=no, truncated=no, log_prob=np.stack(rewards), value=np.stack(rewards),
        version=0,
    )  # fmt: skip


class Learner:
    """The part of a learner that the data plane sees."""

    def __init__(self, these: Plane, n: int, size: int = 1000) -> None:
        self._these, self._n, self._size = these, n, size
        self.version = self.missing = self.recoveries = 0
        assert these.publisher is not None
        publish(these.publisher, 0, size)
        ray.get(these.index.recover.remote(0))

    def update(self) -> None:
        """One update; goes on over the death of any part."""
        while not self._try(self._step):
            time.sleep(0.05)

    def _step(self) -> None:
        index = get_actor(INDEX)
        got = ray.get(index.sample.remote("p", self._n, 5.0), timeout=30)
        if got is None:
            raise TimeoutError
        batch = fetch(got, Compression.none, timeout_s=10)
        ray.get(index.done.remote(got.number, batch.missing), timeout=30)
        self.missing += len(batch.missing)
        self.version += 1
        while not self._try(lambda: ray.get(index.advance.remote(self.version), timeout=30)):
            time.sleep(0.05)
        publish(self._these.publisher, self.version, self._size)  # type: ignore[arg-type]

    def _try(self, do: Callable[[], Any]) -> bool:
        try:
            do()
        except IndexIsNew:
            ray.get(get_actor(INDEX).recover.remote(self.version))
            self.recoveries += 1
            return False
        except (*lost_errors(), TimeoutError):
            return False
        return True


def scale(nodes: ray_nodes.Nodes, short: bool) -> None:
    """What an update costs, by the number of nodes that act: what the model in swarm_scaling.py is checked against."""
    updates, shape, seats, size = 5 if short else 25, (20, 50, 40), 4, 1 << 18
    for acting in range(1, len(nodes.ids)):
        staleness = StalenessConfig().resolved(seats * acting, 1)
        with plane(
            nodes, PoolConfig(), staleness, per_node=seats, weights=True, most=acting, lease_s=60.0
        ) as these:  # nobody takes over
            learner = Learner(these, staleness.fragments, size)
            at = Process(these.index)
            idle = at.cpu_s
            time.sleep(IDLE_S)
            idle = (at.cpu_s - idle) / IDLE_S
            for host in these.hosts:
                host.run.remote(1 << 30, shape)
            update(learner, 3)
            before, cpu, calls = nodes.received(), at.cpu_s, index_calls(these.index)
            took = update(learner, updates)
            after, spent, asked = nodes.received(), at.cpu_s - cpu, index_calls(these.index) - calls
            got = [(now - then) / updates for then, now in zip(before, after, strict=True)]
            tell("scale", acting_nodes=acting, seats_per_node=seats, fragment_bytes=nbytes_of(fragment(*shape)),
                 weights_bytes=4 * size, learner_bytes_per_update=round(got[0]),
                 node_bytes_per_update=[round(each) for each in got[1:acting + 1]],
                 update_s=round(took / updates, 3), index_idle_share=round(idle, 4),
                 index_calls_per_update=round(asked / updates, 1),
                 index_cpu_us_per_fragment=round(spent / updates / staleness.fragments * 1e6))  # fmt: skip


def index_calls(at: Any) -> int:
    return int(sum(ray.get(at.status.remote())["calls"].values()))


def faults(nodes: ray_nodes.Nodes, short: bool) -> None:
    """kill -9 of each part in mid-training: seconds until the learner makes its next update but one."""
    staleness = StalenessConfig(StalenessMode.hybrid, eta=1).resolved(len(nodes.ids) - 1, 1)
    with plane(nodes, PoolConfig(ahead=2), staleness, weights=True) as these:
        learner = Learner(these, staleness.fragments)
        for host in these.hosts:
            host.run.remote(1 << 30, (10, 10, 8))
        for name in (INDEX, "swarm-ps-0", "pool-1", "cache-1", BOOK):
            steady = update(learner, 30)
            before = losses()
            pid = Process(get_actor(name)).pid
            os.kill(pid, signal.SIGKILL)
            back = update(learner, 2)
            after = losses()
            update(learner, 20)
            tell("faults", killed=name, update_s_before=round(steady / 30, 3), two_updates_after_s=round(back, 2),
                 lost=since(before, after))  # fmt: skip
        last = len(nodes.ids) - 1
        before = losses()
        nodes.kill(last)
        began = time.monotonic()
        timed_wait("Ray's news of the node", lambda: sum(node["Alive"] for node in ray.nodes()) < len(nodes.ids))
        noticed = time.monotonic() - began
        ray.get(these.index.node_lost.remote(f"n{last}"))
        back = update(learner, 2)
        tell("faults", killed="node", ray_noticed_s=round(noticed, 2), two_updates_after_s=round(back, 2),
             lost=since(before, losses()))  # fmt: skip
        these.hosts.pop()
        nodes.ids.pop()


def update(learner: Learner, n: int) -> float:
    began = time.monotonic()
    for _ in range(n):
        learner.update()
    return time.monotonic() - began


def losses() -> dict[str, Any]:
    status: dict[str, Any] = ray.get(get_actor(INDEX).status.remote())
    return {"life": status["life"], **status["losses"]}


def since(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    same = before["life"] == after["life"]
    return {key: after[key] - (before[key] if same else 0) for key in after if key != "life" and after[key]}


def tell(bench: str, **found: Any) -> None:
    print(json.dumps({"bench": bench, **found}), flush=True)


BENCHES = {bench.__name__: bench for bench in (moves, weights, index, store, compression, scale, faults)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benches", nargs="*", choices=[*BENCHES, []], help="all by default")
    parser.add_argument("--nodes", type=int, default=3, help="with the learner's")
    parser.add_argument("--short", action="store_true", help="in seconds, for the test of this bench")
    options = parser.parse_args()
    ray_nodes.enter()
    names = options.benches or list(BENCHES)
    if names == ["compression"]:
        compression(None, options.short)
        return
    with ray_nodes.Nodes(options.nodes) as nodes:
        for name in names:
            BENCHES[name](nodes, options.short)


if __name__ == "__main__":
    main()
