"""Several Ray nodes on this machine, each in a network namespace of its own, so that the kernel counts what each gets.

Root is needed. Everything is in namespaces that end with the program: nobody else's traffic is counted or touched.
Node 0 is this process's node, and has the head.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcjet.cluster.site import QUIET

MARK = "HPCJET_BENCH_NETWORK"
SUBNET = "10.99.0"
MEMORY = 600 << 20
START_S = 180
TRIES = 6
PATIENCE = (
    "agent_register_timeout_ms",
    "gcs_server_request_timeout_seconds",
    "worker_register_timeout_seconds",
    "raylet_start_wait_time_s",
)
"""What Ray waits for by itself, on a machine that has other work."""

PORTS = (
    "--dashboard-agent-grpc-port=7001",
    "--dashboard-agent-listen-port=7002",
    "--metrics-export-port=7003",
    "--runtime-env-agent-port=7004",
)
"""Each node has all ports for itself; those that a raylet knows it does not wait for."""


def enter() -> None:
    """Run this program again in a network of its own, unless it is in one."""
    if os.environ.get(MARK):
        return
    patience = {f"RAY_{name}": f"{START_S}{'000' if name.endswith('ms') else ''}" for name in PATIENCE}
    quiet = {
        **QUIET,
        "RAY_worker_niceness": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_AUTH_MODE": "disabled",
    }
    words = ["unshare", "--net", "--mount", "--", sys.executable, *sys.argv]
    os.execvpe("unshare", words, {**os.environ, **quiet, **patience, MARK: "1", "OMP_NUM_THREADS": "1"})


class Nodes:
    """n Ray nodes; `ids` are Ray's, in order."""

    def __init__(self, n: int, *, memory: int = MEMORY) -> None:
        self._temp = Path(tempfile.mkdtemp(prefix="hjn", dir="/tmp"))
        self._memory, self._started = memory, 0
        self.ids: list[str] = []
        Path("/run/netns").mkdir(exist_ok=True)
        _run("mount", "-t", "tmpfs", "none", "/run/netns")
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "hub", "type", "bridge")
        _run("ip", "address", "add", f"{SUBNET}.1/24", "dev", "hub")
        _run("ip", "link", "set", "hub", "up")
        try:
            self._start(n)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        import ray

        ray.shutdown()
        for at in range(self._started):
            self.kill(at)
        subprocess.run(["rm", "-rf", str(self._temp)], check=False)

    def _start(self, n: int) -> None:
        import ray

        self._started = n
        for at in range(1, n):
            self._plug_in(at)
        for at in range(n):
            self._bring_up(at)
        ray.init(address=f"{SUBNET}.1:6379", _node_ip_address=f"{SUBNET}.1", log_to_driver=False,
                 logging_level="ERROR")  # fmt: skip
        found: dict[str, str] = {}
        deadline = time.monotonic() + START_S
        while len(found) < n:
            assert time.monotonic() < deadline, f"{found} of {n} nodes"
            found = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
        self.ids = [found[f"{SUBNET}.{at + 1}"] for at in range(n)]

    def _bring_up(self, at: int) -> None:
        """Again if its raylet ends, which gives its agents no more than 15 s."""
        for _ in range(TRIES):
            started, missed = self._start_ray(at), 0
            while started.poll() is None and missed < 20:
                raylets = [words for pid in self._pids(at) if "raylet/raylet" in (words := _words(pid))]
                for words in raylets:
                    self._tell_port(words)
                logs = self._temp.glob("session_2*/logs/raylet*.err")
                ended = any(b"Check failed" in path.read_bytes() for path in logs)
                missed += ended and not raylets
                time.sleep(0.3)
            if started.poll() == 0:
                return
            self.kill(at)
            started.wait()
        raise AssertionError((self._temp / f"start-{at}").read_text())

    def _tell_port(self, words: str) -> None:
        """The one port for which a raylet waits though it was given: that is written before the agent gets so far."""
        node = re.search(r"--node_id=(\w+)", words)
        folder = re.search(r"--session_dir=(\S+?)\0", words)
        if node and folder:
            path = Path(folder[1]) / f"dashboard_agent_listen_port_{node[1]}"
            if not path.exists():
                path.write_text("7002")

    def received(self) -> list[int]:
        """Bytes that each node got from others since it began."""
        found = {link["ifname"]: link["stats64"] for link in json.loads(_run("ip", "-s", "-j", "link", "show"))}
        return [found["hub"]["rx"]["bytes"]] + [found[f"v{at}"]["tx"]["bytes"] for at in range(1, self._started)]

    def kill(self, at: int) -> None:
        """All processes of a node at once, as when its machine ends."""
        for pid in self._pids(at):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _pids(self, at: int) -> list[int]:
        if at:
            return [int(pid) for pid in _run("ip", "netns", "pids", f"n{at}").split()]
        # Those in this namespace that were started with this session's folder.
        here, found = Path("/proc/self/ns/net").readlink(), []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                inside = (entry / "ns/net").readlink() == here
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if inside and int(entry.name) != os.getpid() and str(self._temp).encode() in words:
                found.append(int(entry.name))
        return found

    def _plug_in(self, at: int) -> None:
        name = f"n{at}"
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", f"v{at}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", f"v{at}", "master", "hub", "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", name, "address", "add", f"{SUBNET}.{at + 1}/24", "dev", "eth0")
        _run("ip", "-n", name, "link", "set", "eth0", "up")

    def _start_ray(self, at: int) -> subprocess.Popen[bytes]:
        inside = ["ip", "netns", "exec", f"n{at}"] if at else []
        head = ["--head", "--port=6379", f"--temp-dir={self._temp}", "--include-dashboard=false"]
        where = [f"--address={SUBNET}.1:6379"] if at else head
        words = [*inside, sys.executable, "-m", "ray.scripts.scripts", "start", *where,
                 f"--node-ip-address={SUBNET}.{at + 1}", "--num-cpus=4", f"--object-store-memory={self._memory}",
                 "--disable-usage-stats", *PORTS]  # fmt: skip
        paths = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)])
        env: dict[str, Any] = {**os.environ, "PYTHONPATH": paths, "RAY_prestart_worker_first_driver": "0"}
        # Not a pipe: what `ray start` leaves behind would hold it open.
        with (self._temp / f"start-{at}").open("wb") as log:
            return subprocess.Popen(words, env=env, stdout=log, stderr=log)


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _run(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout
