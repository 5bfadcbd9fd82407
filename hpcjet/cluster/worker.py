"""The node agent's part on every other node of the head allocation: a worker, for as long as the head has work."""

import time

from hpcjet.cluster.lifeline import Line, connect
from hpcjet.cluster.ports import free_blocks
from hpcjet.cluster.ray_process import RayProcess
from hpcjet.cluster.rendezvous import HEAD
from hpcjet.cluster.site import Site
from hpcjet.cluster.stay import HeadEnded, Hello, Stay
from hpcjet.errors import BootstrapError, HpcjetError


class Worker:
    """One run of a worker's part; `run` does it all."""

    def __init__(self, site: Site, *, started: float) -> None:
        self._site, self._plan = site, site.plan
        self._hello = Hello(site, group=site.plan.group_of(site.place.rank).name, started=started)
        self._ray: RayProcess | None = None
        self.has_found_head = False

    def run(self) -> int:
        """Join the head and stay until it is done. Returns 0: what went wrong elsewhere is the head's to report.

        Raises NodeLostError if the head is gone, BootstrapError if Ray does not start here.
        """
        stay: Stay | None = None
        reason = "it was told to stop, and the head was not"
        try:
            self._ray = RayProcess(self._site) if self._plan.ray else None
            line = self._find_head()
            self.has_found_head = True
            blocks = free_blocks(self._site.place.name)
            stay = Stay(self._site, line, self._hello, ray=self._ray, next_ports=lambda: next(blocks))
            stay.run()
        except HeadEnded:
            reason = ""
        except HpcjetError as error:
            reason = str(error)
            raise
        finally:
            if stay:
                stay.leave(reason)
            elif self._ray:
                self._ray.stop()
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
        while True:
            self._check()
            try:
                return connect(
                    head["addresses"],
                    head["port"],
                    secret=self._site.secret,
                    rank=self._hello.rank,
                    member=self._hello.member,
                    facts=self._hello.facts,
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

    def _check(self) -> None:
        """While the head is not found: whether there is still reason to wait."""
        self._site.check_parent()
        if self._site.has_ended:
            raise HeadEnded
        if self._ray and self._ray.has_ended:
            raise BootstrapError(self._ray.what_happened("did not start"))
