"""What the way from an agent to its replica costs: gateway and router against the replica itself, in one run.

    python tests/bench/engine.py stub [--seconds 5] [--connections 1 16 64] [--bytes 2000] [--record logprobs]
    python tests/bench/engine.py real --url http://127.0.0.1:8000 --model NAME [--key-file FILE]
    python tests/bench/engine.py soak [--minutes 5] [--sessions 1000]

`stub` asks instant STUB replicas, so that the way is all that is measured; load, gateway, router and stubs share the
machine's CPUs, and each part's CPU time per request is shown. `real` asks a real server, each way in turn. `soak` has
many sessions ask replicas that are killed, hang, answer slowly and fail. Each prints JSON lines.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from load import Result, Target, body, load
from scene import HOST, KEY, Scene, scene

from hpcjet.engine.gateway import Recording


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


def ways(found: Scene, count: int, data: bytes) -> dict[str, list[Target]]:
    """`count` connections each: to the replica, by the router, by gateway and router."""
    port = {"direct": found.replicas[0].port, "router": int(found.router.url.rpartition(":")[2])}
    targets = {
        name: [Target(HOST, port[name], "/v1", KEY, f"bench~{n}~1", data) for n in range(count)] for name in port
    }
    gateway_port = int(found.gateway.url.rpartition(":")[2])
    endpoints = [found.gateway.endpoint(f"bench~{n}~1", model="stub", valid_s=3600) for n in range(count)]
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


def bench_stub(given: argparse.Namespace) -> None:
    data = body(size=given.bytes)
    with tempfile.TemporaryDirectory(dir=given.scratch) as folder:
        with scene(Path(folder), replicas=given.replicas, record=Recording[given.record]) as found:
            parts = {"gateway": found.gateway.pid, "router": found.router.pid}
            for count in given.connections:
                for name, targets in ways(found, count, data).items():
                    run(targets, 1)
                    before = {part: cpu_s(pid) for part, pid in parts.items() if pid}
                    syncs = sync_counters(found)
                    mine = time.process_time()
                    result = run(targets, given.seconds)
                    mine = time.process_time() - mine
                    done = max(1, result.statuses[200])
                    count_, seconds_ = (after - then for after, then in zip(sync_counters(found), syncs, strict=True))
                    used = {
                        f"{part}_cpu_ms": 1000 * (cpu_s(pid) - before[part]) / done
                        for part, pid in parts.items()
                        if pid
                    }
                    say(
                        way=name, connections=count, body_bytes=len(data), record=given.record, per_s=result.rate,
                        p50_ms=result.quantile_ms(0.5), p95_ms=result.quantile_ms(0.95),
                        statuses=dict(result.statuses), load_cpu_ms=1000 * mine / done, **used,
                        sync_ms=1000 * seconds_ / max(1, count_), calls_per_sync=done / max(1, count_),
                        load_average=os.getloadavg()[0],
                    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_subparsers(dest="what", required=True)
    stub = which.add_parser("stub")
    stub.add_argument("--seconds", type=float, default=5)
    stub.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64])
    stub.add_argument("--bytes", type=int, default=2000)
    stub.add_argument("--replicas", type=int, default=1)
    stub.add_argument("--record", choices=[each.name for each in Recording], default="logprobs")
    stub.add_argument("--scratch", type=Path)
    given = parser.parse_args()
    {"stub": bench_stub}[given.what](given)


if __name__ == "__main__":
    main()
