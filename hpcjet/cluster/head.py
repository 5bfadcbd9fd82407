"""The node agent's part on the first node: Ray's head, and the driver, which is the workload."""

import json
import logging
import signal
import socket
import time
from contextlib import ExitStack

from hpcjet.cluster.address import address_of_head, interface_address
from hpcjet.cluster.child import Child, tail
from hpcjet.cluster.ports import PortBlock, free_block
from hpcjet.cluster.ray_args import head_args
from hpcjet.cluster.ray_process import object_store, ray_ended, start_ray
from hpcjet.cluster.rendezvous import DONE, HEAD, node_mark
from hpcjet.cluster.site import Site
from hpcjet.errors import EXIT_CLUSTER, BootstrapError, NodeLostError, WorkloadError

_log = logging.getLogger(__name__)


def run_head(site: Site, hosts: list[str]) -> int:
    """Start Ray's head and the driver together, wait until the driver ends, end everything. Returns the exit code."""
    code = EXIT_CLUSTER
    with ExitStack() as stack:
        stack.callback(_await_workers_end, site)
        stack.callback(lambda: site.meeting.leave(DONE, {"exit_code": code}))
        ray = start_ray(site)
        stack.callback(ray.stop, 0)
        driver = Child("driver", site.plan.driver, env=site.env, log=site.log("driver"))
        stack.callback(driver.stop, site.plan.end_timeout_s)
        address, ports = _address(site, hosts), _ports(site)
        ray.say(json.dumps(_head_args(site, address, ports)))
        _await_gcs(site, ray, address, ports)
        site.meeting.leave(HEAD, {"address": address, "port": ports.gcs})
        driver.say(json.dumps({"address": address, "gcs_port": ports.gcs, "engine_port": ports.engine, "hosts": hosts}))
        _log.info("Ray's head is up at %s:%d", address, ports.gcs)
        code = _supervise(site, ray, driver)
    return code


def _address(site: Site, hosts: list[str]) -> str:
    if site.plan.interface:
        return interface_address(site.plan.interface)
    return "127.0.0.1" if site.place.num_nodes == 1 else address_of_head(hosts)


def _ports(site: Site) -> PortBlock:
    return free_block(site.place.name, "0.0.0.0")


def _head_args(site: Site, address: str, ports: PortBlock) -> list[str]:
    return head_args(
        site.place, address=address, ports=ports, temp_dir=site.temp, object_store_bytes=object_store(site)
    )


def _await_gcs(site: Site, ray: Child, address: str, ports: PortBlock) -> None:
    deadline = time.monotonic() + site.plan.boot_timeout_s
    while not _listens(address, ports.gcs):
        if ray.returncode is not None:
            raise BootstrapError(ray_ended(site, ray, "did not start"))
        if time.monotonic() > deadline:
            raise BootstrapError(
                f"Ray's head on {site.place.host} did not listen on {address}:{ports.gcs} within "
                f"{site.plan.boot_timeout_s:.0f} s (cluster.boot_timeout_s); {ray.log} ends with:\n{tail(ray.log)}"
            )
        time.sleep(0.02)


def _listens(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=0.5):
            return True
    except OSError:
        return False


def _supervise(site: Site, ray: Child, driver: Child) -> int:
    """Until the driver ends: its exit code. Raises HpcjetError when Ray or too many nodes are lost before."""
    look_at_nodes = 0.0
    while (code := driver.returncode) is None:
        if ray.returncode is not None:
            raise NodeLostError(ray_ended(site, ray, "ended before the work was done"))
        if time.monotonic() > look_at_nodes:
            _check_workers(site)
            look_at_nodes = time.monotonic() + 1.0
        time.sleep(0.05)
    if code < 0:
        raise WorkloadError(
            f"the driver was ended by {signal.Signals(-code).name}; what is recorded stays, go on with: "
            f"hpcjet resume {site.plan.run} ({driver.log} ends with:\n{tail(driver.log)})"
        )
    return code


def _check_workers(site: Site) -> None:
    failed = sorted(name for name in site.meeting.names() if name.startswith("failed-"))
    if site.place.num_nodes - len(failed) < site.plan.min_nodes:
        word = site.meeting.read(failed[0]) or {}
        raise NodeLostError(f"{len(failed)} of {site.place.num_nodes} nodes failed; {word.get('reason', failed[0])}")


def _await_workers_end(site: Site) -> None:
    """Give the other agents a moment to end by themselves: srun reports the worst exit code, and theirs should be 0."""
    expected = {node_mark("ended", rank) for rank in range(1, site.place.num_nodes)}
    deadline = time.monotonic() + 5
    while not expected <= site.meeting.names() and time.monotonic() < deadline:
        time.sleep(0.05)
