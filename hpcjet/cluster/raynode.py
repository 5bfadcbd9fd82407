"""`ray start`, with its imports done early: waits for its arguments on standard input.

They are done while the address is found, or while a worker node waits for the head, and only those of this command.
Run by the node agent as `python -m hpcjet.cluster.raynode`; one line of JSON gives the arguments of `ray start` and
what is to be added to the environment.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from hpcjet.cluster.child import tail
from hpcjet.cluster.site import TEMP_VARIABLE

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
    return "\n".join(f"{log.name}:\n{tail(log, 6)}" for log in logs if log.exists())


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
