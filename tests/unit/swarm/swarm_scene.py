"""What the scenes on a real Ray of two nodes share. A scene is a program: Ray marks the process that starts it."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def wait_for(what: str, ask: Callable[[], Any], *, give_up_s: float) -> Any:
    deadline = time.monotonic() + give_up_s
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.05)
    return answer


def answers(ask: Callable[[], Any]) -> Any:
    """False while there is nobody who would answer."""
    import ray

    try:
        return ask()
    except ray.exceptions.RayActorError:
        return False


def two_nodes(*, cpus_away: int = 1) -> tuple[Any, Any]:
    """A cluster that this process is connected to, in RAY_TMPDIR, and its other node."""
    import ray

    memory = 80 * 1024**2
    Path(os.environ["RAY_TMPDIR"], "ray").mkdir(parents=True)  # a file of cluster_utils is written there
    cluster = _new_cluster(memory)
    away = cluster.add_node(num_cpus=cpus_away, object_store_memory=memory)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    return cluster, away


def _new_cluster(memory: int) -> Any:
    """On a machine that is busy Ray gives its own head up after 30 s."""
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, "object_store_memory": memory, "include_dashboard": False}
    left = 3
    while True:
        try:
            return Cluster(initialize_head=True, head_node_args=options)
        except Exception as error:
            left -= 1
            if not left or "timed out during startup" not in str(error):
                raise


def play(program: Path, *words: str | Path, timeout_s: float) -> dict[str, Any]:
    """Run a scene to its end; what it found."""
    temp = Path("/tmp") / f"hj{program.stem[6]}{os.getpid()}"  # short, for the names of Ray's sockets
    path = os.pathsep.join(map(str, (ROOT, program.parent, Path(__file__).parent)))
    quiet = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_raylet_start_wait_time_s": "120",
        "RAY_worker_niceness": "0",
    }
    env = {**os.environ, **quiet, "PYTHONPATH": path, "RAY_TMPDIR": str(temp)}
    command = [sys.executable, program, *words]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
    finally:
        subprocess.run(["rm", "-rf", temp], check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return found  # Ray writes to standard output too
