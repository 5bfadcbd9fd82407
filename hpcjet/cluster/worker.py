"""The node agent's part on every node but the first: Ray's worker, for as long as the head has work."""

import json
import logging
import time
from contextlib import ExitStack

from hpcjet.cluster.address import address_towards, interface_address
from hpcjet.cluster.child import Child
from hpcjet.cluster.ports import free_block
from hpcjet.cluster.ray_args import worker_args
from hpcjet.cluster.ray_process import object_store, ray_ended, start_ray
from hpcjet.cluster.rendezvous import DONE, HEAD, node_mark
from hpcjet.cluster.site import Site
from hpcjet.errors import BootstrapError, HpcjetError, NodeLostError

_log = logging.getLogger(__name__)


class HeadEnded(Exception):
    """The head left word that the run is over."""


def run_worker(site: Site) -> int:
    """Join the head's Ray and stay until it is done. Returns 0: what went wrong elsewhere is the head's to report."""
    rank = site.place.rank
    with ExitStack() as stack:
        stack.callback(lambda: site.meeting.leave(node_mark("ended", rank), {"host": site.place.host}))
        ray = start_ray(site)
        stack.callback(ray.stop, 0)
        try:
            _join(site, ray)
            _stay(site, ray)
        except HeadEnded:
            pass
        except HpcjetError as error:
            site.meeting.leave(node_mark("failed", rank), {"host": site.place.host, "reason": str(error)})
            raise
    return 0


def _join(site: Site, ray: Child) -> None:
    def check() -> None:
        if DONE in site.meeting.names():
            raise HeadEnded
        if ray.returncode is not None:
            raise BootstrapError(ray_ended(site, ray, "did not start"))

    what = f"the head on {site.place.first_host}"
    head = site.meeting.await_word(HEAD, timeout_s=site.plan.boot_timeout_s, check=check, what=what)
    ports = free_block(site.place.name, "0.0.0.0")
    interface = site.plan.interface
    args = worker_args(
        site.place,
        head=f"{head['address']}:{head['port']}",
        address=interface_address(interface) if interface else address_towards(head["address"]),
        ports=ports,
        temp_dir=site.temp,
        object_store_bytes=object_store(site),
    )
    ray.say(json.dumps(args))
    _log.info("joining Ray at %s:%d", head["address"], head["port"])


def _stay(site: Site, ray: Child) -> None:
    while DONE not in site.meeting.names():
        if ray.returncode is not None:
            _await_done(site, 2.0)
            raise NodeLostError(ray_ended(site, ray, "ended before the work was done"))
        time.sleep(0.1)
    raise HeadEnded


def _await_done(site: Site, timeout_s: float) -> None:
    """Ray here may notice the head's end before the head's word can be read."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if DONE in site.meeting.names():
            raise HeadEnded
        time.sleep(0.1)
