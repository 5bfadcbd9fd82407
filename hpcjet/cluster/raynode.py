"""`ray start`, with its imports done early: waits for its arguments on standard input.

They are done while the address is found, or while a worker node waits for the head, and only those of this command.
Run by the node agent as `python -m hpcjet.cluster.raynode`; one line of JSON gives the arguments of `ray start` and
what is to be added to the environment.
"""

import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from hpcjet.cluster.site import TEMP_VARIABLE

LOUD = re.compile(r"\[\S+ \S+ [EFC] \d+ \d+\]|\S+ \S+\s(ERROR|CRITICAL)\b")
"""Begins an error in the logs of Ray's programs, those in C++ and those in Python; a stack trace may follow."""
STARTED = "Ray runtime started"
"""`ray start` prints it once the node is known to Ray's head."""


OTHER_COMMANDS = ("ray.serve.scripts", "ray.dashboard.modules.job.cli", "ray.util.state.state_cli")
"""Ray's command line has them if they can be imported, which takes a second of CPU on every node."""


def main() -> None:
    start = ray_start()
    line = sys.stdin.readline()
    if line:
        order = json.loads(line)
        os.environ.update(order["env"])
        without_api_server()
        with_known_ports()
        be_patient(order["patience_s"])
        start.main(args=order["args"], prog_name="ray start", standalone_mode=True)


def ray_start() -> Any:
    """The command, imported without the others."""
    modules: Any = sys.modules
    modules.update(dict.fromkeys(OTHER_COMMANDS))  # an import of one raises ImportError, and Ray goes on without
    try:
        from ray.scripts.scripts import start
    finally:
        for name in OTHER_COMMANDS:
            del modules[name]
    return start


def without_api_server() -> None:
    """Have the head start no API server. Without a dashboard it only reports usage statistics, which are switched off.

    Ray starts it nevertheless, and begins with the rest when it answers, a second later.
    """
    from ray._private.node import Node

    Node.start_api_server = lambda self, **_: None  # type: ignore[method-assign]


def with_known_ports() -> None:
    """Have the raylet know the ports of its agents, which are all given, before these have started.

    It waits for the files in which they leave them, a second or more, and ends after 15 s, which a crowded node may
    need.
    """
    from ray import _raylet
    from ray._private.node import Node

    names: Any = _raylet
    nodes: Any = Node
    start = nodes.start_raylet

    def start_raylet(node: Any, *args: Any, **options: Any) -> Any:
        given = node._ray_params
        ports = {
            names.METRICS_AGENT_PORT_NAME: given.metrics_agent_port,
            names.METRICS_EXPORT_PORT_NAME: given.metrics_export_port,
            names.DASHBOARD_AGENT_LISTEN_PORT_NAME: given.dashboard_agent_listen_port,
            names.RUNTIME_ENV_AGENT_PORT_NAME: given.runtime_env_agent_port,
        }
        for name, port in ports.items():
            names.persist_port(node.get_session_dir_path(), node.node_id, name, port)
        return start(node, *args, **options)

    nodes.start_raylet = start_raylet


def be_patient(seconds: float) -> None:
    """Have `ray start` wait for its own raylet as long as it lives, up to `seconds`.

    Ray gives it 30 s, which a crowded machine may need, has no option for that, and waits as long for one that is dead.
    """
    from ray._private import services

    ask: Any = services.get_node

    def get_node(*args: Any, **options: Any) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            try:
                return ask(*args, **options)
            except RuntimeError as error:
                if not raylet_lives():
                    raise SystemExit(
                        f"Ray's raylet ended while it started; its logs end with:\n{raylet_logs()}"
                    ) from error
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    services.get_node = get_node


def raylet_logs() -> str:
    """The last lines of what this node's raylet and its agents wrote: the folder is removed with the node agent."""
    folder = Path(os.environ[TEMP_VARIABLE]) / "session_latest" / "logs"
    logs = [folder / name for name in ("raylet.err", "raylet.out", "dashboard_agent.log", "runtime_env_agent.log")]
    return "\n".join(f"{log.name}:\n{_words(log)}" for log in logs if log.exists())


def _words(log: Path) -> str:
    """What its program complained about last; the last lines if it did not."""
    lines = log.read_text(errors="replace").splitlines()
    loud = [line for line in lines if LOUD.match(line)]
    return "\n".join(loud[-4:] or lines[-4:])


def raylet_lives() -> bool:
    """Whether a child of ours is a raylet, and runs."""
    import psutil

    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.name() == "raylet" and child.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


if __name__ == "__main__":
    main()
