"""A worker's time with one head, from its connection to its end: Ray, the sidecar, and the words on the lifeline."""

import json
import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from hpcjet.cluster.child import Child
from hpcjet.cluster.lifeline import REFUSED, HeadLostError, Line, proves_head
from hpcjet.cluster.members import BYE, DONE, DRAIN, FAILED, JOINED, LEAVING, RAY, WELCOME, member_name
from hpcjet.cluster.network import Link, link_towards, links
from hpcjet.cluster.network_here import network_env_here
from hpcjet.cluster.ports import PortBlock
from hpcjet.cluster.ray_args import member_labels, worker_args
from hpcjet.cluster.ray_process import PORT_TRIES, RayProcess, object_store
from hpcjet.cluster.roster import MEMBER_LABEL
from hpcjet.cluster.sidecar import STOP_S, Sidecar
from hpcjet.cluster.site import Site, ends_at
from hpcjet.errors import BootstrapError, NodeLostError

_log = logging.getLogger(__name__)


class HeadEnded(Exception):
    """The head left word that the run is over, or that this node is given back."""


class RefusedError(NodeLostError):
    """The head does not let this worker in; `again` if a later try may do."""

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(f"the head refused this worker: {reason}")
        self.reason, self.again = reason, again


class ImpostorError(HeadLostError):
    """Something else listens where the head did."""


class Hello:
    """What a worker says of itself, with a fresh nonce for the head's proof."""

    def __init__(self, site: Site, *, group: str, started: float, ends: float | None = None) -> None:
        place = site.place
        self.rank, self.member, self.group = place.rank, member_name(place.name, place.rank), group
        self.nonce = secrets.token_hex(16)
        self.facts: dict[str, Any] = {
            "host": place.host,
            "started": started,
            "links": [asdict(link) for link in links()],
            "nonce": self.nonce,
            "group": group,
            "job": place.allocation,
            "ends": ends_at(os.environ) if ends is None else ends,
            "cpus": place.cpus,
            "gpus": place.gpus,
        }


class Stay:
    """`run` stays until the end, `leave` ends all that was started. `next_ports` gives a free block of ports."""

    def __init__(
        self,
        site: Site,
        line: Line,
        hello: Hello,
        *,
        ray: RayProcess | None,
        next_ports: Callable[[], PortBlock],
        on_drain: Callable[[float], None] = lambda by: None,
    ) -> None:
        self._site, self._plan, self._line, self._hello = site, site.plan, line, hello
        self._ray, self._next_ports, self._on_drain = ray, next_ports, on_drain
        self._sidecar: Sidecar | None = None
        self._link: Link | None = None
        self._unheard: list[dict[str, Any]] = []
        self._tries_left = PORT_TRIES - 1
        self._joined = False
        self._drainer: Child | None = None
        self._is_drained, self._look_again = False, 0.0
        self.is_welcome = False
        """Whether the head has let this worker in, and proved to be the head."""
        self.drains = ""
        """Why it is given back; empty unless it is."""

    def run(self) -> None:
        """Join when Ray's head is up, then stay. Raises HeadEnded at the head's word, RefusedError if it does not let
        us in, HeadLostError if it is gone, BootstrapError if Ray does not start here, NodeLostError if it ends.
        """
        while True:
            self.look(0.1)

    def look(self, timeout_s: float) -> None:
        """One turn of it."""
        self._heed(self._line.hear(timeout_s))
        self._site.check_parent()
        if self._sidecar:
            self._sidecar.keep()
        if self._drainer:
            self._look_at_drain()
        elif self._ray and self._ray.has_ended:
            self._after_the_end_of(self._ray)
        elif self._link and not self._joined and (self._ray is None or self._ray.has_started):
            self._joined = True
            self._line.say(JOINED, interface=self._link.name, address=self._link.address)

    def say_leaving(self, reason: str, by: float) -> None:
        """Tell the head that Slurm takes this node back."""
        self._line.say(LEAVING, reason=reason, by=by)

    def stop(self, *, sidecar_s: float = STOP_S) -> None:
        """End what was started here; the sidecar has so long to do it in order."""
        if self._sidecar:
            self._sidecar.stop(sidecar_s)
            self._sidecar = None
        if self._drainer:
            self._drainer.stop(0)
            self._drainer = None
        if self._ray:
            self._ray.stop()
            self._ray = None

    def leave(self, failed: str = "") -> None:
        """End all, in order; with a reason where something here failed."""
        if failed:
            self._line.say(FAILED, reason=failed)
        self.stop()
        self._line.say(BYE, drained=self._is_drained)
        self._line.close()

    def _heed(self, words: list[dict[str, Any]]) -> None:
        """What another says that listens where the head did does not count, but that it is over."""
        for said in words:
            word = said.get("word")
            if word == DONE:
                raise HeadEnded
            if word == REFUSED:
                raise RefusedError(str(said.get("reason", "")), again=bool(said.get("again")))
            if word == WELCOME:
                if not proves_head(said.get("proof"), secret=self._site.secret, nonce=self._hello.nonce):
                    raise ImpostorError("what listens where the head did does not know the secret of this run")
                self.is_welcome = True
            else:
                self._unheard.append(said)
        while self.is_welcome and self._unheard:
            self._obey(self._unheard.pop(0))

    def _obey(self, said: dict[str, Any]) -> None:
        if said.get("word") == RAY:
            self._join(said)
        elif said.get("word") == DRAIN:
            self.drains = str(said.get("reason", "")) or "asked to"
            _log.info("drains: %s", self.drains)
            self._on_drain(float(said["by"]))
            self._drain_ray(float(said["by"]))

    def _join(self, head: dict[str, Any]) -> None:
        self._link = link_towards(head["address"], links(), asked=self._plan.interface)
        _log.info("network: %s, %s", self._link.name, self._link.address)
        if self._ray:
            _log.info("joining Ray at %s:%d", head["address"], head["gcs_port"])
            self._gcs = f"{head['address']}:{head['gcs_port']}"
            self._start_ray(self._ray, self._link)
        if self._hello.group in self._plan.sidecar_groups:
            env = network_env_here(self._link, self._site)
            facts = {"address": self._link.address, "head": head["address"], "pool_port": head["pool_port"]}
            whose = {"member": self._hello.member, "group": self._hello.group}
            self._sidecar = Sidecar(self._site, env, **whose, **facts)

    def _drain_ray(self, by: float) -> None:
        """For programs that use Ray without asking us: it places nothing new here, and ends when nothing is left."""
        if not (self._ray and self._joined and self._link):
            return
        order = {
            "gcs": self._gcs,
            "label": member_labels(self._hello.member, self._hello.group)[MEMBER_LABEL],
            "reason": self.drains,
            "by": by,
            "patience_s": 10,
        }
        env = {**self._site.env, **network_env_here(self._link, self._site)}
        command = [self._plan.python, "-u", "-m", "hpcjet.cluster.raydrain"]
        self._drainer = Child("raydrain", command, env=env, log=self._site.log("raydrain"))
        self._drainer.say(json.dumps(order))

    def _look_at_drain(self) -> None:
        """Raises HeadEnded once Ray has nothing here any more; an engine here may still be at work for others."""
        if time.monotonic() < self._look_again or not self._ray or self._sidecar:
            return
        self._look_again = time.monotonic() + 1.0
        if self._ray.has_ended or self._ray.has_drained:
            _log.info("Ray has nothing on this node any more")
            self._is_drained = True
            raise HeadEnded

    def _start_ray(self, ray: RayProcess, link: Link) -> None:
        args = worker_args(
            self._site.place,
            head=self._gcs,
            address=link.address,
            ports=self._next_ports(),
            temp_dir=self._site.temp,
            object_store_bytes=object_store(self._site),
            labels=member_labels(self._hello.member, self._hello.group),
        )
        ray.start(args, network_env_here(link, self._site))

    def _after_the_end_of(self, ray: RayProcess) -> None:
        """Ray has ended: because the head has, or a port was taken, or something is wrong."""
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            # Ray may notice the end of its head before the head's word arrives.
            self._heed(self._line.hear(0.1))
        if self._joined:
            raise NodeLostError(ray.what_happened("ended before the work was done"))
        if not (self._link and ray.port_was_taken and self._tries_left):
            raise BootstrapError(ray.what_happened("did not start"))
        self._tries_left -= 1
        _log.warning("a port was taken by another program; trying others")
        self._ray = RayProcess(self._site)
        self._start_ray(self._ray, self._link)
