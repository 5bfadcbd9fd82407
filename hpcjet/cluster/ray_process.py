"""Ray on one node, as head and workers have it alike: its process, its object store, and what is said when it ends."""

import contextlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from hpcjet.cluster.child import Child, tail
from hpcjet.cluster.ray_args import object_store_bytes
from hpcjet.cluster.raynode import STARTED
from hpcjet.cluster.site import Site

PORT_TRIES = 3
"""How often Ray is started when another program takes one of its ports first."""


class RayProcess:
    """`ray start` on this node. It imports at once, and starts when it is told how."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.log = site.log("ray")
        # The log of an earlier try in the same place must not be read as this one's.
        self._before = self.log.stat().st_size if self.log.exists() else 0
        command = [site.plan.python, "-u", "-m", "hpcjet.cluster.raynode"]
        self._child = Child("ray", command, env=site.env, log=self.log)
        self._started = False

    def start(self, args: Sequence[str], env: Mapping[str, str]) -> None:
        """Begin `ray start` with these arguments, and these variables for all that Ray starts."""
        order = {"args": list(args), "env": dict(env), "patience_s": self._site.plan.boot_timeout_s}
        self._child.say(json.dumps(order))

    @property
    def has_ended(self) -> bool:
        return self._child.returncode is not None

    @property
    def has_drained(self) -> bool:
        """Whether its raylet is gone; after a drain it ends in order, and `ray start` takes no notice of that."""
        with contextlib.suppress(psutil.Error):
            return not any(each.name() == "raylet" for each in psutil.Process(self._child.pid).children())
        return False

    @property
    def has_started(self) -> bool:
        """Whether this node is known to Ray's head."""
        self._started = self._started or STARTED in self._said()
        return self._started

    @property
    def port_was_taken(self) -> bool:
        return "in use" in self._said().lower()

    def _said(self) -> str:
        """What it has printed so far."""
        with self.log.open("rb") as file:
            file.seek(self._before)
            return file.read().decode(errors="replace")

    def what_happened(self, what: str) -> str:
        """The message when it is gone, with the end of its log."""
        place, code = self._site.place, self._child.returncode
        return f"Ray on {place.host} {what} (exit code {code}); {self.log} ends with:\n{tail(self.log)}"

    def stop(self) -> None:
        """SIGKILL: Ray keeps nothing worth saving, and its own way to end takes half a minute."""
        self._child.stop(0)


def object_store(site: Site) -> int:
    """Bytes of Ray's object store on this node."""
    free = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 1 << 62
    return object_store_bytes(site.place, asked_gb=site.plan.object_store_gb, shm_free_bytes=free)
