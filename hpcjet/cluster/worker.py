"""The node agent's part on every node but the first: Ray's worker, for as long as the head has work."""

import logging
import time
from dataclasses import asdict
from typing import Any

from hpcjet.cluster.head import DONE, RAY, network_env_here
from hpcjet.cluster.lifeline import Line, connect
from hpcjet.cluster.members import BYE, FAILED, JOINED
from hpcjet.cluster.network import Link, link_towards, links
from hpcjet.cluster.ports import free_blocks
from hpcjet.cluster.ray_args import worker_args
from hpcjet.cluster.ray_process import PORT_TRIES, RayProcess, object_store
from hpcjet.cluster.rendezvous import HEAD
from hpcjet.cluster.sidecar import Sidecar
from hpcjet.cluster.site import Site
from hpcjet.errors import BootstrapError, HpcjetError, NodeLostError

_log = logging.getLogger(__name__)


class HeadEnded(Exception):
    """The head left word that the run is over."""


class Worker:
    """One run of a worker's part; `run` does it all."""

    def __init__(self, site: Site, *, started: float) -> None:
        self._site, self._plan, self._started = site, site.plan, started
        self._ray: RayProcess | None = None
        self._sidecar: Sidecar | None = None
        self._blocks = free_blocks(site.place.name)
        self._link: Link | None = None
        self._joined = False
        self.has_found_head = False
        self._tries_left = PORT_TRIES - 1

    def run(self) -> int:
        """Join the head and stay until it is done. Returns 0: what went wrong elsewhere is the head's to report.

        Raises NodeLostError if the head is gone, BootstrapError if Ray does not start here.
        """
        line: Line | None = None
        reason = "it was told to stop, and the head was not"
        try:
            if self._plan.ray:
                self._ray = RayProcess(self._site)
            line = self._find_head()
            self.has_found_head = True
            self._stay(line)
        except HeadEnded:
            reason = ""
        except HpcjetError as error:
            reason = str(error)
            raise
        finally:
            if line and reason:
                line.say(FAILED, reason=reason)
            if self._sidecar:
                self._sidecar.stop()
            if self._ray:
                self._ray.stop()
            if line:
                line.say(BYE)
                line.close()
        return 0

    def _find_head(self) -> Line:
        """Until the head is found in the run directory and answers."""
        deadline = time.monotonic() + self._plan.boot_timeout_s
        head = self._site.meeting.await_word(
            HEAD,
            timeout_s=self._plan.boot_timeout_s,
            check=self._check,
            what=f"the head on {self._site.place.first_host}",
        )
        facts = {
            "host": self._site.place.host,
            "started": self._started,
            "links": [asdict(link) for link in links()],
        }
        while True:
            self._check()
            try:
                return connect(
                    head["addresses"],
                    head["port"],
                    secret=self._site.secret,
                    rank=self._site.place.rank,
                    facts=facts,
                    timeout_s=3,
                )
            except OSError as error:
                if time.monotonic() > deadline:
                    place = self._site.place
                    raise BootstrapError(
                        f"{place.host} cannot reach the node agent of the head, {place.first_host}: {error}; "
                        "is there a firewall between the nodes? cluster.interface chooses another network"
                    ) from None
            time.sleep(0.1)

    def _stay(self, line: Line) -> None:
        """Join when Ray's head is up; then until the head says that it is over, is gone, or Ray here is."""
        while True:
            for said in line.hear(0.1):
                if said["word"] == DONE:
                    raise HeadEnded
                if said["word"] == RAY:
                    self._join(said)
            self._site.check_parent()
            if self._sidecar:
                self._sidecar.keep()
            if self._ray and self._ray.has_ended:
                self._after_the_end_of(self._ray, line)
            elif self._link and not self._joined and (self._ray is None or self._ray.has_started):
                self._joined = True
                line.say(JOINED, interface=self._link.name, address=self._link.address)

    def _join(self, head: dict[str, Any]) -> None:
        self._link = link_towards(head["address"], links(), asked=self._plan.interface)
        _log.info("network: %s, %s", self._link.name, self._link.address)
        if self._ray:
            _log.info("joining Ray at %s:%d", head["address"], head["gcs_port"])
            self._gcs = f"{head['address']}:{head['gcs_port']}"
            self._start_ray(self._ray, self._link)
        if self._plan.sidecar:
            env = network_env_here(self._link, self._site)
            facts = {"address": self._link.address, "head": head["address"], "pool_port": head["pool_port"]}
            self._sidecar = Sidecar(self._site, env, **facts)

    def _start_ray(self, ray: RayProcess, link: Link) -> None:
        args = worker_args(
            self._site.place,
            head=self._gcs,
            address=link.address,
            ports=next(self._blocks),
            temp_dir=self._site.temp,
            object_store_bytes=object_store(self._site),
        )
        ray.start(args, network_env_here(link, self._site))

    def _after_the_end_of(self, ray: RayProcess, line: Line) -> None:
        """Ray has ended: because the head has, or a port was taken, or something is wrong."""
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            # Ray may notice the end of its head before the head's word arrives.
            if any(said["word"] == DONE for said in line.hear(0.1)):
                raise HeadEnded
        if self._joined:
            raise NodeLostError(ray.what_happened("ended before the work was done"))
        if not (self._link and ray.port_was_taken and self._tries_left):
            raise BootstrapError(ray.what_happened("did not start"))
        self._tries_left -= 1
        _log.warning("a port was taken by another program; trying others")
        self._ray = RayProcess(self._site)
        self._start_ray(self._ray, self._link)

    def _check(self) -> None:
        """While the head is not found: whether there is still reason to wait."""
        self._site.check_parent()
        if self._site.has_ended:
            raise HeadEnded
        if self._ray and self._ray.has_ended:
            raise BootstrapError(self._ray.what_happened("did not start"))
