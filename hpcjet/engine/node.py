"""The sidecar of a node: starts the replicas that the pool places here, and tells it what becomes of them.

Started by the node agent as `python -m hpcjet.engine.node RUN/plan.json`; one line on standard input says where it is.
"""

import json
import logging
import os
import queue
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

from hpcjet.cluster.lifeline import Line, connect
from hpcjet.cluster.ports import free_blocks
from hpcjet.cluster.signals import Interrupted, signals_ignored, signals_raise
from hpcjet.cluster.site import TEMP_VARIABLE, logs_here
from hpcjet.config.engine import Device, ServedConfig, Stage
from hpcjet.engine.devices import Devices, find_devices
from hpcjet.engine.replica import Change, ReplicaState
from hpcjet.engine.run_keys import engine_key
from hpcjet.engine.served import ServedEngine
from hpcjet.engine.spec import EngineSite
from hpcjet.engine.stage import SHELF
from hpcjet.engine.stage_server import StageServer
from hpcjet.engine.words import (
    MOST_REPLICAS,
    PLACE,
    REPLICA,
    RESTART,
    NodeFacts,
    RestartOrder,
    ShareOrder,
    StageParent,
    replica_log,
)
from hpcjet.errors import EXIT_CLUSTER, EXIT_INTERRUPTED, EXIT_OK, EngineError, NodeLostError
from hpcjet.plan import Plan, read_plan

CONNECT_S = 120.0
"""The pool is up soon after the node agents; it may be busy."""
_LISTEN_S = 0.2

_log = logging.getLogger(__name__)


class Node:
    """The replicas of one node."""

    def __init__(self, plan: Plan, where: dict[str, Any]) -> None:
        config = plan.typed_config().engine
        assert isinstance(config, ServedConfig)
        self._plan, self._config, self._where = plan, config, where
        self._key = engine_key(plan.run)
        self._engines: dict[str, ServedEngine] = {}
        self._numbers: dict[int, str] = {}
        """Number of a replica -> name of its part here."""
        self._news: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._server = self._serve_copies()
        self._parent: StageParent | None = None

    def run(self) -> None:
        """Serve until the pool is gone. Raises OSError if it is not found, NodeLostError when it goes."""
        facts = node_facts(self._config, self._where)
        line = self._find_pool(replace(facts, stage_port=self._server.port if self._server else 0))
        try:
            while True:
                for said in line.hear(_LISTEN_S):
                    if said["word"] == PLACE:
                        self._parent = StageParent(**parent) if (parent := said["parent"]) else None
                        self._take([ShareOrder.of(share) for share in said["shares"]])
                    elif said["word"] == RESTART:
                        self._restart(RestartOrder(**{name: said[name] for name in ("number", "reason", "restarts")}))
                while not self._news.empty():
                    line.say(REPLICA, **self._news.get())
        finally:
            line.close()

    def stop(self) -> None:
        """End all replicas, at the same time."""
        if self._server:
            self._server.close()
        engines = list(self._engines.values())
        with ThreadPoolExecutor(max(1, len(engines))) as pool:
            list(pool.map(ServedEngine.stop, engines))

    def _serve_copies(self) -> StageServer | None:
        """None where nothing is staged, and where no port is to be had: then other nodes go without this one."""
        if self._config.stage is Stage.none or not self._config.stage_broadcast:
            return None
        try:
            return StageServer(self._where["address"], key=self._key, find=SHELF.find)
        except OSError as error:
            _log.warning("no other node gets the weights from this one: %s", error)
            return None

    def _find_pool(self, facts: NodeFacts) -> Line:
        deadline = time.monotonic() + CONNECT_S
        while True:
            try:
                return connect(
                    [self._where["head"]], self._where["pool_port"], secret=self._key, rank=self._where["rank"],
                    facts=asdict(facts), timeout_s=3, member=self._where.get("member", ""),
                )  # fmt: skip
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _take(self, orders: list[ShareOrder]) -> None:
        """Start what is new; what runs already stays."""
        for order in orders:
            if order.name not in self._engines:
                self._start(order)

    def _restart(self, order: RestartOrder) -> None:
        engine = self._engines.get(self._numbers.get(order.number, ""))
        if engine and engine.replica and engine.replica.change.restarts == order.restarts:
            engine.restart(order.reason)

    def _start(self, order: ShareOrder) -> None:
        about = {"number": order.number, "rank": order.rank}

        def tell(change: Change) -> None:
            news = {"state": change.state.value, "reason": change.reason, "restarts": change.restarts}
            self._news.put({**about, **news})

        engine = ServedEngine(self._config, self._site(order), on_change=tell)
        self._engines[order.name], self._numbers[order.number] = engine, order.name
        try:
            engine.start()
        except EngineError as error:
            tell(Change(name=order.name, state=ReplicaState.failed, reason=str(error)))

    def _site(self, order: ShareOrder) -> EngineSite:
        place = self._where
        return EngineSite(
            name=order.name,
            host=place["address"],
            port=order.port,
            folder=Path(os.environ[TEMP_VARIABLE]) / f"e{order.number}-{order.rank}",
            log=replica_log(logs_here(self._plan.run), socket.gethostname(), order.name),
            api_key=self._key,
            gpus=order.gpus if order.gpus else None,
            cores=order.cores,
            num_nodes=order.num_nodes,
            rank=order.rank,
            leader=order.leader,
            leader_port=order.leader_port,
            stage_parent=self._parent,
            replica=f"replica-{order.number}",
        )


def node_facts(config: ServedConfig, where: dict[str, Any]) -> NodeFacts:
    """What this node has for replicas."""
    devices = Devices() if config.device is Device.cpu else find_devices()
    blocks = free_blocks(f"{os.environ['HPCJET_ALLOCATION']}-engine", where["address"])
    topology = devices.topology
    return NodeFacts(
        host=socket.gethostname(),
        address=where["address"],
        gpus=devices.names,
        cores=tuple(sorted(os.sched_getaffinity(0))),
        cpus=where["cpus"],
        links=topology.links if topology else (),
        near=topology.cores if topology else (),
        blocks=tuple(block.base for block in islice(blocks, min(MOST_REPLICAS, max(4, len(devices.names))))),
        ends=float(end) if (end := os.environ.get("SLURM_JOB_END_TIME", "")).isdigit() else None,
    )


def main() -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    node = Node(read_plan(Path(sys.argv[1]).read_text()), json.loads(sys.stdin.readline()))
    code = EXIT_OK
    with signals_raise(signal.SIGTERM):
        try:
            node.run()
        except Interrupted:
            code = EXIT_INTERRUPTED
        except NodeLostError:
            _log.info("the pool is gone")
        except OSError as error:
            _log.error("no pool: %s", error)
            code = EXIT_CLUSTER
        finally:
            with signals_ignored(signal.SIGTERM):  # it comes while the pool's end has us at it already
                node.stop()
    sys.exit(code)


if __name__ == "__main__":
    main()
