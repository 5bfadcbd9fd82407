"""The looks at one node: `python -m hpcjet.doctor.node RUN/doctor/order.json`, once on each.

It leaves node-<rank>.json beside the order.
"""

import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcjet.atomic import atomic_write
from hpcjet.doctor import (
    folders,
    gpus,
    interface,
    limits,
    names,
    ports,
    proxies,
    python,
    ray_options,
    resources,
    sandboxes,
    shared_memory,
    slurm_on_node,
    system,
    temp,
)
from hpcjet.doctor.line import Facts
from hpcjet.doctor.neighbours import Neighbours
from hpcjet.doctor.order import Scene, answer_name, read_scene

SUBJECTS: dict[str, Any] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        system,
        python,
        sandboxes,
        resources,
        gpus,
        interface,
        names,
        ports,
        temp,
        shared_memory,
        limits,
        folders,
        slurm_on_node,
        proxies,
        ray_options,
    )
}
"""Every look at a node, in the order of the report: modules with `look(scene)` and `assess(facts)`."""
LOOK_S = 30.0
"""For all looks at the node itself, which are at work at once."""


def examine(scene: Scene) -> Facts:
    """All that is to be seen from this node. No look takes the others down, nor holds them up."""
    deadline = time.monotonic() + scene.order.timeout_s
    looks = {name: Look(name, functools.partial(module.look, scene)) for name, module in SUBJECTS.items()}
    found = {name: look.wait(min(deadline, look.began + LOOK_S)) for name, look in looks.items()}
    between: Facts = {}
    if len(scene.order.hosts) > 1:
        # Only now: the looks above keep the CPUs busy, and time is measured here.
        between = Look("between", lambda: _between(scene, deadline)).wait(deadline)
    return {"host": scene.name, "rank": scene.rank, "looks": found, "between": between}


def _between(scene: Scene, deadline: float) -> Facts:
    with Neighbours(scene, deadline=deadline) as neighbours:
        found = neighbours.look()
        neighbours.await_all_done()
        return found


class Look:
    """One look, in a thread of its own from the start: it may hang for ever, as on a file system that is gone."""

    def __init__(self, name: str, find: Callable[[], Facts]) -> None:
        self._find, self._found = find, {"error": "no end"}
        self.began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wait(self, deadline: float) -> Facts:
        """What it found until then, or {"error": why it found nothing}."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            return {"error": f"no end within {time.monotonic() - self.began:.0f} s"}
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._find()
        except Exception as error:
            # Whatever goes wrong on a node is a finding about it.
            self._found = {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    scene = read_scene(Path(sys.argv[1]), int(os.environ.get("SLURM_PROCID", "0")))
    atomic_write(scene.folder / answer_name(scene.rank), json.dumps(examine(scene)))
    sys.stdout.flush()
    # A thread that hangs must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
