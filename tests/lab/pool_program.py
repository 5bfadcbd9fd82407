"""Run by srun, once on each node: a pool on the first, a sidecar of it on all, sessions that ask while weights change.

    srun ... python pool_program.py FOLDER '{"overrides": [...], "weights": [PATH, PATH], "sessions": 6}'

FOLDER is shared; the first node writes FOLDER/result.json.
"""

import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcjet.cluster.child import Child
from hpcjet.cluster.site import RAY_TOKEN, TEMP_VARIABLE
from hpcjet.config.compose import compose
from hpcjet.engine.http import request
from hpcjet.engine.pool import Pool
from hpcjet.plan import make_plan
from hpcjet.rundir import RunDir
from hpcjet.slurm.nodelist import expand

WAIT_S = 900.0
# Longer than a block of the prefix cache: keys and values of old weights would show.
PROMPT = "the quick brown fox jumps over the lazy dog while it writes def double(x): return x + x " * 6
THINK_S = 0.3


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"waited {WAIT_S:.0f} s for {what}"
        time.sleep(0.1)


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def sidecar(folder: Path, rank: int) -> Iterator[None]:
    """As the node agent has it, once the pool has said where it is."""
    file = folder / "pool.json"
    until(file.exists, "the pool")
    where = json.loads(file.read_text())
    with tempfile.TemporaryDirectory(prefix="hjt-") as temp:
        env = {**os.environ, TEMP_VARIABLE: temp, "HPCJET_ALLOCATION": "1", "HPCJET_RESTART": "0"}
        log = folder / f"sidecar-{rank}.log"
        child = Child("sidecar", [sys.executable, "-m", "hpcjet.engine.node", where["plan"]], env=env, log=log)
        mine = {"rank": rank, "cpus": 2, "gpus": 0, "address": socket.gethostbyname(socket.gethostname())}
        child.say(json.dumps({**mine, "head": where["head"], "pool_port": where["port"]}))
        try:
            yield
        finally:
            child.stop(20)


class Session(threading.Thread):
    """One conversation that asks the same, without chance, again and again."""

    def __init__(self, pool: Pool, name: str, over: threading.Event) -> None:
        super().__init__()
        self._where, self._over = pool.endpoint(name, valid_s=3600), over
        self.statuses: list[int] = []

    def run(self) -> None:
        url, messages = f"{self._where.base_url}/chat/completions", [{"role": "user", "content": PROMPT}]
        body = {"model": self._where.model, "messages": messages, "max_tokens": 8, "temperature": 0}
        while not self._over.wait(THINK_S):
            answer = request("POST", url, timeout_s=300, api_key=self._where.api_key, body={**body, "ignore_eos": True})
            self.statuses.append(answer.status)


def all_have_asked(sessions: list[Session], more: int) -> None:
    before = [len(each.statuses) for each in sessions]
    until(
        lambda: all(len(each.statuses) >= n + more for each, n in zip(sessions, before, strict=True)),
        f"{more} answers more for each session",
    )


def change_weights(pool: Pool, run: RunDir, weights: list[str], count: int) -> dict[str, Any]:
    """Under load, each of the weights in turn, by one policy and the other."""

    def routed() -> list[bool]:
        return [row["routed"] for row in json.loads(run.engine.read_text())["replicas"]] if run.engine.exists() else []

    pool.wait_ready(deadline=time.monotonic() + WAIT_S)
    until(lambda: routed() == [True, True], "both replicas")
    over, outcomes = threading.Event(), []
    sessions = [Session(pool, f"task~{number}~1", over) for number in range(count)]
    for session in sessions:
        session.start()
    try:
        all_have_asked(sessions, 2)
        for version, (path, policy) in enumerate(zip(weights, ("wait", "abort"), strict=True), start=1):
            found = pool.update_weights(path, version, policy=policy, timeout_s=300)
            outcomes.append({name: asdict(each) for name, each in found.items()})
            all_have_asked(sessions, 2)
    finally:
        over.set()
        for session in sessions:
            session.join()
    return {"outcomes": outcomes, "statuses": [each.statuses for each in sessions]}


def head(folder: Path, wanted: dict[str, Any]) -> None:
    run = RunDir(folder / "run")
    run.path.mkdir()
    run.write_secret(RAY_TOKEN, "secret-of-the-run-" + "x" * 32)
    plan = make_plan(compose(["+exp=serve", *wanted["overrides"]]), run_dir=run, python=sys.executable)
    run.plan.write_text(plan.to_json())
    address = socket.gethostbyname(socket.gethostname())
    ports = {name: free_port(address) for name in ("engine", "router", "pool")}
    logs = folder / "logs"
    logs.mkdir()
    hosts = dict(enumerate(expand(os.environ["SLURM_JOB_NODELIST"])))
    config: Any = plan.typed_config().engine
    pool = Pool(config, run, address=address, ports=ports, hosts=hosts, logs=logs)
    pool.start()
    try:
        draft = folder / ".pool.json"
        draft.write_text(json.dumps({"plan": str(run.plan), "head": address, "port": ports["pool"]}))
        draft.rename(folder / "pool.json")
        with sidecar(folder, 0):
            result = change_weights(pool, run, wanted["weights"], wanted["sessions"])
        (folder / "result.json").write_text(json.dumps(result))
    finally:
        (folder / "done").touch()
        pool.stop()


def main() -> None:
    folder, wanted = Path(sys.argv[1]), json.loads(sys.argv[2])
    rank = int(os.environ["SLURM_PROCID"])
    if rank == 0:
        head(folder, wanted)
        return
    with sidecar(folder, rank):
        until((folder / "done").exists, "the end")


if __name__ == "__main__":
    main()
